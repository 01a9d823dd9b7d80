"""Subjects of both twins, and texts for them.

Texts are no longer than the shortest window, 5, unless a test is about windows; steps are padded to
8, so that little is compiled.
"""

from functools import cache

import numpy as np

from crosscheck import close
from tests.tiny import DEEP, TWINS, Cell, make_model, new_subject

EXACT = close(rtol=1e-10, atol=1e-10)
B, T, FIRST = 2, 5, 3
MODELS = ("llama", "gpt2", "reference") if DEEP else ("llama", "gpt2")
BOTH = [Cell(twin, model, "contiguous") for twin in TWINS for model in MODELS]
LAYOUTS = [Cell(twin, "llama", layout) for twin in TWINS for layout in ("window", "paged")]
LLAMA = [cell for cell in BOTH if cell.model == "llama"]


@cache
def subject_of(cell):
    return new_subject(make_model(cell.twin, cell.model), cell, slack=2)


def texts(cell, tokens=T):
    return np.random.default_rng(5).integers(0, cell.config.vocab_size, (B, tokens))


def counted(tokens=T):
    """Return the positions that tokens have by default."""
    return np.tile(np.arange(tokens), (B, 1))


def causal(tokens=T):
    """Return the visibility that tokens have by default, without a window."""
    return np.tile(np.tri(tokens, dtype=bool), (B, 1, 1))


def rest_of(kv):
    """Return what stands in a layer's cache beside its keys."""
    return kv.values_BSKH, kv.position_BS, kv.valid_BS
