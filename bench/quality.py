"""What a layout that changes results costs in quality, on SmolLM2 against exact, in one run.

Loss: mean nats of a text fed in chunks, so that most queries read what the layout has kept.
Greedy: how many new tokens are those of exact before the first other one, and how many agree in
place. Retrieval: texts of filler with a name and a number at five depths, each number asked for by
the same words; counts exact answers. Where exact answers less than 80 %, it judges nobody. Beside
them the bytes of the cache at the text's length, as allocated.
"""

import argparse
import importlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.rows import Row, report
from jaxkv.spec.source import open_source, open_tokenizer

CHUNK, DEPTHS = 64, 5
NAMES = [
    "Arlen",
    "Bruna",
    "Caspar",
    "Dalia",
    "Edwin",
    "Freya",
    "Gideon",
    "Helga",
    "Ivar",
    "Joran",
    "Katla",
    "Lothar",
    "Mirela",
    "Nestor",
    "Oswin",
    "Petra",
    "Quentin",
    "Rosalind",
    "Sigmund",
    "Thea",
    "Ulric",
    "Verena",
    "Wendell",
    "Ximena",
    "Yorick",
    "Zelda",
    "Anselm",
    "Brigid",
    "Conrad",
    "Dorothea",
    "Emeric",
    "Fabiola",
    "Gunther",
    "Hedwig",
    "Isolde",
    "Jasper",
    "Klara",
    "Leopold",
    "Margot",
    "Norbert",
    "Odile",
    "Pascal",
    "Ramona",
    "Silvan",
    "Tabitha",
    "Urban",
    "Viola",
    "Walter",
    "Xaver",
    "Yvonne",
]


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
    Variant("sinks 4 + 508", "sinks", {"sinks": 4, "window": 508}),
    Variant("absolute 4 + 508", "sinks_absolute", {"sinks": 4, "window": 508}),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this benchmark alone takes."""
    parser.add_argument("--twin", choices=("jaxkv", "torchkv"), default="jaxkv")
    parser.add_argument("--variants", nargs="+", choices=[v.name for v in VARIANTS])
    parser.add_argument("--tokens", type=int, default=2000, help="of a retrieval text")
    parser.add_argument("--texts", type=int, default=10, help="retrieval texts of 5 pairs each")
    parser.add_argument("--new", type=int, default=256, help="greedy tokens")


def main(options: argparse.Namespace) -> int:
    """Print the table.

    Returns:
        0.
    """
    if options.quick:
        options.tokens, options.texts, options.new = 500, 1, 32
    judge = Judge(options)
    rows: list[Row] = []
    for variant in VARIANTS:
        if options.variants and variant.name not in (*options.variants, "exact"):
            continue
        found = judge.judged(variant)
        rows += [_row(variant.name, *each) for each in found]
        print(
            variant.name, *(f"{name} {value:g} {unit};" for name, unit, value in found), flush=True
        )
    report(rows, options, about=f"quality, SmolLM2-135M, float32, {options.twin}")
    return 0


def _row(subject: str, metric: str, unit: str, value: float) -> Row:
    return Row("quality", "smollm2", subject, metric, unit, value, value, value)


class Judge:
    """One twin's SmolLM2, the texts, and what exact said."""

    def __init__(self, options: argparse.Namespace):
        checkpoint = open_source("smollm2")
        self.options = options
        self.tokenizer = open_tokenizer(checkpoint)
        self.kind = importlib.import_module(f"{options.twin}.subject").Subject
        self.model = importlib.import_module(f"{options.twin}.weights").from_arrays(
            checkpoint.config, checkpoint.weights, interleaved_qk=checkpoint.interleaved_qk
        )
        self.nbytes = importlib.import_module(f"{options.twin}.caches").nbytes
        text = (Path(__file__).parent / "prompt.txt").read_text()
        self.ids = self.tokenizer.encode(text)
        self.owed: list[int] = []

    def judged(self, variant: Variant) -> list[tuple[str, str, float]]:
        """Return metric, unit and value of everything that is judged."""
        subject = self.kind(self.model, layout=variant.layout, layout_options=variant.options)
        capacity = self.options.tokens + CHUNK
        found = [("cache", "MiB", self.nbytes(subject.init(1, capacity)) / 2**20)]
        found.append(("loss", "nats", self.loss(subject, capacity)))
        new = subject.generate([self.ids[:256]], self.options.new).new_tokens[0]
        self.owed = self.owed or new
        alike = [a == b for a, b in zip(new, self.owed, strict=True)]
        found.append(
            ("greedy, before the first other", "tokens", float([*alike, False].index(False)))
        )
        found.append(("greedy, in place", "%", 100 * sum(alike) / len(alike)))
        right = [self.retrieved(subject, seed, capacity) for seed in range(self.options.texts)]
        found.append(("retrieval", "%", 100 * float(np.mean(right))))
        return found

    def loss(self, subject: Any, capacity: int) -> float:
        """Return the mean nats of the text's tokens, fed in chunks."""
        ids = np.array(self.ids[: self.options.tokens])[None]
        state, nats = subject.init(1, capacity), []
        for at in range(0, ids.shape[1] - 1, CHUNK):
            chunk = ids[:, at : at + CHUNK]
            logits, state = subject.step(state, chunk)
            own = ids[0, at + 1 : at + 1 + CHUNK]
            nats.append(_nats(logits[0, : len(own)], own))
        return float(np.concatenate(nats).mean())

    def retrieved(self, subject: Any, seed: int, capacity: int) -> float:
        """Return the share of numbers that a text's questions get."""
        ids, asked = self._text(seed)
        state = subject.init(1, capacity)
        for at in range(0, len(ids), CHUNK):
            _, state = subject.step(state, np.array([ids[at : at + CHUNK]]))
        right = 0
        for question, answer in asked:
            fork, said = subject.fork(state), []
            step = partial(subject.step, check=True)
            logits, fork = step(fork, np.array([question]))
            for _ in answer:
                said.append(int(logits[0, -1].argmax()))
                logits, fork = step(fork, np.array([said[-1:]]))
            right += said == answer
        return right / len(asked)

    def _text(self, seed: int) -> tuple[list[int], list[tuple[list[int], list[int]]]]:
        rng = np.random.default_rng(seed)
        names = rng.choice(NAMES, DEPTHS, replace=False)
        numbers = rng.integers(1000, 10000, DEPTHS)
        encode = self.tokenizer.encode
        facts = [
            encode(f" The secret number of {name} is {number}.")
            for name, number in zip(names, numbers, strict=True)
        ]
        room = self.options.tokens - sum(map(len, facts)) - CHUNK
        start = int(rng.integers(0, len(self.ids) - room)) if len(self.ids) > room else 0
        filler, ids = self.ids[start : start + room], []
        for depth, fact in enumerate(facts):
            part = len(filler) * depth // DEPTHS, len(filler) * (depth + 1) // DEPTHS
            ids += [*filler[part[0] : part[0] + 20], *fact, *filler[part[0] + 20 : part[1]]]
        asked = [
            (encode(f" The secret number of {name} is"), encode(f" {number}"))
            for name, number in zip(names, numbers, strict=True)
        ]
        return ids, asked


def _nats(logits_TV: np.ndarray, own_T: np.ndarray) -> np.ndarray:
    wide = logits_TV.astype(np.float64)
    peak = wide.max(axis=-1)
    total = np.log(np.exp(wide - peak[:, None]).sum(axis=-1)) + peak
    return total - wide[np.arange(len(own_T)), own_T]
