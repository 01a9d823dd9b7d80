"""One twin's speculation on a tiny model, and drafts that are right always, never and at times."""

import importlib
from functools import cache

import numpy as np

from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny import SUBJECTS, llama
from tests.tiny import DEEP, TWINS

# One layer with a window and one without, shorter than the texts.
CONFIG = SUBJECTS["llama-mixed"]
SMALL = llama(None)
LAYOUTS = {
    "contiguous": {},
    "paged": {"page_size": 4},
    "window": {},
    "quantized": {"layout_options": {"bits": 4, "group_size": 6, "residual_length": 6}},
}
if DEEP:
    LAYOUTS["quantized-int8"] = {"layout_options": {"bits": 8}}
# Their greedy ids change: in a constant text no shift is seen.
PROMPTS = [[24, 47, 31, 24, 37, 69, 46], [61, 9], [90, 15, 3, 53, 81]]
BUDGETS = [14, 9, 12]

__all__ = ["TWINS"]


@cache
def arrays(seed=7, nudge=0.0, small=False):
    found = random_arrays(SMALL if small else CONFIG, seed=seed)
    rng = np.random.default_rng(0)
    noisy = {name: 1 + nudge * rng.standard_normal(x.shape) for name, x in found.items()}
    return {name: x * noisy[name] for name, x in found.items()}


@cache
def model(twin, seed=7, nudge=0.0, small=False, dtype="float64"):
    from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
    config = SMALL if small else CONFIG
    return from_arrays(config, arrays(seed, nudge, small), dtype=dtype)


def lookup(twin, **asked):
    return importlib.import_module(f"{twin}.drafts").PromptLookup(**asked)


def draft(twin, name):
    """Return a drafter: the model itself, one near it, an unrelated or smaller one, a lookup."""
    if name == "lookup":
        # Bold: one token that was there before suffices, and failures do not stop it.
        return lookup(twin, longest=3, shortest=1, longest_pause=0)
    forms = {
        "itself": {},
        "near": {"nudge": 0.1},
        "unrelated": {"seed": 8},
        "small": {"small": True},
    }
    return model(twin, **forms[name])


def speculate(twin, prompts=PROMPTS, *, layout="contiguous", draft="itself", k=4, **asked):
    call = importlib.import_module(f"{twin}.speculative").speculate
    asked = {"max_new_tokens": BUDGETS, "capacity": 64, **LAYOUTS.get(layout, {}), **asked}
    drafter = globals()["draft"](twin, draft) if isinstance(draft, str) else draft
    return call(model(twin), prompts, draft=drafter, k=k, layout=layout.split("-")[0], **asked)


def generate(twin, prompts=PROMPTS, *, layout="contiguous", **asked):
    call = importlib.import_module(f"{twin}.generation").generate
    asked = {"max_new_tokens": BUDGETS, "capacity": 64, **LAYOUTS[layout], **asked}
    return call(model(twin), prompts, layout=layout.split("-")[0], **asked)


@cache
def greedy(twin, layout="contiguous"):
    """Return the ids of plain greedy decoding, which exact layouts share."""
    exact = layout if layout.startswith("quantized") else "contiguous"
    return generate(twin, layout=exact).new_tokens
