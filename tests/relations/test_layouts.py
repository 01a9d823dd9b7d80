"""Layout x family x partition x batch x history: every layout says what one forward says.

Each pair of choices occurs; the whole product when deep. The forward without a cache is what
contiguous is held to as well, so two layouts that agree with it agree with each other.
"""

import importlib
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from crosscheck import assert_agree, close
from jaxkv.spec.identity import Identity
from jaxkv.spec.tiny import open_subject
from tests.pairwise import cover, pairs_of
from tests.tiny import DEEP, TWINS

EXACT = close(rtol=1e-10, atol=1e-10)
CAPACITY, LENGTH, SLACK = 40, 24, 6
LAYOUTS = {
    "contiguous": {},
    "window": {},
    "paged-4": {"page_size": 4},
    "paged-7-moved": {"page_size": 7},
}
# One of each kind of attention; the others of docs/families.md when deep.
FAMILIES = ("llama-mixed", "gpt2", "gemma3", "phi3", "mixtral", "deepseek_v3", "t5")
MORE = (
    "reference",
    "qwen2",
    "qwen3",
    "gemma2",
    "gpt_neox",
    "mistral",
    "deepseek_v2",
    "bart",
)
PARTITIONS = {"whole": [8], "ones": [1] * 8, "uneven": [3, 1, 4]}
BATCHES = {"alone": 1, "equal": 4, "ragged": 4}
# What moves a row to another needs two: a row alone has a neighbour then.
BETWEEN_ROWS = ("gather", "forked-row")
HISTORIES = ("none", "rollback", "gather", "fork", "saved", "reset", "forked-row")
CASES = cover(
    tuple(LAYOUTS),
    FAMILIES + MORE if DEEP else FAMILIES,
    tuple(PARTITIONS),
    tuple(BATCHES),
    HISTORIES,
)


# Caches that change results owe what one step of their own says, however it is reached: they have
# no forward without a cache. The head width 18 has no groups for 2 bits: tests/quantized has them.
COMPRESSED = {
    "quantized-4": {"bits": 4, "group_size": 6, "residual_length": 6},
    "quantized-int8": {"bits": 8},
    "quantized-fp8": {"bits": "fp8"},
    "sinks": {"sinks": 2, "window": 6},
    "sinks_absolute": {"sinks": 2, "window": 6},
}
COMPRESSED_CASES = cover(
    tuple(COMPRESSED),
    ("llama-mixed", "mixtral") if DEEP else ("llama-mixed",),
    tuple(PARTITIONS),
    tuple(BATCHES) if DEEP else ("ragged",),
    HISTORIES if DEEP else ("rollback", "gather", "reset"),
)


class Told(NamedTuple):
    """What each row is to say: its text, how much of it is held, and what its encoder read."""

    texts: np.ndarray
    held: np.ndarray
    encoder: np.ndarray | None

    def of(self, rows: np.ndarray) -> "Told":
        """Return the named rows."""
        encoder = None if self.encoder is None else self.encoder[rows]
        return Told(self.texts[rows], self.held[rows], encoder)

    def full(self, subject: Any) -> np.ndarray:
        """Return the logits of the whole texts in one forward."""
        return subject.full(self.texts, encoder=self.encoder)

    def empty(self, subject: Any) -> Any:
        """Return an empty state of these rows."""
        return subject.init(len(self.texts), CAPACITY, encoder=self.encoder)


@cache
def subject_of(twin, family, layout):
    checkpoint, _ = open_subject(family)
    model = importlib.import_module(f"{twin}.weights").from_arrays(
        checkpoint.config, checkpoint.weights, dtype="float64"
    )
    kind = importlib.import_module(f"{twin}.subject").Subject
    given = LAYOUTS.get(layout) or {"layout_options": COMPRESSED.get(layout)}
    return kind(model, layout=layout.split("-")[0], slack=SLACK, **given)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_every_layout_says_what_one_forward_says(twin, case, tmp_path):
    _check(twin, case, tmp_path, owed=lambda subject, told: told.full(subject))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("case", COMPRESSED_CASES, ids="-".join)
def test_every_compressed_layout_says_what_one_step_of_it_says(twin, case, tmp_path):
    """Partition, batch and history change nothing of a cache that itself changes results."""
    _check(twin, case, tmp_path, owed=_in_one_step)


def _in_one_step(subject, told):
    return subject.step(told.empty(subject), told.texts)[0]


def _check(twin, case, tmp_path, *, owed):
    layout, family, partition, batch, history = case
    subject = subject_of(twin, family, layout)
    rows = max(BATCHES[batch], 2 if history in BETWEEN_ROWS else 1)
    rng = np.random.default_rng(len("-".join(case)))
    texts = rng.integers(0, subject.info.vocab_size, (rows, LENGTH))
    held = np.array([12, 7, 12, 9][:rows]) if batch == "ragged" else np.full(rows, 12)
    has_encoder = subject.model.config.encoder is not None
    told = Told(texts, held, subject.encoder_inputs(rows, 0) if has_encoder else None)

    state = fed(subject, told)
    state, told = HISTORY[history](subject, state, told, tmp_path)
    assert history not in BETWEEN_ROWS or (told.texts[:, :7] != texts[:, :7]).any()
    texts, held, _ = told
    if layout.endswith("moved"):
        state = subject.permute_pages(state, seed=3)
    for size in PARTITIONS[partition]:
        chunk = np.stack([row[at : at + size] for row, at in zip(texts, held, strict=True)])
        logits, state = subject.step(state, chunk)
        whole = owed(subject, told)
        expected = np.stack([row[at : at + size] for row, at in zip(whole, held, strict=True)])
        assert_agree(logits, expected, EXACT, name="logits", names=(layout, "at once"))
        held = held + size
    np.testing.assert_array_equal(subject.length(state), held)


def fed(subject, told):
    """Return a state that holds the first tokens of each row, fed in two ragged chunks."""
    texts, held, _ = told
    state = told.empty(subject)
    first = np.minimum(held, 8)
    _, state = subject.step(state, texts[:, :8], count=first)
    rest = np.stack([row[at : at + 8] for row, at in zip(texts, first, strict=True)])
    return subject.step(state, rest, count=held - first)[1]


def _rollback(subject, state, told, tmp_path):
    """Three tokens back, then others."""
    texts, held, encoder = told
    texts = texts.copy()
    texts[:, 5:] = np.where(np.arange(5, LENGTH) < (held - 3)[:, None], texts[:, 5:], texts[:, :-5])
    return subject.rollback(state, held - 3), Told(texts, held - 3, encoder)


def _gather(subject, state, told, tmp_path):
    count = len(told.texts)
    rows = np.array([count - 1, 0, *range(count)])[:count]
    assert (rows != np.arange(count)).any()
    return subject.gather(state, rows), _continued(told.of(rows))


def _fork(subject, state, told, tmp_path):
    kept = subject.fork(state)
    subject.step(state, told.texts[:, -3:])
    return kept, told


def _saved(subject, state, told, tmp_path):
    caches = _caches(subject)
    given = {
        "identity": Identity(subject.model.config, "7", "float64", subject.layout),
        "tokens": [row[:n].tolist() for row, n in zip(told.texts, told.held, strict=True)],
    }
    if told.encoder is not None:
        given["encoder"] = [row[row >= 0].tolist() for row in told.encoder]
    caches.save(state, tmp_path / "cache", **given)
    return caches.load(tmp_path / "cache", told.empty(subject), **given), told


def _reset(subject, state, told, tmp_path):
    """The last row is given up, and another text begins in it, without what its encoder read."""
    texts, held, encoder = told
    caches = _caches(subject)
    only = np.arange(len(texts)) == len(texts) - 1
    state = caches.reset(state, _array(subject, only))
    texts = np.where(only[:, None], texts[:, ::-1], texts)
    encoder = None if encoder is None else np.where(only[:, None], -1, encoder)
    return state, Told(texts, np.where(only, 0, held), encoder)


def _forked_row(subject, state, told, tmp_path):
    caches = _caches(subject)
    rows = np.arange(len(told.texts))
    rows[0] = rows[-1]
    assert rows[0] != 0
    state = caches.fork_row(state, int(rows[-1]), 0)
    return state, _continued(told.of(rows))


def _continued(told):
    """Return the texts with other tokens after what is held, so that rows that were one differ."""
    texts, held, encoder = told
    other = np.stack([np.roll(row, 1 + b) for b, row in enumerate(texts[:, ::-1])])
    return Told(np.where(np.arange(LENGTH) < held[:, None], texts, other), held, encoder)


def _caches(subject):
    return importlib.import_module(type(subject).__module__.replace("subject", "caches"))


def _array(subject, array):
    if type(subject).__module__.startswith("torchkv"):
        import torch

        return torch.from_numpy(array)
    import jax.numpy as jnp

    return jnp.asarray(array)


HISTORY = {
    "none": lambda subject, state, told, tmp_path: (state, told),
    "rollback": _rollback,
    "gather": _gather,
    "fork": _fork,
    "saved": _saved,
    "reset": _reset,
    "forked-row": _forked_row,
}


def test_the_cases_hold_every_pair_of_choices():
    axes = (tuple("abc"), tuple("de"), tuple("fghi"))
    rows = pairs_of(*axes)

    for first in range(3):
        for second in range(first):
            found = {(row[second], row[first]) for row in rows}
            assert len(found) == len(axes[first]) * len(axes[second])
    assert len(rows) < 3 * 2 * 4
