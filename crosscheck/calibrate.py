"""Measure a subject's own rounding, from which tolerances follow: no guess, no model's name.

Letters: B rows, T positions, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError
from crosscheck.judge import distance, largest
from crosscheck.noise import self_noise
from crosscheck.oracle import ROOM, SEMANTIC, full_of, in_float64, sample_ids
from crosscheck.programs.case import Append, Case
from crosscheck.programs.run import run_program
from crosscheck.subjects.protocol import describe
from crosscheck.working import working_subject


@dataclass(frozen=True)
class Noise:
    """The rounding of one subject in one dtype, against its own uncached float64 forward.

    Attributes:
        dtype: In which it ran.
        scale: The oracle's largest |logit|; the errors below are absolute.
        full_rms: Of the uncached forward's errors.
        full_max: Their largest.
        cached_rms: Of the cached runs' errors; None without a cache.
        cached_max: Their largest.
        ratio_rms: cached_rms / full_rms, which `ratio` allows to be k; None without a cache.
        ratio_max: cached_max / full_max, which it allows to be k_max.
        self_noise: How far the uncached forward is from itself, relative to its largest |logit|.
        semantic_rtol: What the float64 gate would allow with that noise.
        margin: The smallest top-2 margin of the oracle.
        positions: How many positions were measured.
    """

    dtype: str
    scale: float
    full_rms: float
    full_max: float
    cached_rms: float | None
    cached_max: float | None
    ratio_rms: float | None
    ratio_max: float | None
    self_noise: float
    semantic_rtol: float
    margin: float
    positions: int


def calibrate(
    subject: Any,
    *,
    dtypes: Sequence[str] = ("float64", "float32"),
    cases: Iterable[Case] | None = None,
    seed: int = 0,
) -> tuple[Noise, ...]:
    """Return the noise in each dtype that the subject has.

    Args:
        subject: The reference.
        dtypes: Which to measure; those that the subject has not are left out.
        cases: Programs of appends; by default three partitions of the oracle's sample.
        seed: Of the texts.

    Raises:
        CrosscheckError: The subject has none of the dtypes, or no float64 to measure against.
        Exception: What the subject raises.
    """
    oracle, wide = in_float64(subject)
    if wide != "float64":
        raise CrosscheckError(
            f"calibrate: {describe(subject).name} is {wide} and declares no f64, expected a "
            "subject that can be cast to float64."
        )
    chosen = list(cases) if cases is not None else _partitions(oracle, seed)
    found = []
    for dtype in dtypes:
        measured = oracle if dtype == "float64" else working_subject(subject, dtype)
        if measured is not None:
            found.append(_measure(measured, oracle, dtype, chosen))
    if not found:
        raise CrosscheckError(
            f"calibrate: dtypes is {', '.join(dtypes)}, {describe(subject).name} has none of them."
        )
    return tuple(found)


def _partitions(subject: Any, seed: int) -> list[Case]:
    info = describe(subject)
    ids_BT = sample_ids(info, seed)
    tokens = ids_BT.shape[1]
    sizes = [(tokens,), (1,) * tokens]
    if "chunk" in info.capabilities:
        sizes.append((tokens // 2, tokens - tokens // 2))
    return [Case(ids_BT, tuple(Append(n) for n in each), seed=seed) for each in sizes]


def _measure(subject: Any, oracle: Any, dtype: str, cases: list[Case]) -> Noise:
    info = describe(subject)
    full, cached, exact = [], [], []
    for case in cases:
        exact_BTV = np.asarray(full_of(oracle)(case.ids)).astype(np.float64)
        exact.append(exact_BTV)
        full.append(distance(np.asarray(full_of(subject)(case.ids)), exact_BTV))
        if "cache" in info.capabilities:
            steps = run_program(subject, case).require().steps
            logits_BTV = np.concatenate([fed.logits_BTV for fed in steps], axis=1)
            cached.append(distance(logits_BTV, exact_BTV))
    noise = self_noise(full_of(subject), cases[0].ids)
    floor = max(noise.future, noise.rows)
    full_rms, full_max = _rms(full), _max(full)
    cached_rms, cached_max = (_rms(cached), _max(cached)) if cached else (None, None)
    top_2 = np.sort(np.concatenate([x.reshape(-1, x.shape[-1]) for x in exact]), axis=-1)[:, -2:]
    return Noise(
        dtype=dtype,
        scale=max(map(largest, exact)),
        full_rms=full_rms,
        full_max=full_max,
        cached_rms=cached_rms,
        cached_max=cached_max,
        ratio_rms=_ratio(cached_rms, full_rms),
        ratio_max=_ratio(cached_max, full_max),
        self_noise=floor,
        semantic_rtol=max(SEMANTIC, ROOM * floor),
        margin=float(np.min(top_2[:, 1] - top_2[:, 0])),
        positions=len(top_2),
    )


def _rms(errors: list[NDArray]) -> float:
    return float(np.sqrt(np.mean(np.concatenate([error.ravel() for error in errors]) ** 2)))


def _max(errors: list[NDArray]) -> float:
    return float(np.max(np.concatenate([error.ravel() for error in errors])))


def _ratio(cached: float | None, full: float) -> float | None:
    return None if cached is None or full == 0 else cached / full
