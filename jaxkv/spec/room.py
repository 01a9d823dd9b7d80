"""Whether a request can fit into a machine's memory at all, asked before anything is made for it.

What is counted is less than what a run takes, so that nothing is refused that could fit.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import CapacityError, RequestError
from jaxkv.spec.memory import ITEMSIZES, LAYOUTS, model_cache_bytes

# What a container may take, where there is such a limit.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_bytes() -> int | None:
    """Return the memory of this machine, or of this container; None where neither is told."""
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, OSError, ValueError):
        found = []
    for path in _LIMITS:
        try:
            found.append(int(Path(path).read_text("ascii")))
        except (OSError, ValueError):
            continue  # there is none, or "max"
    return min(found, default=None)


def check_room(
    function: str,
    asked: str,
    config: ModelConfig,
    *,
    rows: int,
    tokens: int,
    dtype: str,
    options: Mapping[str, Any],
    room_bytes: int | None,
    advice: str,
) -> None:
    """Refuse a request whose keys, values and logits exceed a memory.

    Args:
        function: For messages, as are the next two and `advice`.
        asked: What was asked for: "samples is 1000000".
        config: The model's sizes.
        rows: Of the cache while it steps.
        tokens: Of each row.
        dtype: Of keys and values, by name.
        options: Layout, slack, page size and pool of the cache, and what its layout alone takes.
        room_bytes: Of the memory; None if it is not known.
        advice: The next step.

    Raises:
        CapacityError: They do.
    """
    if room_bytes is None:
        return
    itemsize = ITEMSIZES[dtype]
    need = rows * config.vocab_size * itemsize + _cache_bytes(config, rows, tokens, dtype, options)
    if need > room_bytes:
        raise CapacityError(
            f"{function}: {asked}: keys, values and logits of {rows:,} rows of {tokens:,} tokens "
            f"take {need:,} bytes, expected at most {room_bytes:,}, the memory. {advice}."
        )


def _cache_bytes(
    config: ModelConfig, rows: int, tokens: int, dtype: str, options: Mapping[str, Any]
) -> int:
    known = ("layout", "slack", "page_size", "pool_pages")
    sizes = {name: options[name] for name in known if options.get(name) is not None}
    if sizes.get("layout", "contiguous") not in LAYOUTS:
        return 0
    own = {name: value for name, value in options.items() if name not in known}
    own.pop("source_capacity", None)
    try:
        return model_cache_bytes(
            config, batch=rows, tokens=tokens, itemsize=ITEMSIZES[dtype], options=own, **sizes
        )
    except RequestError:
        return 0  # an option out of range, which the layout itself refuses
