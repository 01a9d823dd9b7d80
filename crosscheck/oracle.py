"""Whether the reference may be the judge, in which dtype, and how fine it can see.

The questions in their order: is the candidate deterministic; is the reference's uncached forward
deterministic and causal (in some releases it is the wrong side); is its float64 really float64; how
large is the rounding that is left; and does an independent decoder agree.
Letters: B rows, T positions.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.decoder import decode
from crosscheck.errors import CrosscheckError
from crosscheck.judge import distance, largest
from crosscheck.judging import sentence, unit_roundoff
from crosscheck.levels import short
from crosscheck.noise import (
    LINEAR,
    ROUNDING,
    Noise,
    linearity,
    narrow_points,
    self_noise,
)
from crosscheck.relations.drive import encoder_of
from crosscheck.subjects.protocol import SubjectInfo, describe, steady

SEMANTIC = 1e-9
# How many times the measured floor a difference may be; and no tolerance beyond what the smallest
# true fault would still exceed threefold.
ROOM, WIDEST = 30.0, 3e-4


@dataclass(frozen=True)
class Oracle:
    """What is known about the judge.

    Attributes:
        candidate: The candidate in the dtype of the semantic gate.
        reference: The reference in that dtype; the candidate itself in metamorphic mode.
        dtype: Of the gate: float64 wherever the subject has it.
        floor: The reference's own noise, relative to its largest |logit|.
        rtol: What the gate allows.
        status: One line for the report.
        wrong: Why the uncached forward must not judge; "" where it may.
        shaken: Why the candidate can't be judged at all (it is not deterministic); "" where it can.
        decoder: How the independent decoder differs; None where it agrees or can't tell.
        cap: What keeps the gate from float64's precision, in words; "" for nothing.
        notes: Sentences for the report.
    """

    candidate: Any
    reference: Any
    dtype: str
    floor: float
    rtol: float
    status: str
    wrong: str = ""
    shaken: str = ""
    decoder: str | None = None
    cap: str = ""
    notes: tuple[str, ...] = ()


def examine(
    candidate: Any, reference: Any | None = None, *, seed: int = 0, own: Oracle | None = None
) -> Oracle:
    """Return what the reference's uncached forward is worth as an oracle.

    Args:
        candidate: A subject.
        reference: Another, or None for the candidate itself.
        seed: Of the texts.
        own: The candidate as its own oracle, if that is known: it is not asked again.

    Raises:
        CrosscheckError: The infos are incomplete or the vocabularies differ.
        Exception: What a subject raises.
    """
    left, dtype = in_float64(candidate) if own is None else (own.candidate, own.dtype)
    right, theirs = (left, dtype) if reference is None else in_float64(reference)
    dtype = dtype if theirs == "float64" else theirs
    info = describe(right)
    _check_vocabulary(info)
    _check_pair(describe(left), info)
    ids_BT = sample_ids(info, seed)
    noise = self_noise(full_of(right), ids_BT)
    floor, cap, notes = _floor(right, info, ids_BT, noise, dtype, seed)
    repeats = noise.repeat
    if own is not None and own.dtype == dtype:
        repeats = not own.shaken
        floor, cap, notes = max(floor, own.floor), cap or own.cap, (*notes, *own.notes)
    elif right is not left:
        alone = self_noise(full_of(left), ids_BT)
        repeats = alone.repeat
        other, other_cap, more = _floor(left, describe(left), ids_BT, alone, dtype, seed)
        floor, cap, notes = max(floor, other), cap or other_cap, (*notes, *more)
    rtol = min(max(_least(dtype), ROOM * floor), max(WIDEST, _least(dtype)))
    wrong = _why_wrong(noise, describe(right).name)
    checked, decoder = _check_decoder(right, sample_ids(replace(info, steady=None), seed), rtol)
    return Oracle(
        candidate=left,
        reference=right,
        dtype=dtype,
        floor=floor,
        rtol=rtol,
        status="; ".join(filter(None, (wrong and f"refused: {wrong}", checked, cap))),
        wrong=wrong,
        shaken=""
        if repeats
        else f"{describe(left).name} is not deterministic: two calls of "
        "full on the same ids gave other bits",
        decoder=decoder,
        cap=cap,
        notes=notes,
    )


def in_float64(subject: Any) -> tuple[Any, str]:
    """Return a subject in float64 where it has it, else as it is, and the dtype."""
    info = describe(subject)
    if info.dtype == "float64":
        return subject, "float64"
    if "f64" in info.capabilities:
        return subject.cast("float64"), "float64"
    return subject, info.dtype


def full_of(subject: Any, seed: int = 0) -> Callable[[NDArray], NDArray]:
    """Return the uncached forward as a function of ids; rows share an encoder's result."""
    encoder = encoder_of(subject, 1, seed)
    if encoder is None:
        return subject.full
    return lambda ids_BT: subject.full(ids_BT, encoder=np.repeat(encoder, len(ids_BT), axis=0))


def sample_ids(info: SubjectInfo, seed: int, *, batch: int = 3) -> NDArray[np.int32]:
    """Return texts that reach past small windows, within the model's positions.

    Nor are they longer than those whose result does not depend on their steps.
    """
    info = steady(info)
    windows = [w for w in info.windows if w is not None and w <= 24]
    tokens = min(max([14, *(2 * w + 2 for w in windows)]), info.max_positions or 10**9)
    rng = np.random.default_rng(seed)
    return rng.integers(info.first_id, info.vocab_size, (batch, tokens), dtype=np.int32)


def remeasured(oracle: Oracle, ids_BT: NDArray) -> float:
    """Return the floor on other texts, for a difference that rounding alone might explain."""
    floor, full = oracle.floor, full_of(oracle.reference)
    base_BTV = np.asarray(full(ids_BT))
    is_steady = ids_BT.shape[1] <= (describe(oracle.reference).steady or ids_BT.shape[1])
    for shown in range(1, ids_BT.shape[1] if is_steady else 1):
        other_BTV = np.asarray(full(ids_BT[:, :shown]))
        floor = max(floor, _apart(other_BTV, base_BTV[:, :shown], largest(base_BTV)))
    noise = self_noise(full, ids_BT)
    return max(floor, noise.rows if noise.rows <= ROUNDING else 0.0)


def _check_vocabulary(info: SubjectInfo) -> None:
    if info.vocab_size - info.first_id < 1:
        first = f", of which those below {info.first_id} are not fed" if info.first_id else ""
        raise CrosscheckError(
            f"check: {info.name} has vocab_size {info.vocab_size}{first}, expected at least "
            f"{info.first_id + 1}. It is the last axis of the logits, or what info says."
        )


def _check_pair(left: SubjectInfo, right: SubjectInfo) -> None:
    if left.vocab_size != right.vocab_size:
        raise CrosscheckError(
            f"check: candidate {left.name} has vocab_size {left.vocab_size}, reference "
            f"{right.name} has {right.vocab_size}, expected the same. Are they the same model?"
        )


def _least(dtype: str) -> float:
    return SEMANTIC if dtype == "float64" else min(256 * unit_roundoff(dtype), 0.25)


def _why_wrong(noise: Noise, name: str) -> str:
    if not noise.finite:
        return f"the uncached forward of {name} gives logits that are not finite"
    if not noise.repeat:
        return f"the uncached forward of {name} is not deterministic"
    if noise.future > ROUNDING:
        return (
            f"the uncached forward of {name} is not causal: later tokens move earlier logits by "
            f"{noise.future:.1e} of the largest, first at position {noise.future_at}"
        )
    return ""


def _floor(
    subject: Any, info: SubjectInfo, ids_BT: NDArray, noise: Noise, dtype: str, seed: int
) -> tuple[float, str, tuple[str, ...]]:
    """Return the floor, what caps it, and notes."""
    floor = max((x for x in (noise.future, noise.rows) if x <= ROUNDING), default=0.0)
    notes: list[str] = []
    if noise.rows > ROUNDING:
        notes.append(
            f"rows of one batch mix in {info.name}: a row's logits move by {noise.rows:.1e} with "
            "its neighbours"
        )
    if dtype != "float64":
        why = info.absent.get("f64", "it declares no f64")
        notes.append(f"the semantic gate runs in {dtype}: {why}")
        return floor, "", tuple(notes)
    captures = "capture" in info.capabilities and "cross" not in info.capabilities
    bent = linearity(subject, full_of, ids_BT, seed=seed, captures=captures)
    where = bent.point if bent else ""
    if bent and bent.jumps:
        notes.append(
            "nudged weights make single logits jump: a choice among tied scores (routers, "
            "indexers) may differ by rounding alone"
        )
    if bent and bent.floor > LINEAR:
        floor = max(floor, min(bent.floor, ROUNDING))
    told = bent is not None and bent.floor <= LINEAR
    narrow = narrow_points(subject, ids_BT) if captures and not told else []
    if narrow:
        floor, where = max(floor, 4 * unit_roundoff("float32")), where or narrow[0]
    capped = floor > LINEAR
    by = f" by {where}" if where else ""
    return floor, f"capped at float32{by} (noise {short_noise(floor)})" if capped else "", (*notes,)


def short_noise(floor: float) -> str:
    """Return a noise as printed."""
    return short(float(f"{floor:.1e}"))


def _check_decoder(subject: Any, ids_BT: NDArray, rtol: float) -> tuple[str, str | None]:
    """Return the status, and how the independent decoder differs."""
    inputs = getattr(subject, "decoder_inputs", None)
    try:
        found = None if inputs is None else inputs()
        if found is None:
            return "unchecked", None
        config, arrays = found
        encoder = encoder_of(subject, 1, 0)
        read_BE = None if encoder is None else np.repeat(encoder, len(ids_BT), axis=0)
        expected_BTV = decode(config, arrays, ids_BT, encoder_BE=read_BE)
    except CrosscheckError as error:
        why = re.sub(r"^decode: ", "", sentence(error))
        return f"unchecked (the independent decoder: {why})", None
    got_BTV = np.asarray(full_of(subject)(ids_BT))
    error = _apart(got_BTV, expected_BTV, largest(expected_BTV))
    if error <= max(rtol, ROOM * unit_roundoff(str(got_BTV.dtype))):
        return f"checked against the independent decoder ({error:.1e})", None
    words = f"the independent decoder differs by {error:.1e} of the largest |logit|"
    return f"contradicted: {words}", words


def _apart(a: NDArray, b: NDArray, scale: float) -> float:
    if a.shape != b.shape:
        return float("inf")
    error = distance(a, b) / max(scale, 1e-300)
    return float(np.where(np.isnan(error), np.inf, error).max())
