"""The command `memory`: what a request's cache takes, and how many requests fit."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from jaxkv.spec import memory
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError
from jaxkv.spec.memory_examples import beyond, examples, score_counts
from jaxkv.spec.source import open_source

_LONGEST = 1 << 60


@dataclass(frozen=True)
class MemoryReport:
    """The arithmetic of one model as `--json` prints it; sizes in bytes.

    Attributes:
        parameters: A tied head counted once.
        weights_bytes: In the dtype asked for.
        request_bytes: Keys and values of one row of that length, those of an encoder's text too.
        cache_bytes: Of all rows, with lengths and marks.
        equal_length: First length at which the keys and values of all rows take at least as much as
            the weights; None if windows keep them below.
        equal_note: What must be said of that length; '' for nothing.
        note: What must be said of the length asked for; '' for nothing.
        baseline: What the saving is against; '' when every query head has its own keys.
        saving: Of keys and values against the baseline, in percent; '' without one.
        scores: Scores of one row per layer and query head, by how they are computed.
        usable_bytes: Memory given; None without `--memory`, and so are those below.
        workspace_bytes: As given.
        reserve_bytes: As given.
        left_bytes: Usable - weights - workspace - reserve.
        requests: left / request, rounded down, at least 0.
        fault: Why nothing fits before any cache.
    """

    model: str
    dtype: str
    layout: str
    batch: int
    length: int
    parameters: int
    weights_bytes: int
    request_bytes: int
    cache_bytes: int
    equal_length: int | None
    equal_note: str
    note: str
    baseline: str
    saving: str
    scores: dict[str, int]
    usable_bytes: int | None = None
    workspace_bytes: int | None = None
    reserve_bytes: int | None = None
    left_bytes: int | None = None
    requests: int | None = None
    fault: str | None = None


def add(commands: Any) -> None:
    """Add the command to a program's parsers."""
    parser = commands.add_parser("memory", help="count the bytes of a model and its cache")
    parser.add_argument("model", nargs="?", help="as for generate")
    parser.add_argument("--examples", action="store_true", help="print known cases and counts")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="rows (default 1)")
    parser.add_argument("--length", type=int, metavar="T", help="tokens of a row")
    parser.add_argument("--source-length", type=int, metavar="E", help="of an encoder's text (T)")
    parser.add_argument("--dtype", choices=tuple(memory.ITEMSIZES), default="float32")
    parser.add_argument("--layout", choices=memory.LAYOUTS, default="contiguous")
    parser.add_argument("--page-size", type=int, metavar="P", help="of the layout paged")
    parser.add_argument("--memory", metavar="BYTES", help="usable memory, for instance 40GiB")
    parser.add_argument("--workspace", default="0", metavar="BYTES", help="for a step's results")
    parser.add_argument("--reserve", default="0", metavar="BYTES", help="for others")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the examples, or the arithmetic of one model.

    Raises:
        JaxkvError: The model cannot be opened, or an option is out of range.
    """
    if options.examples:
        _show_examples(as_json=options.json)
        return
    if options.model is None:
        raise RequestError("memory: model is missing. Name one, or ask for --examples.")
    _check_counts(options)
    given = {
        name: memory.parse_bytes(f"--{name}", getattr(options, name))
        for name in ("memory", "workspace", "reserve")
        if getattr(options, name) is not None
    }
    report = measure(
        open_source(options.model).config,
        model=options.model,
        dtype=options.dtype,
        layout=options.layout,
        batch=options.batch,
        length=options.length,
        page_size=options.page_size,
        source_length=options.source_length,
    )
    if "memory" in given:
        report = fit(report, given["memory"], given["workspace"], given["reserve"])
    print(json.dumps(asdict(report)) if options.json else "\n".join(_lines(report)))


def measure(
    config: ModelConfig,
    *,
    model: str,
    dtype: str,
    layout: str,
    batch: int,
    length: int,
    page_size: int | None = None,
    source_length: int | None = None,
) -> MemoryReport:
    """Return the arithmetic of one model, without the memory that it would have.

    Of a model with an encoder a request holds a text of source_length besides, by default `length`.

    Raises:
        RequestError: source_length is given, and there is no encoder; a page size below 1, or of a
            layout without pages.
    """
    if page_size is not None and layout != "paged":
        raise RequestError(
            f"memory: --page-size is {page_size}, but --layout is {layout}. Leave it out, or set "
            "--layout paged."
        )
    size = memory.PAGE_SIZE if page_size is None else page_size
    if source_length is not None and config.encoder is None:
        raise RequestError(
            f"memory: --source-length is {source_length}, but {model!r} has no encoder. Leave it "
            "out."
        )
    source = length if source_length is None else source_length
    itemsize = memory.ITEMSIZES[dtype]
    weights = memory.weight_bytes(memory.num_parameters(config), itemsize)

    def bytes_at(tokens: int, rows: int = batch) -> int:
        own = memory.model_cache_bytes(
            config, batch=rows, tokens=tokens, itemsize=itemsize, layout=layout, page_size=size
        )
        return own + memory.source_bytes(config, batch=rows, tokens=source, itemsize=itemsize)

    # A request takes its pages; the trash page is there once, whoever comes.
    request, table = bytes_at(length, 1), 0
    if layout == "paged":
        request -= memory.model_cache_bytes(
            config, batch=1, tokens=0, itemsize=itemsize, layout=layout, page_size=size
        )
        table = memory.page_table_bytes(batch=batch, tokens=length, page_size=size)
    baseline, saved = _against_multi_head(config, length, itemsize)
    equal = memory.equal_length(weights, bytes_at, most=_LONGEST)
    return MemoryReport(
        model=model,
        dtype=dtype,
        layout=layout,
        batch=batch,
        length=length,
        parameters=memory.num_parameters(config),
        weights_bytes=weights,
        request_bytes=request,
        cache_bytes=bytes_at(length) + memory.bookkeeping_bytes(batch) + table,
        equal_length=equal,
        equal_note="" if equal is None else beyond(equal, config.max_positions),
        note=beyond(length, config.max_positions),
        baseline=baseline,
        saving=saved,
        scores=score_counts(length),
    )


def fit(report: MemoryReport, usable: int, workspace: int, reserve: int) -> MemoryReport:
    """Return the report with how many requests fit into a memory."""
    found = memory.Fit(usable, report.weights_bytes, workspace, reserve, report.request_bytes)
    return replace(
        report,
        usable_bytes=usable,
        workspace_bytes=workspace,
        reserve_bytes=reserve,
        left_bytes=found.left_bytes,
        requests=found.requests,
        fault=found.fault,
    )


def _against_multi_head(config: ModelConfig, tokens: int, itemsize: int) -> tuple[str, str]:
    ours, theirs = (
        count(config, batch=1, tokens=tokens, itemsize=itemsize)
        for count in (memory.model_cache_bytes, memory.expanded_cache_bytes)
    )
    if ours == theirs:
        return "", ""
    baseline = "the same model with as many KV heads as query heads"
    if any(layer.attention.latent is not None for layer in config.layers):
        baseline = "the same model with the keys and values of every head, which its latents make"
    return baseline, memory.percent(memory.saving(ours, baseline_bytes=theirs))


def _check_counts(options: argparse.Namespace) -> None:
    if options.length is None:
        raise RequestError("memory: --length is missing, expected at least 1. Give --length.")
    for name in ("batch", "length", "source_length"):
        value = getattr(options, name)
        if value is None:
            continue
        name = name.replace("_", "-")
        if not 1 <= value <= 1 << 40:
            raise RequestError(f"memory: --{name} is {value}, expected 1 to {1 << 40}.")


def _lines(r: MemoryReport) -> Iterator[str]:
    note = f" ({r.note})" if r.note else ""
    yield f"{r.model}: {r.dtype}, {r.layout}, {r.batch} rows of {r.length:,} tokens{note}"
    yield f"weights       {r.weights_bytes:>20,} bytes, {r.parameters:,} parameters"
    yield f"one request   {r.request_bytes:>20,} bytes of keys and values"
    yield f"cache         {r.cache_bytes:>20,} bytes, {r.batch} rows with lengths and marks"
    if r.baseline:
        yield f"saving        {r.saving:>20} against {r.baseline}"
    if r.equal_length is None:
        yield "cache equals weights at no length: every layer has a window"
    else:
        note = f" ({r.equal_note})" if r.equal_note else ""
        yield f"cache equals weights from {r.equal_length:,} tokens a row on{note}"
    for name, count in r.scores.items():
        yield f"scores        {count:>20,} a layer and query head, {name}"
    if r.requests is None:
        return
    yield (
        f"requests      {r.requests:>20,} = ({r.usable_bytes:,} usable - {r.weights_bytes:,} "
        f"weights - {r.workspace_bytes:,} workspace - {r.reserve_bytes:,} reserve) / "
        f"{r.request_bytes:,}, at least 0"
    )
    if r.fault:
        yield f"nothing fits: {r.fault}"


def _show_examples(*, as_json: bool) -> None:
    counts = {n: score_counts(n) for n in (500, 2048)}
    if as_json:
        print(json.dumps({"examples": [asdict(each) for each in examples()], "scores": counts}))
        return
    for each in examples():
        print(f"{each.size_bytes:>16,} bytes  {each.case}{each.note and f' ({each.note})'}")
    for n, scores in counts.items():
        for name, count in scores.items():
            print(f"{count:>16,} scores {n} tokens, a layer and query head, {name}")
