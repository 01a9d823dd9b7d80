"""How far a quantized subject may be from its exact variant; nothing is measured on its codes.

Keys and values of the first layer are off by half a step at most, which follows from the formulas,
of the widest group that drawn texts have. Logits have no derived bound: theirs is an estimate, four
times the worst that errors of half a step with drawn signs, in every stored number of the exact
variant, did in four draws. It tells what is many times off, not a code that is off by one.

Letters: B rows, S slots, K key/value heads, H head width.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from jaxkv.spec.compression import Groups, PerToken, quantization
from jaxkv.spec.errors import Unsupported

_TEXTS, _TOKENS, _MARGIN, _DRAWS = 8, 24, 1.25, 4


@lru_cache(maxsize=8)
def bound_of(subject: Any) -> dict[str, float]:
    """Return how far a subject's codes may be from its exact variant, by point.

    Args:
        subject: Of this twin.

    Raises:
        Unsupported: Its layout has no codes.
    """
    if subject.layout != "quantized":
        raise Unsupported(
            f"quant_bound: layout {subject.layout!r} has no codes. Use layout='quantized'."
        )
    return quant_bound(subject.variant("exact"), _form_of(subject))


def residual_of(subject: Any) -> int:
    """Return how many of the first tokens of a text are all read as they are."""
    form = _form_of(subject)
    return form.residual_length - 1 if isinstance(form, Groups) else 0


def quant_bound(exact: Any, form: Groups | PerToken) -> dict[str, float]:
    """Return the largest error by point: `k.0`, `v.0` and `logits`.

    Args:
        exact: The subject with an exact layout.
        form: What of it is quantized.
    """
    info, rng = exact.info, np.random.default_rng(0)
    tokens = min(_TOKENS, info.max_positions)
    ids = rng.integers(0, info.vocab_size, (_TEXTS, tokens))
    _, state = exact.step(exact.init(_TEXTS, tokens), ids[:, :-1])
    held = [exact.kv(state, layer) for layer in range(info.num_layers)]
    steps = [half_steps(kv, form) for kv in held]
    owed, _ = exact.step(exact.fork(state), ids[:, -1:])
    worst = 0.0
    for _ in range(_DRAWS):
        moved = exact.fork(state)
        for layer, (kv, (k_step, v_step)) in enumerate(zip(held, steps, strict=True)):
            moved = exact.with_kv(moved, layer, _nudged(kv, k_step, v_step, rng))
        logits, _ = exact.step(moved, ids[:, -1:])
        worst = max(worst, float(np.abs(logits - owed).max()))
    return {
        "k.0": steps[0][0] * _MARGIN,
        "v.0": steps[0][1] * _MARGIN,
        "logits": 4 * worst,
    }


def half_steps(kv: Any, form: Groups | PerToken) -> tuple[float, float]:
    """Return half a step of the widest group of keys, and of values."""
    valid_BS = np.asarray(kv.valid_BS)
    k_PKH, v_PKH = np.asarray(kv.keys_BSKH)[valid_BS], np.asarray(kv.values_BSKH)[valid_BS]
    if isinstance(form, PerToken):
        share = 1 / 254 if form.kind == "int8" else 1 / 16
        return float(np.abs(k_PKH).max() * share), float(np.abs(v_PKH).max() * share)
    levels = 2 * (2**form.bits - 1)
    return float(np.ptp(k_PKH, axis=0).max() / levels), float(np.ptp(v_PKH, axis=2).max() / levels)


def _form_of(subject: Any) -> Groups | PerToken:
    width = subject.model.config.layers[0].attention.head_dim
    return quantization(width=width, **subject.layout_options)


def _nudged(kv: Any, k_step: float, v_step: float, rng: np.random.Generator) -> Any:
    def moved(x: np.ndarray, step: float) -> np.ndarray:
        return (x + step * rng.choice([-1.0, 1.0], x.shape)).astype(x.dtype)

    sides = moved(kv.keys_BSKH, k_step), moved(kv.values_BSKH, v_step)
    return type(kv)(*sides, kv.position_BS, kv.valid_BS)
