"""What pages hold and waste while requests of given lengths are served, counted in a real table.

Requests, a JSON list of [prompt, new], are admitted in their order to `--rows` rows as rows become
free; a step appends the prompts of the rows just admitted, or one token to every row. A request
holds prompt + new - 1 tokens at its end, since its last token is never fed back. After every step
the page table of the paged layout is counted. What is found belongs to these lengths, rows and page
sizes: other requests find other numbers.

Letters: B rows.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.environment import environment
from bench.rows import Row, save
from jaxkv import caches
from jaxkv.caches import Cache, pages
from jaxkv.spec.errors import JaxkvError, RequestError

# What 30 layers of 3 KV heads of width 64 take in float32: SmolLM2-135M.
BYTES_A_TOKEN = 46_080
RECORD = 256
SAYS = "Counted on these lengths, rows and page sizes; others find other numbers."


@dataclass(frozen=True)
class Found:
    """What one page size cost. Means are over the steps; sizes in tokens unless the name says.

    Attributes:
        page_size: Tokens of a page.
        rows: Requests served at once at most.
        capacity: Tokens that a row is made for: the longest request, unless given.
        requests: How many were served.
        steps: How many were counted.
        tokens_mean: Tokens held.
        pages_mean: Pages in use.
        pages_peak: The most pages in use: the smallest pool that serves these requests so.
        partial_mean: Partly filled last pages, at most one a row.
        slack_mean: Slots of pages in use that hold no token.
        slack_share: slack_mean over all slots of pages in use.
        reserved: Slots of a contiguous buffer of `capacity` for every row.
        reserved_slack_mean: Slots of those that hold no token.
        metadata_bytes: Page table, reference counts and marks, once for all layers.
        peak_bytes: Keys and values of pages_peak pages.
        reserved_bytes: Keys and values of the contiguous buffers.
    """

    page_size: int
    rows: int
    capacity: int
    requests: int
    steps: int
    tokens_mean: float
    pages_mean: float
    pages_peak: int
    partial_mean: float
    slack_mean: float
    slack_share: float
    reserved: int
    reserved_slack_mean: float
    metadata_bytes: int
    peak_bytes: int
    reserved_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this benchmark alone takes."""
    parser.add_argument("--lengths", required=True, metavar="FILE", help="JSON: [[prompt, new]]")
    parser.add_argument("--rows", type=int, default=16, help="requests at once (default 16)")
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[16, 64], metavar="P")
    parser.add_argument("--capacity", type=int, help="tokens of a row (default: longest request)")
    parser.add_argument(
        "--bytes-a-token",
        type=int,
        default=BYTES_A_TOKEN,
        metavar="N",
        help=f"of all layers (default {BYTES_A_TOKEN:,}, SmolLM2 in float32)",
    )


def main(options: argparse.Namespace) -> int:
    """Print what was counted for each page size.

    Returns:
        0; 2 if the lengths or an option cannot be.
    """
    try:
        lengths = read_lengths(options.lengths)
        lengths = lengths[:32] if options.quick else lengths
        sizes = {"rows": options.rows, "capacity": options.capacity}
        found = [
            measure(lengths, page_size=size, bytes_a_token=options.bytes_a_token, **sizes)
            for size in options.page_sizes
        ]
    except JaxkvError as error:
        print(error, file=sys.stderr)
        return 2
    console = Console(highlight=False)
    console.print(_table(found, options.lengths))
    console.print(SAYS)
    about = f"pages of {Path(options.lengths).name}, {options.rows} rows"
    rows = [row for each in found for row in rows_of_count(each, Path(options.lengths).stem)]
    save(rows, options, about=about, found=environment(), says=SAYS)
    return 0


def rows_of_count(found: Found, case: str) -> list[Row]:
    """Return what was counted for one page size as rows of a result file."""
    subject = f"pages of {found.page_size}"
    return [
        Row("fragmentation", case, subject, name, _unit(name), value, value, value)
        for name, value in asdict(found).items()
        if name != "page_size"
    ]


def _unit(name: str) -> str:
    if name.endswith("_bytes"):
        return "B"
    return "pages" if name.startswith("pages") else ""


def read_lengths(path: str | Path) -> list[tuple[int, int]]:
    """Return the requests of a file.

    Raises:
        RequestError: The file is no JSON list of pairs of whole numbers of at least 1.
    """
    try:
        pairs = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise RequestError(
            f"fragmentation: {path} cannot be read as JSON ({error}). Give a file with a list of "
            "[prompt, new]."
        ) from error
    if not isinstance(pairs, list) or not pairs:
        raise RequestError(
            f"fragmentation: {path} holds no list of [prompt, new] with an entry. Write one pair "
            "for each request."
        )
    for i, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or not all(_counts(x) for x in pair):
            raise RequestError(
                f"fragmentation: entry {i} of {path} is {pair!r}, expected [prompt, new], whole "
                "numbers of at least 1."
            )
    return [(prompt, new) for prompt, new in pairs]


def measure(
    lengths: Sequence[tuple[int, int]],
    *,
    page_size: int,
    rows: int,
    capacity: int | None = None,
    bytes_a_token: int = BYTES_A_TOKEN,
) -> Found:
    """Return what serving the requests costs in pages of one size.

    Args:
        lengths: Prompt and new tokens of each request, in the order of admission.
        page_size: Tokens of a page.
        rows: Requests served at once at most.
        capacity: Tokens that a row is made for; None is what the longest request holds.
        bytes_a_token: Keys and values of all layers.

    Raises:
        RequestError: rows or page_size is below 1.
        CapacityError: A request does not fit the capacity.
    """
    if rows < 1:
        raise RequestError(f"fragmentation: rows is {rows}, expected at least 1.")
    longest = max(prompt + new - 1 for prompt, new in lengths)
    capacity = longest if capacity is None else capacity
    if longest > capacity:
        raise RequestError(
            f"fragmentation: a request holds {longest} tokens, capacity {capacity}. Raise it by "
            f"{longest - capacity}."
        )
    shared = pages.init_shared(batch=rows, capacity=capacity, page_size=page_size)
    length_B, peak_B, overflow_B = (jnp.zeros((rows,), jnp.int32) for _ in range(3))
    cache = Cache(length_B, peak_B, overflow_B, shared, (), capacity)
    counts = np.concatenate(list(_served(cache, lengths)))
    live, tokens, partly = counts.astype(np.int64).T
    slots = live * page_size
    return Found(
        page_size=page_size,
        rows=rows,
        capacity=capacity,
        requests=len(lengths),
        steps=len(counts),
        tokens_mean=float(tokens.mean()),
        pages_mean=float(live.mean()),
        pages_peak=int(live.max()),
        partial_mean=float(partly.mean()),
        slack_mean=float((slots - tokens).mean()),
        slack_share=float((slots - tokens).sum() / slots.sum()),
        reserved=rows * capacity,
        reserved_slack_mean=float((rows * capacity - tokens).mean()),
        metadata_bytes=caches.nbytes(cache) - 3 * 4 * rows,
        peak_bytes=int(live.max()) * page_size * bytes_a_token,
        reserved_bytes=rows * capacity * bytes_a_token,
    )


def _served(cache: Cache, lengths: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
    """Yield live pages, tokens and partly filled pages after every step, some steps at a time."""
    rows = cache.length_B.shape[0]
    waiting = list(reversed(lengths))
    is_busy_B, left_B = np.zeros(rows, bool), np.zeros(rows, np.int32)
    while waiting or is_busy_B.any():
        count_B = np.zeros(rows, np.int32)
        for row in np.flatnonzero(~is_busy_B)[: len(waiting)]:
            count_B[row], new = waiting.pop()
            left_B[row], is_busy_B[row] = new - 1, True
        if count_B.any():
            cache, counted = _append(cache, jnp.asarray(count_B))
            yield np.asarray(counted)[None]
        while is_busy_B.any() and left_B[is_busy_B].min() > 0:
            steps = min(int(left_B[is_busy_B].min()), RECORD)
            cache, record = _decode(cache, jnp.asarray(is_busy_B), jnp.int32(steps))
            yield np.asarray(record)[:steps]
            left_B[is_busy_B] -= steps
        caches.check(cache)
        is_done_B = is_busy_B & (left_B == 0)
        cache = caches.reset(cache, jnp.asarray(is_done_B))
        is_busy_B &= ~is_done_B


def _step(cache: Cache, count_B: Any, *, T: int) -> tuple[Cache, Any]:
    cache, step = caches.begin(cache, count_B, T=T)
    cache = caches.commit(cache, step, ())
    length_B, size = cache.length_B, cache.shared.page_size
    numbers = (
        jnp.sum(cache.shared.count_A > 0, dtype=jnp.int32),
        jnp.sum(length_B, dtype=jnp.int32),
        jnp.sum(length_B % size > 0, dtype=jnp.int32),
    )
    return cache, jnp.stack(numbers)


@jax.jit
def _append(cache: Cache, count_B: Any) -> tuple[Cache, Any]:
    return _step(cache, count_B, T=cache.capacity)


@partial(jax.jit, donate_argnums=0)
def _decode(cache: Cache, is_busy_B: Any, steps: Any) -> tuple[Cache, Any]:
    def body(i: Any, state: tuple[Cache, Any]) -> tuple[Cache, Any]:
        cache, record = state
        cache, numbers = _step(cache, is_busy_B.astype(jnp.int32), T=1)
        return cache, record.at[i].set(numbers)

    none = jnp.zeros((RECORD, 3), jnp.int32)
    return jax.lax.fori_loop(jnp.int32(0), steps, body, (cache, none))


def _counts(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def _table(found: list[Found], path: str) -> Table:
    first = found[0]
    table = Table(
        title=f"{first.requests} requests of {path} in {first.rows} rows of {first.capacity:,}"
    )
    table.add_column("counted after each step")
    for each in found:
        table.add_column(f"pages of {each.page_size}", justify="right")
    lines = {
        "tokens held, mean": [f"{each.tokens_mean:,.1f}" for each in found],
        "pages in use, mean": [f"{each.pages_mean:,.1f}" for each in found],
        "pages in use, peak": [f"{each.pages_peak:,}" for each in found],
        "partly filled last pages, mean": [f"{each.partial_mean:,.2f}" for each in found],
        "slots of pages without a token, mean": [f"{each.slack_mean:,.1f}" for each in found],
        "and their share of the pages": [f"{each.slack_share:.2%}" for each in found],
        "slots reserved contiguously": [f"{each.reserved:,}" for each in found],
        "of those without a token, mean": [f"{each.reserved_slack_mean:,.1f}" for each in found],
        "bytes of table, counts and marks": [f"{each.metadata_bytes:,}" for each in found],
        "bytes of keys and values, peak": [f"{each.peak_bytes:,}" for each in found],
        "bytes reserved contiguously": [f"{each.reserved_bytes:,}" for each in found],
    }
    for name, cells in lines.items():
        table.add_row(name, *cells)
    return table
