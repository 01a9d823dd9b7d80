"""Whether a torch module takes a mask of padding, and in which form: asked of the module itself.

Letters: B rows, T tokens of this call, S tokens fed so far.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters.torch_verbs import Fed
from crosscheck.judging import sentence, unit_roundoff

PADS, TOKENS = 2, 6
# Two ways to compute one thing differ by some roundings of a layer each; padding that is read
# moves logits by far more, and what lies between is for the relations to judge.
NEAR, ROUNDINGS = 1e-3, 8
# The part of an unhidden padding id's effect that a mask of a large finite number may let through.
HIDDEN = 1e-2
# A mask of this name promises padding; a bare `mask` may mean something else.
PROMISES = "pad"
HOW = (
    "a Module declares it by an argument attention_mask, or by call='forward(ids, NAME=mask, "
    "cache=cache)': bool or int64 [B, S], which of the tokens fed so far are real"
)


@dataclass(frozen=True)
class Padding:
    """How a module takes padding.

    Attributes:
        dtype: Of the mask.
        marks_real: Whether true is a real token; else true is padding.
        whole: Whether the mask of a cached call covers all tokens fed so far; else only its own.
    """

    dtype: str = "bool"
    marks_real: bool = True
    whole: bool = True

    def mask(self, real_BS: NDArray, new: int) -> NDArray:
        """Return the mask of a call whose last `new` columns are its own."""
        shown = real_BS if self.whole else real_BS[:, real_BS.shape[1] - new :]
        return (shown if self.marks_real else ~shown).astype(self.dtype)


FORMS = (Padding(), Padding("int64"), Padding(marks_real=False))


def with_call(state: Fed, width: int, batch: int, mask_BT: Any) -> NDArray | None:
    """Return which tokens are real after a call; None while padding was never told."""
    if mask_BT is None and state.real_BS is None:
        return None
    held = np.ones((batch, state.fed), bool) if state.real_BS is None else state.real_BS
    new = np.ones((batch, width), bool) if mask_BT is None else np.asarray(mask_BT, bool)
    return np.concatenate([held, new], axis=1)


def probe(adapter: Any, name: str, dtype: str, *, promised: bool) -> tuple[Padding | None, str]:
    """Return the form in which a module takes padding, or None and why it takes none.

    A form is taken where marking every token as real changes nothing. One that hides padding is
    preferred; where none does, an argument that promises padding is declared all the same, so that
    the relations show that it is ignored.

    Args:
        adapter: Of the module; its `padding` is set to each form that is tried.
        name: Of the argument.
        dtype: Of the module.
        promised: Whether the user, or the name, says that it is padding.
    """
    try:
        return _Probe(adapter, dtype).found(name, promised=promised)
    except Exception as error:
        # What the module itself does wrong without a mask is for the relations to tell.
        return None, f"it could not be asked about {name}=: {sentence(error)[:160]}"


class _Probe:
    """Two rows of tokens, with and without padding on the left."""

    def __init__(self, adapter: Any, dtype: str) -> None:
        self.adapter = adapter
        self.near_share = max(NEAR, ROUNDINGS * unit_roundoff(dtype))
        vocab = adapter.full(np.zeros((1, 2), np.int64)).shape[-1]
        self.ids_BT = np.random.default_rng(0).integers(0, vocab, (2, TOKENS))
        self.pad_ids = (0, vocab - 1)
        self.plain = adapter.full(self.ids_BT)
        self.real_BS = np.arange(PADS + TOKENS) >= np.full((2, 1), PADS)

    def found(self, name: str, *, promised: bool) -> tuple[Padding | None, str]:
        """Return the form, or why there is none."""
        taken, reasons = self._taken()
        if not taken:
            return None, f"its {name}= is no mask of padding: {reasons[0]}. {HOW}"
        hiding = [form for form in taken if self._hides(form)]
        if not hiding and not promised:
            return None, (
                f"its {name}= hides no padding: the id of a masked token still changes the logits "
                f"of others. If it is meant to, {HOW}"
            )
        form = (hiding or taken)[0]
        return self._cached(form, name) if self.adapter.has_cache else (form, "")

    def _taken(self) -> tuple[list[Padding], list[str]]:
        taken, reasons = [], []
        for form in FORMS:
            self.adapter.padding = form
            try:
                told = self.adapter.full(self.ids_BT, mask=np.ones_like(self.ids_BT, bool))
            except Exception as error:
                reasons.append(f"a mask [B, T] raises {sentence(error)[:120]}")
                continue
            if self._near(told, self.plain):
                taken.append(form)
            else:
                reasons.append("with every token marked as real the logits change")
        return taken, reasons

    def _hides(self, form: Padding) -> bool:
        """Return whether padding ids stop to matter, as far as they do without a mask."""
        self.adapter.padding = form
        try:
            masked, bare = (
                [self.adapter.full(self._padded(pad), mask=mask)[:, PADS:] for pad in self.pad_ids]
                for mask in (self.real_BS, None)
            )
        except Exception:
            return False
        effect, unhidden = (float(np.abs(a - b).max()) for a, b in (masked, bare))
        rounding = 1e-6 * float(np.abs(self.plain).max())
        return effect <= max(HIDDEN * unhidden, rounding) < unhidden

    def _cached(self, form: Padding, name: str) -> tuple[Padding | None, str]:
        """Return the form with what a mask covers in a cached call: what is right, or else runs."""
        running, reason = [], ""
        for whole in (True, False):
            self.adapter.padding = replace(form, whole=whole)
            owed = self.adapter.full(self._padded(0), mask=self.real_BS)[:, PADS:]
            try:
                logits = np.concatenate(list(self._steps()), axis=1)[:, PADS:]
            except Exception as error:
                reason = reason or sentence(error)[:120]
                continue
            if self._near(logits, owed):
                return self.adapter.padding, ""
            running.append(self.adapter.padding)
        if running:
            return running[0], ""
        return None, f"a cached call with {name}= raises {reason}"

    def _steps(self) -> Iterator[NDArray]:
        ids, first = self._padded(0), PADS + 3
        state = self.adapter.init(2, PADS + TOKENS)
        logits, state = self.adapter.step(state, ids[:, :first], mask=self.real_BS[:, :first])
        yield logits
        for at in range(first, PADS + TOKENS):
            logits, state = self.adapter.step(state, ids[:, at : at + 1])
            yield logits

    def _padded(self, pad: int) -> NDArray:
        return np.concatenate([np.full((2, PADS), pad), self.ids_BT], axis=1)

    def _near(self, a: NDArray, b: NDArray) -> bool:
        same = a.shape == b.shape
        return same and bool(np.abs(a - b).max() <= self.near_share * np.abs(b).max())
