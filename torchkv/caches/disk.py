"""A cache on disk: safetensors with what the cache was made for beside it.

Refused on any difference.
"""

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor as Array

from jaxkv.spec.errors import ShapeError, SourceError
from torchkv.caches.state import Cache

FORMAT = "torchkv-cache-1"


def save(cache: Cache, path: str | Path, *, identity: str = "") -> None:
    """Write the cache to one safetensors file.

    An existing file is replaced only once the new one is whole.

    Args:
        cache: Any cache.
        path: Where to.
        identity: What the contents belong to, in the caller's words (model, weights, tokens);
            `load` compares it.

    Raises:
        RequestError: The cache was consumed.
        OSError: The file cannot be written; a file of that name is then as it was.

    Cost: copies every tensor to the host.
    """
    from safetensors.torch import save as to_bytes

    cache.epoch.check("save", "cache")
    path = Path(path)
    arrays = {name: array.contiguous() for name, array in _named(cache).items()}
    notes = {"format": FORMAT, "identity": identity, "shape": _describe(cache)}
    data = to_bytes(arrays, metadata=notes)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def load(path: str | Path, like: Cache, *, identity: str = "") -> Cache:
    """Return the cache that `save` wrote, on the device of `like`.

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
        with safe_open(path, framework="pt") as file:
            _check_metadata(file.metadata() or {}, like, identity)
            arrays = {
                name: file.get_tensor(name).to(array.device) for name, array in _named(like).items()
            }
    except FileNotFoundError as error:
        raise SourceError(f"load: {path} does not exist. Was the cache saved there?") from error
    except SafetensorError as error:
        raise SourceError(
            f"load: {path} is damaged or no safetensors file ({error}). Save the cache again."
        ) from error
    marks = {name: array for name, array in arrays.items() if "." not in name}
    shared = None if like.shared is None else _rebuild(like.shared, "shared.", arrays)
    sites = tuple(_rebuild(site, f"sites.{i}.", arrays) for i, site in enumerate(like.sites))
    return Cache(**marks, shared=shared, sites=sites, capacity=like.capacity)


def _rebuild(node: Any, prefix: str, arrays: dict[str, Array]) -> Any:
    mine = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    return dataclasses.replace(node, **{n.removeprefix(prefix): a for n, a in mine.items()})


def _named(cache: Cache) -> dict[str, Array]:
    nodes = {"": cache} | {f"sites.{i}.": site for i, site in enumerate(cache.sites)}
    nodes |= {} if cache.shared is None else {"shared.": cache.shared}
    return {
        prefix + name: value
        for prefix, node in nodes.items()
        for name, value in vars(node).items()
        if isinstance(value, Array)
    }


def _describe(cache: Cache) -> str:
    arrays = {
        name: [str(array.dtype).removeprefix("torch."), list(array.shape)]
        for name, array in _named(cache).items()
    }
    held = [] if cache.shared is None else [cache.shared]
    tree = ", ".join(_form(node) for node in (*held, *cache.sites))
    return json.dumps({"capacity": cache.capacity, "tree": tree, "arrays": arrays})


def _form(node: Any) -> str:
    sizes = {name: value for name, value in vars(node).items() if not isinstance(value, Array)}
    return f"{type(node).__name__}({', '.join(f'{n}={v}' for n, v in sizes.items())})"


def _check_metadata(metadata: dict[str, str], like: Cache, identity: str) -> None:
    if metadata.get("format") != FORMAT:
        found = metadata.get("format", "none")
        raise SourceError(
            f"load: the file's format is {found!r}, expected {FORMAT!r}. Was it written by `save`?"
        )
    if metadata["identity"] != identity:
        raise SourceError(
            f"load: the file belongs to {metadata['identity']!r}, asked for {identity!r}. Compute "
            "the cache anew."
        )
    saved, wanted = json.loads(metadata["shape"]), json.loads(_describe(like))
    for field in ("capacity", "tree"):
        if saved[field] != wanted[field]:
            raise ShapeError(
                f"load: {field} is {saved[field]} in the file, {wanted[field]} in `like`. Make "
                "them alike."
            )
    for name, form in wanted["arrays"].items():
        if saved["arrays"].get(name) != form:
            raise ShapeError(
                f"load: {name} is {saved['arrays'].get(name)} in the file, {form} in `like`."
            )
