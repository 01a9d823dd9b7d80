"""A cache on disk: safetensors with what it belongs to beside it, refused on any difference.

The notes (format, version, identity, tokens, form) and their comparison stand in
`jaxkv.spec.cache_file`. A file is readable by its owner alone: keys and values tell the text.
"""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor as Array

from jaxkv.spec.cache_file import (
    Saved,
    check_encoder,
    check_saved,
    check_texts,
    read_notes,
    write_notes,
)
from jaxkv.spec.errors import SourceError
from jaxkv.spec.identity import Identity
from torchkv.caches.cross import CrossSite
from torchkv.caches.state import Cache


def save(
    cache: Cache,
    path: str | Path,
    *,
    identity: Identity,
    tokens: Sequence[Sequence[int]],
    encoder: Sequence[Sequence[int]] | None = None,
) -> None:
    """Write the cache to one safetensors file.

    An existing file is replaced only once the new one is whole and on the disk.

    Args:
        cache: Any cache.
        path: Where to.
        identity: What its keys and values belong to, see `identity_of`; `load` compares it.
        tokens: The text that each row holds: of a finished generation all but the last token.
        encoder: What the encoder read of each source, for a model that has one.

    Raises:
        RequestError: `encoder` is missing, or given without need.
        ShapeError: The texts have other lengths than the rows, or than the sources.
        SourceError: The file cannot be written; a file of that name is then as it was.
        RequestError: The cache was consumed.

    Cost: copies every tensor to the host.
    """
    from safetensors.torch import save as to_bytes

    cache.epoch.check("save", "cache")
    check_texts("save", tokens, cache.length_B.tolist())
    check_encoder("save", encoder, _source_lengths(cache))
    path = Path(path)
    arrays = {name: array.contiguous() for name, array in _named(cache).items()}
    notes = write_notes("torchkv", identity, tokens, encoder, _form(cache))
    data = to_bytes(arrays, metadata=notes)
    try:
        _replace(path, data)
    except OSError as error:
        raise SourceError(
            f"save: {path} cannot be written ({error.strerror or error}). Make room or choose "
            "another place; what stood there before still does."
        ) from error


def load(
    path: str | Path,
    like: Cache,
    *,
    identity: Identity,
    tokens: Sequence[Sequence[int]] | None = None,
    encoder: Sequence[Sequence[int]] | None = None,
) -> Cache:
    """Return the cache that `save` wrote, on the device of `like`.

    Args:
        path: The file.
        like: A cache of the same model, batch, capacity, layout and dtype, as `init` makes it; only
            its form is used.
        identity: Must equal the one given to `save`, field by field.
        tokens: The texts that are asked for; None takes whichever were saved, see `peek`.
        encoder: What the encoder read of each source, for a model that has one: equal tokens of
            another source are another cache.

    Raises:
        RequestError: `encoder` is missing, or given without need.
        SourceError: The file is missing, damaged, no cache, of another version or twin, or of
            another identity or text.
        ShapeError: It was saved from a cache of another form.
    """
    from safetensors import SafetensorError

    check_encoder("load", encoder, None if _source_lengths(like) is None else [])
    try:
        with _open("load", path) as file:
            notes = file.metadata() or {}
            saved = read_notes("load", "torchkv", notes, tenant=identity.tenant)
            check_saved(saved, identity, tokens, encoder, _form(like))
            arrays = {
                name: file.get_tensor(name).to(array.device) for name, array in _named(like).items()
            }
    except SafetensorError as error:
        raise _damaged("load", path, error) from error
    marks = {name: array for name, array in arrays.items() if "." not in name}
    shared = None if like.shared is None else _rebuild(like.shared, "shared.", arrays)
    sites = tuple(_rebuild(site, f"sites.{i}.", arrays) for i, site in enumerate(like.sites))
    cache = Cache(**marks, shared=shared, sites=sites, capacity=like.capacity)
    check_texts("load", saved.tokens, cache.length_B.tolist())
    check_encoder("load", saved.encoder, _source_lengths(cache))
    return cache


def peek(path: str | Path, *, tenant: str = "") -> Saved:
    """Return what a saved cache says of itself: identity, texts and form; no array is read.

    Args:
        path: The file.
        tenant: Whose it is, as `identity_of` was told when it was saved: nobody else is told a
            thing of it.

    Raises:
        SourceError: The file is missing, damaged, no cache, of another version or twin, or of
            another tenant.
    """
    with _open("peek", path) as file:
        return read_notes("peek", "torchkv", file.metadata() or {}, tenant=tenant)


def _open(function: str, path: str | Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise _damaged(function, path, error) from error
    except FileNotFoundError as error:
        raise SourceError(
            f"{function}: {path} does not exist. Was the cache saved there?"
        ) from error
    except OSError as error:
        raise SourceError(
            f"{function}: {path} cannot be read ({error.strerror or error}). Is it a file that you "
            "may read?"
        ) from error


def _damaged(function: str, path: str | Path, error: Exception) -> SourceError:
    return SourceError(
        f"{function}: {path} is damaged or no safetensors file ({error}). Save the cache again."
    )


def _replace(path: Path, data: bytes) -> None:
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


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


def _source_lengths(cache: Cache) -> list[int] | None:
    lengths = (site.source_length_U for site in cache.sites if isinstance(site, CrossSite))
    return next((length_U.tolist() for length_U in lengths), None)


def _form(cache: Cache) -> dict[str, Any]:
    arrays = {
        name: [str(array.dtype).removeprefix("torch."), list(array.shape)]
        for name, array in _named(cache).items()
    }
    parts = [_kind(node) for node in (cache.shared, *cache.sites) if node is not None]
    return {"capacity": cache.capacity, "parts": parts, "arrays": arrays}


def _kind(node: Any) -> str:
    sizes = {name: value for name, value in vars(node).items() if not isinstance(value, Array)}
    return f"{type(node).__name__}({', '.join(f'{n}={v}' for n, v in sizes.items())})"
