"""What a model and its cache take, and how many scores attention computes: exact whole numbers.

Bytes = batch x layers x tokens x KV heads x (key width + value width) x bytes an element: KV heads,
never query heads. A latent is one head whose values are part of its key. What an allocator adds
comes on top, and so do pages that are not full, scales and workspace. Scores are counted per layer
and query head; they are neither FLOPs nor time.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation, localcontext
from fractions import Fraction
from typing import Any

from jaxkv.spec.compressed_bytes import COMPRESSED, compressed_parts
from jaxkv.spec.config import Layer, ModelConfig
from jaxkv.spec.errors import RequestError
from jaxkv.spec.weight_shapes import weight_shapes
from jaxkv.spec.whole import check_whole

ITEMSIZES = {"float32": 4, "bfloat16": 2, "float64": 8}
"""Bytes an element of each dtype."""
LAYOUTS = ("contiguous", "paged", "window", *COMPRESSED)
PAGE_SIZE = 16
"""Tokens of a page unless said."""
_BOOKKEEPING_BYTES_A_ROW = 3 * 4
_UNITS = {"": 1, "B": 1} | {
    f"{letter}{kind}B": (1024 if kind else 1000) ** power
    for power, letter in enumerate("KMGT", 1)
    for kind in ("", "i")
}


def cache_bytes(
    *,
    layers: int,
    tokens: int,
    kv_heads: int,
    key_width: int,
    value_width: int,
    itemsize: int,
    batch: int = 1,
) -> int:
    """Return the bytes of keys and values of equal layers.

    Args:
        layers: How many.
        tokens: Of each row.
        kv_heads: Key/value heads, not query heads.
        key_width: Of one head.
        value_width: Of one head; it may differ.
        itemsize: Bytes an element.
        batch: Rows.
    """
    return batch * layers * tokens * kv_heads * (key_width + value_width) * itemsize


def latent_bytes(
    *, layers: int, tokens: int, latent: int, rotary: int, itemsize: int, batch: int = 1
) -> int:
    """Return the bytes of a latent cache: one joint latent and one rotary key a token and layer."""
    return batch * layers * tokens * (latent + rotary) * itemsize


def weight_bytes(parameters: int, itemsize: int) -> int:
    """Return the bytes of so many parameters."""
    return parameters * itemsize


def num_parameters(config: ModelConfig) -> int:
    """Return how many numbers a model has, a tied head counted once."""
    return sum(math.prod(shape) for shape in weight_shapes(config).values())


def model_cache_bytes(
    config: ModelConfig,
    *,
    batch: int,
    tokens: int,
    itemsize: int,
    layout: str = "contiguous",
    slack: int = 0,
    options: Mapping[str, Any] | None = None,
    page_size: int = PAGE_SIZE,
    pool_pages: int | None = None,
) -> int:
    """Return the bytes of the keys and values of a model, layer by layer.

    Args:
        config: The model's sizes; layers may differ.
        batch: Rows.
        tokens: Of each row; for buffers, their capacity.
        itemsize: Bytes an element.
        layout: "contiguous"; "window": rings of window + slack slots where a layer has a window;
            "paged": a pool of pages, the trash page among them; or one of those that keep less, see
            `compressed_parts`.
        slack: Tokens that a ring can roll back.
        options: Of a layout that keeps less.
        page_size: Tokens of a page.
        pool_pages: Pages beside the trash page; None for as many as all rows need.

    Raises:
        RequestError: The layout is none of these, the page size below 1, or an option out of range.
    """
    if layout not in LAYOUTS:
        raise RequestError(
            f"model_cache_bytes: layout is {layout!r}, expected one of {', '.join(LAYOUTS)}."
        )
    if layout in COMPRESSED:
        sizes = {"batch": batch, "tokens": tokens, "itemsize": itemsize, "slack": slack}
        return compressed_parts(config, **sizes, layout=layout, options=options).total_bytes
    if layout == "paged":
        usable = batch * pages_for(tokens, page_size) if pool_pages is None else pool_pages
        # Pages belong to no row: to the arithmetic they are one row of all slots of the pool.
        batch, tokens = 1, (usable + 1) * page_size
    return sum(
        cache_bytes(
            layers=1,
            tokens=_slots(layer, tokens, layout, slack),
            kv_heads=layer.attention.num_kv_heads,
            key_width=layer.attention.head_dim,
            value_width=layer.attention.stored_value_width,
            itemsize=itemsize,
            batch=batch,
        )
        for layer in config.layers
    )


def expanded_cache_bytes(config: ModelConfig, *, batch: int, tokens: int, itemsize: int) -> int:
    """Return the bytes of the keys and values of every query head, none shared, latents expanded.

    The baseline of savings: what the same model would keep as multi-head attention.
    """
    return sum(
        cache_bytes(
            layers=1,
            tokens=tokens,
            kv_heads=attention.num_heads,
            key_width=attention.query_width,
            value_width=attention.value_width,
            itemsize=itemsize,
            batch=batch,
        )
        for attention in (layer.attention for layer in config.layers)
    )


def source_bytes(config: ModelConfig, *, batch: int, tokens: int, itemsize: int) -> int:
    """Return the bytes that cross attentions hold of texts which an encoder has read.

    Keys and values, and of each attention and text an int32 length; 0 without an encoder. They come
    on top of `model_cache_bytes` and do not grow with the decoder's tokens.

    Args:
        config: The model's sizes.
        batch: Texts: rows, or fewer where rows share one.
        tokens: Of each text; for buffers, their capacity.
        itemsize: Bytes an element.
    """
    sites = [layer.cross for layer in config.layers if layer.cross is not None]
    held = sum(
        cache_bytes(
            layers=1,
            tokens=tokens,
            kv_heads=a.num_kv_heads,
            key_width=a.head_dim,
            value_width=a.head_dim,
            itemsize=itemsize,
            batch=batch,
        )
        for a in sites
    )
    return held + 4 * batch * len(sites)


def _slots(layer: Layer, tokens: int, layout: str, slack: int) -> int:
    window = layer.attention.window
    return tokens if window is None or layout != "window" else min(window + slack, tokens)


def bookkeeping_bytes(batch: int) -> int:
    """Return the bytes of lengths and marks, once a cache: three int32 a row."""
    return _BOOKKEEPING_BYTES_A_ROW * batch


def page_table_bytes(
    *, batch: int, tokens: int, page_size: int = PAGE_SIZE, pool_pages: int | None = None
) -> int:
    """Return the bytes of a page table, once a cache and beside `bookkeeping_bytes`, all int32.

    A page for each row and column, a count for each page of the pool and the trash page, a mark a
    row, and one counter of copies.

    Args:
        batch: Rows.
        tokens: Of each row: the capacity.
        page_size: Tokens of a page.
        pool_pages: Pages beside the trash page; None for as many as all rows need.

    Raises:
        RequestError: The page size is no whole number, or below 1.
    """
    columns = pages_for(tokens, page_size)
    usable = batch * columns if pool_pages is None else pool_pages
    return 4 * (batch * columns + usable + 1 + batch + 1)


def pages_for(tokens: int, page_size: int) -> int:
    """Return the pages that so many tokens of a row take.

    Raises:
        RequestError: The page size is no whole number, or below 1.
    """
    check_whole("memory", "page_size", page_size, least=1)
    return -(-tokens // page_size)


def equal_length(size_bytes: int, bytes_at: Callable[[int], int], *, most: int) -> int | None:
    """Return the first length at which a cache takes at least so many bytes; None up to `most`.

    Args:
        size_bytes: Of the weights, for instance.
        bytes_at: Bytes of the cache at a length; never falls.
        most: The longest length to look at.
    """
    if bytes_at(most) < size_bytes:
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bytes_at(middle) >= size_bytes else (middle + 1, high)
    return low


@dataclass(frozen=True)
class Fit:
    """How many requests fit: (usable - weights - workspace - reserve) / one request, rounded down.

    Attributes:
        usable_bytes: Memory that the process can have.
        weights_bytes: Of the model.
        workspace_bytes: For what a step computes.
        reserve_bytes: For others.
        request_bytes: The cache of one request.
    """

    usable_bytes: int
    weights_bytes: int
    workspace_bytes: int
    reserve_bytes: int
    request_bytes: int

    @property
    def left_bytes(self) -> int:
        """What remains for caches; negative if nothing does."""
        return self.usable_bytes - self.weights_bytes - self.workspace_bytes - self.reserve_bytes

    @property
    def requests(self) -> int:
        """How many requests fit."""
        return max(0, self.left_bytes // self.request_bytes)

    @property
    def fault(self) -> str | None:
        """Why nothing can fit before any cache; None if something can."""
        if self.weights_bytes > self.usable_bytes:
            return (
                f"the weights alone, {self.weights_bytes:,} bytes, exceed the usable memory, "
                f"{self.usable_bytes:,}"
            )
        if self.left_bytes < 0:
            return f"weights, workspace and reserve exceed the memory by {-self.left_bytes:,} bytes"
        return None


def saving(size_bytes: int, *, baseline_bytes: int) -> Fraction:
    """Return the share of a baseline that is saved; say which baseline wherever it is shown."""
    return 1 - Fraction(size_bytes, baseline_bytes)


def percent(share: Fraction) -> str:
    """Return a share in percent, all its digits if they end, else rounded to four with a tilde."""
    scaled = share * 100
    rest = scaled.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    with localcontext() as context:
        context.prec = 100
        exact = Decimal(scaled.numerator) / Decimal(scaled.denominator)
        return f"{exact.normalize():f} %" if rest == 1 else f"~{exact:.4f} %"


def parse_bytes(option: str, text: str) -> int:
    """Return the bytes that a text such as "40GiB", "80e9" or "1.5 GB" says, rounded down.

    Raises:
        RequestError: It is no number of at least 0 with a known unit.
    """
    compact = text.replace(" ", "").replace(",", "").replace("_", "")
    digits = compact.rstrip("BbiKkMmGgTt")
    unit = compact[len(digits) :].upper().replace("I", "i")
    try:
        number = Decimal(digits)
    except InvalidOperation:
        number = Decimal(-1)
    # The exponent first: a whole number of 10^999999999 would never be finished.
    if not number.is_finite() or number.adjusted() > 30 or number < 0 or unit not in _UNITS:
        raise RequestError(
            f"memory: {option} is {text[:40]!r}, expected bytes such as 40GiB, 512MiB or 80e9."
        )
    return int(Fraction(number) * _UNITS[unit])


def cached_scores(n: int, *, prompt: int = 0, window: int | None = None) -> int:
    """Return the scores of n tokens fed with a cache after a prompt: the sum of min(t, W).

    n(n + 1)/2 without prompt and window; n*P + n(n + 1)/2 with a prompt of P, whose own pairs are
    `cached_scores(P)`. Generating N tokens feeds N - 1, the last is never fed back.
    """
    return _seen(prompt + n, window) - _seen(prompt, window)


def uncached_squares(n: int, *, prompt: int = 0) -> int:
    """Return the scores of n forwards of lengths P + 1 .. P + n, full squares counted.

    n(n + 1)(2n + 1)/6 without prompt.
    """
    return _squares(prompt + n) - _squares(prompt)


def uncached_pairs(n: int, *, prompt: int = 0) -> int:
    """Return the scores of n forwards of lengths P + 1 .. P + n, causal pairs counted.

    n(n + 1)(n + 2)/6 without prompt.
    """
    return _tetrahedron(prompt + n) - _tetrahedron(prompt)


def _seen(n: int, window: int | None) -> int:
    full = n if window is None else min(n, window)
    return full * (full + 1) // 2 + (n - full) * full


def _squares(n: int) -> int:
    return n * (n + 1) * (2 * n + 1) // 6


def _tetrahedron(n: int) -> int:
    return n * (n + 1) * (n + 2) // 6
