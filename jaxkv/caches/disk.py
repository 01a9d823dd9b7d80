"""A cache on disk: safetensors with what the cache was made for beside it.

Refused on any difference.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkv.caches.state import Cache
from jaxkv.spec.errors import ShapeError, SourceError

FORMAT = "jaxkv-cache-1"


def save(cache: Cache, path: str | Path, *, identity: str = "") -> None:
    """Write the cache to one safetensors file.

    An existing file is replaced only once the new one is whole.

    Args:
        cache: Any cache.
        path: Where to.
        identity: What the contents belong to, in the caller's words (model, weights, tokens);
            `load` compares it.

    Raises:
        OSError: The file cannot be written; a file of that name is then as it was.

    Cost: copies every array to the host.
    """
    from safetensors.numpy import save as to_bytes

    path = Path(path)
    arrays = {name: np.asarray(array) for name, array in _named(cache).items()}
    data = to_bytes(
        arrays, metadata={"format": FORMAT, "identity": identity, "shape": _describe(cache)}
    )
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def load(path: str | Path, like: Cache, *, identity: str = "") -> Cache:
    """Return the cache that `save` wrote.

    Args:
        path: The file.
        like: A cache of the same model, batch, capacity, layout and dtype, as `init` makes it; only
            its form is used.
        identity: Must equal the one given to `save`.

    Raises:
        SourceError: The file is missing, damaged, no cache, or of another identity.
        ShapeError: It was saved from a cache of another form.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            _check_metadata(file.metadata() or {}, like, identity)
            arrays = [jnp.asarray(file.get_tensor(name)) for name in _named(like)]
    except FileNotFoundError as error:
        raise SourceError(f"load: {path} does not exist. Was the cache saved there?") from error
    except SafetensorError as error:
        raise SourceError(
            f"load: {path} is damaged or no safetensors file ({error}). Save the cache again."
        ) from error
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def _named(cache: Cache) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(cache)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def _describe(cache: Cache) -> str:
    arrays = {name: [str(array.dtype), list(array.shape)] for name, array in _named(cache).items()}
    return json.dumps(
        {"capacity": cache.capacity, "tree": str(jax.tree.structure(cache)), "arrays": arrays}
    )


def _check_metadata(metadata: dict[str, str], like: Cache, identity: str) -> None:
    if metadata.get("format") != FORMAT:
        found = metadata.get("format", "none")
        raise SourceError(
            f"load: the file's format is {found!r}, expected {FORMAT!r}. Was it written by `save`?"
        )
    if metadata["identity"] != identity:
        raise SourceError(
            f"load: the file belongs to {metadata['identity']!r}, asked for {identity!r}. "
            "Compute the cache anew."
        )
    saved, wanted = json.loads(metadata["shape"]), json.loads(_describe(like))
    for field in ("capacity", "tree"):
        if saved[field] != wanted[field]:
            raise ShapeError(
                f"load: {field} is {saved[field]} in the file, {wanted[field]} in `like`. "
                "Make them alike."
            )
    for name, form in wanted["arrays"].items():
        if saved["arrays"].get(name) != form:
            raise ShapeError(
                f"load: {name} is {saved['arrays'].get(name)} in the file, {form} in `like`."
            )
