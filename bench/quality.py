"""What a layout that changes results costs in quality, on SmolLM2 against exact, in one run.

One text of filler holds names, each with a word, from its beginning to its end. Loss: mean nats of
that text, fed in chunks, so that most queries read what the layout has kept. Retrieval: each name
again, as it stood in the text; counts the words that come. Where exact answers less than 80 %, it
judges nobody: no variant then has a number. Greedy: how many new tokens are those of exact before
the first other one, and how many agree in place. Beside them the bytes of the cache at the text's
length, as allocated, and the two ratios: of payload, codes against the numbers that they stand for;
and of everything, against contiguous. With `--twin both` each variant runs in both twins, and their
losses and greedy tokens are held against each other.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.rows import Row, missing, report
from bench.usage import positive
from jaxkv.spec import memory
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.compressed_bytes import COMPRESSED, compressed_parts
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.source import open_source, open_tokenizer

CHUNK, DEPTHS, PROMPT = 64, 5, 256
TWINS = ("jaxkv", "torchkv")
# Below this share of right answers of exact, retrieval says nothing about anybody.
JUDGES = 80.0
# Nats between the twins' losses. Their sums differ in order, in float32; a number beside the edge
# between two codes then takes the other one. At 2 bits weights that are off by one rounding (6e-8)
# move one twin's own loss by 0.004 and 0.006, 0.010 between the two draws; exact by 1e-7.
APART = 0.02
NAMES, WORDS = map(str.split, (Path(__file__).parent / "pairs.txt").read_text().splitlines())


@dataclass(frozen=True)
class Variant:
    """One layout as it is judged.

    Attributes:
        name: As in the results.
        layout: Of the cache.
        options: Of the layout.
    """

    name: str
    layout: str
    options: dict[str, Any]


def _kivi(bits: int, residual: int, order: str) -> Variant:
    options = {"bits": bits, "group_size": 32, "residual_length": residual, "order": order}
    name = f"{bits} bits, {order}, residual {residual}"
    return Variant(name, "quantized", options)


VARIANTS = (
    Variant("exact", "contiguous", {}),
    Variant("int8", "quantized", {"bits": 8}),
    Variant("fp8", "quantized", {"bits": "fp8"}),
    *(_kivi(b, r, o) for o in ("chunk_invariant", "kivi") for b in (4, 2) for r in (32, 128)),
    # Smaller than the prompt, so that every greedy token is drawn after tokens were dropped.
    Variant("sinks 4 + 236", "sinks", {"sinks": 4, "window": 236}),
    Variant("absolute 4 + 236", "sinks_absolute", {"sinks": 4, "window": 236}),
    Variant("sinks 4 + 508", "sinks", {"sinks": 4, "window": 508}),
    Variant("absolute 4 + 508", "sinks_absolute", {"sinks": 4, "window": 508}),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this benchmark alone takes."""
    parser.add_argument("--twin", choices=(*TWINS, "both"), default="jaxkv")
    parser.add_argument("--variants", nargs="+", choices=[v.name for v in VARIANTS])
    parser.add_argument("--tokens", type=positive, default=2000, help="of the text")
    parser.add_argument(
        "--pairs", type=positive, default=50, help=f"in the text, of at most {len(NAMES)}"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the pairs")
    parser.add_argument("--new", type=positive, default=256, help="greedy tokens")


def main(options: argparse.Namespace) -> int:
    """Print the table.

    Returns:
        0; 1 if both twins ran and their losses are further apart than `APART`.
    """
    if options.quick:
        options.tokens, options.pairs, options.new = 500, 10, 32
    checkpoint = open_source("smollm2")
    tokenizer = open_tokenizer(checkpoint)
    names = TWINS if options.twin == "both" else (options.twin,)
    judges = [Judge(twin, checkpoint, tokenizer, options) for twin in names]
    asked = [v for v in VARIANTS if not options.variants or v.name in (*options.variants, "exact")]
    rows, agree = table(judges, asked)
    report(rows, options, about=f"quality, SmolLM2-135M, float32, {options.twin}")
    if len(judges) > 1:
        print("the twins AGREE" if agree else f"the twins DISAGREE by more than {APART} nats")
    return int(not agree)


def table(judges: Sequence["Judge"], variants: Sequence[Variant]) -> tuple[list[Row], bool]:
    """Return the rows of all variants, the first of them exact, and whether the twins agree."""
    rows, agree = [], True
    for variant in variants:
        found = [judge.judged(variant) for judge in judges]
        for judge, each in zip(judges, found, strict=True):
            print(f"{judge.twin} {variant.name}: {each.numbers}", file=sys.stderr)
            rows += rows_of(f"{variant.name}, {judge.twin}", each, judge.exact_retrieval)
        if len(found) > 1:
            apart, alike = compare(*found)
            rows.append(_row(variant.name, "loss, twins apart", "nats", apart))
            rows.append(_row(variant.name, "greedy, twins in place", "%", alike))
            # Not `apart > APART`, which NaN would pass.
            agree &= apart <= APART
    return rows, agree


@dataclass(frozen=True)
class Found:
    """What one variant of one twin showed.

    Attributes:
        numbers: Metric and unit -> value.
        new: Greedy tokens.
        retrieval: Percent of the questions that were answered.
    """

    numbers: dict[tuple[str, str], float]
    new: list[int]
    retrieval: float


def rows_of(subject: str, found: Found, exact_retrieval: float) -> list[Row]:
    """Return the rows of one variant; retrieval is none where exact itself does not retrieve."""
    rows = [_row(subject, *name, value) for name, value in found.numbers.items()]
    if exact_retrieval >= JUDGES:
        return [*rows, _row(subject, "retrieval", "%", found.retrieval)]
    note = (
        f"exact answers {exact_retrieval:.0f} %, less than {JUDGES:.0f} %: this model cannot show "
        "what a cache does to retrieval"
    )
    return [*rows, missing("quality", "smollm2", subject, "retrieval", "%", note)]


def compare(left: Found, right: Found) -> tuple[float, float]:
    """Return how far apart two losses are, and the percent of greedy tokens that are the same."""
    apart = abs(left.numbers["loss", "nats"] - right.numbers["loss", "nats"])
    alike = [a == b for a, b in zip(left.new, right.new, strict=True)]
    return apart, 100 * sum(alike) / len(alike)


def ratios(config: ModelConfig, variant: Variant, tokens: int) -> dict[tuple[str, str], float]:
    """Return the payload ratio, of codes, and the total ratio against contiguous, in float32."""
    if variant.layout not in COMPRESSED:
        return {}
    sizes: dict[str, Any] = {"batch": 1, "tokens": tokens, "itemsize": 4}
    parts = compressed_parts(config, **sizes, layout=variant.layout, options=variant.options)
    found = {("total ratio", "x"): memory.model_cache_bytes(config, **sizes) / parts.total_bytes}
    if parts.code_bytes:
        found["payload ratio", "x"] = parts.coded_bytes / parts.code_bytes
    return found


def _row(subject: str, metric: str, unit: str, value: float) -> Row:
    return Row("quality", "smollm2", subject, metric, unit, value, value, value)


class Judge:
    """One twin's model, the texts, and what exact said."""

    def __init__(
        self, twin: str, checkpoint: Checkpoint, tokenizer: Any, options: argparse.Namespace
    ):
        self.twin, self.options, self.tokenizer = twin, options, tokenizer
        self.config = checkpoint.config
        self.kind = importlib.import_module(f"{twin}.subject").Subject
        self.model = importlib.import_module(f"{twin}.weights").from_arrays(
            checkpoint.config, checkpoint.weights, interleaved_qk=checkpoint.interleaved_qk
        )
        self.nbytes = importlib.import_module(f"{twin}.caches").nbytes
        text = (Path(__file__).parent / "prompt.txt").read_text()
        self.ids = self.tokenizer.encode(text)
        self.owed: list[int] = []
        self.exact_retrieval = 0.0

    def judged(self, variant: Variant) -> Found:
        """Return everything that is judged; the first variant to be asked for is exact."""
        subject = self.kind(self.model, layout=variant.layout, layout_options=variant.options)
        text, asked = self._text()
        capacity = len(text) + CHUNK
        numbers = {("cache", "MiB"): self.nbytes(subject.init(1, capacity)) / 2**20}
        numbers |= ratios(self.config, variant, capacity)
        numbers["loss", "nats"], state = self.read(subject, text, capacity)
        # What judges nobody is not asked.
        is_asked = not self.owed or self.exact_retrieval >= JUDGES
        retrieval = self.retrieved(subject, state, asked) if is_asked else 0.0
        new = subject.generate([self.ids[:PROMPT]], self.options.new).new_tokens[0]
        if not self.owed:
            self.owed, self.exact_retrieval = new, retrieval
        alike = [a == b for a, b in zip(new, self.owed, strict=True)]
        first = [*alike, False].index(False)
        numbers["greedy, before the first other", "tokens"] = float(first)
        numbers["greedy, in place", "%"] = 100 * sum(alike) / len(alike)
        return Found(numbers, new, retrieval)

    def read(self, subject: Any, text: list[int], capacity: int) -> tuple[float, Any]:
        """Return the mean nats of the text's tokens, fed in chunks, and the state after them."""
        ids, nats = np.array(text)[None], []
        state = subject.init(1, capacity)
        for at in range(0, ids.shape[1], CHUNK):
            logits, state = subject.step(state, ids[:, at : at + CHUNK])
            own = ids[0, at + 1 : at + 1 + CHUNK]
            nats.append(_nats(logits[0, : len(own)], own))
        return float(np.concatenate(nats).mean()), state

    def retrieved(
        self, subject: Any, state: Any, asked: list[tuple[list[int], list[int]]]
    ) -> float:
        """Return the percent of names behind which their word comes, and print it by depth."""
        right = []
        for question, answer in asked:
            logits, branch = subject.step(subject.fork(state), np.array([question]))
            said = [int(logits[0, -1].argmax())]
            for _ in answer[1:]:
                logits, branch = subject.step(branch, np.array([said[-1:]]))
                said.append(int(logits[0, -1].argmax()))
            right.append(said == answer)
        by_depth = [100 * float(np.mean(part)) for part in np.array_split(right, DEPTHS)]
        print(f"{subject.name}: right by depth {by_depth} %", file=sys.stderr)
        return 100 * float(np.mean(right))

    def _text(self) -> tuple[list[int], list[tuple[list[int], list[int]]]]:
        """Return the text's ids, and the ids of each question and its answer."""
        rng, encode = np.random.default_rng(self.options.seed), self.tokenizer.encode
        names = rng.permutation(NAMES)[: self.options.pairs]
        words = rng.choice(WORDS, self.options.pairs)
        pairs = list(zip(names, words, strict=True))
        facts = [encode(f"\n{name} = {word}\n") for name, word in pairs]
        filler = self.ids[: self.options.tokens - sum(map(len, facts))]
        ids: list[int] = []
        for i, fact in enumerate(facts):
            start, end = (len(filler) * n // len(facts) for n in (i, i + 1))
            middle = (start + end) // 2
            ids += [*filler[start:middle], *fact, *filler[middle:end]]
        return ids, [(encode(f"\n{name} ="), encode(f" {word}")) for name, word in pairs]


def _nats(logits_TV: np.ndarray, own_T: np.ndarray) -> np.ndarray:
    wide = logits_TV.astype(np.float64)
    peak = wide.max(axis=-1)
    total = np.log(np.exp(wide - peak[:, None]).sum(axis=-1)) + peak
    return total - wide[np.arange(len(own_T)), own_T]
