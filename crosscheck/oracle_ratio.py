"""The level for working dtypes: the candidate's rounding against the reference's own.

Left is the candidate a, right the reference b, the oracle o is the reference in float64; u is the
unit roundoff.
Sources: `same` in torch/_dynamo/utils.py; flash-attention's tests/test_flash_attn.py; msprobe.
All three came to an oracle and factors of 2 to 3.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import ToleranceError
from crosscheck.judge import (
    UNIT_ROUNDOFF,
    Judgement,
    Sample,
    distance,
    judge_each,
    largest,
    required_factor,
)
from crosscheck.levels import Printed, short
from crosscheck.place import quantity


@dataclass(frozen=True)
class Ratio(Printed):
    """The working dtype's rounding against the reference's own; made by `ratio`."""

    k: float | None
    k_max: float
    floor: float
    dtype: str
    level: str = field(default="ratio", init=False)

    @property
    def rule(self) -> str:
        """The rule in words."""
        k = "k" if self.k is None else short(self.k)
        rest = f"{short(self.floor)}u x max |oracle|"
        return f"rms(a-o) <= {k} x rms(b-o) + {rest}, max the same with {short(self.k_max)}"

    def judge(self, sample: Sample) -> Judgement:
        """Return the judgement by the first of the two rules that fails, else by the max rule.

        `required` is the k that would have passed, k_max growing along with it.

        Raises:
            ToleranceError: No oracle, an oracle that is not finite float64, or sides of other
                dtypes.
        """
        sample.require_float("ratio")
        oracle, dtype = _oracle(sample), self._dtype_of(sample)
        k = self.k if self.k is not None else (3.0 if dtype in ("float16", "bfloat16") else 2.0)
        error, base = distance(sample.left, oracle), distance(sample.right, oracle)
        floor = self.floor * UNIT_ROUNDOFF[dtype] * largest(oracle)
        rms_a, rms_b, max_a, max_b = _rms(error), _rms(base), largest(error), largest(base)
        finite = bool(np.isfinite(error).all() and np.isfinite(base).all())
        by_rms = finite and not (rms_a <= k * rms_b + floor)
        factor, spread = (k, rms_b) if by_rms else (self.k_max, max_b)
        required = max(
            required_factor(max(rms_a - floor, 0.0), rms_b),
            required_factor(max(max_a - floor, 0.0), max_b) * k / self.k_max,
        )
        if not finite:
            error = np.where(np.isfinite(base), error, np.nan)
        name = "rms" if by_rms else "max"
        rule = (
            f"{short(factor)} x {name}(b-o) {spread:.1e} + "
            f"{short(self.floor)}u x max |{quantity(sample.name)}| {largest(oracle):.2g}"
        )
        measure = "rms(a-o)" if by_rms else "|a-o|"
        judged = judge_each(
            measure, error, factor * spread + floor, required=required, rule=f"{dtype}, {rule}"
        )
        return replace(judged, total=rms_a) if by_rms else judged

    def _dtype_of(self, sample: Sample) -> str:
        left, right = sample.left.dtype.name, sample.right.dtype.name
        if self.dtype == "any" and left != right:
            raise ToleranceError(
                f"left '{sample.name}' is {left}, right is {right}, ratio compares equal dtypes. "
                "Cast one, or say ratio(dtype=...)."
            )
        dtype = left if self.dtype == "any" else self.dtype
        if dtype not in UNIT_ROUNDOFF:
            raise ToleranceError(
                f"left '{sample.name}' is {dtype}, ratio knows {', '.join(UNIT_ROUNDOFF)}."
            )
        return dtype


def _oracle(sample: Sample) -> NDArray:
    oracle = sample.oracle
    if oracle is None:
        raise ToleranceError("ratio() needs oracle=, the reference in float64; got none.")
    if oracle.dtype != np.float64:
        raise ToleranceError(
            f"oracle '{sample.name}' is {oracle.dtype}, expected float64. Upcast the "
            "weights, not the result."
        )
    bad = int(np.sum(~np.isfinite(oracle)))
    if bad:
        raise ToleranceError(f"oracle '{sample.name}' holds {bad:,} values that are not finite.")
    return oracle


def _rms(error: NDArray[np.float64]) -> float:
    finite = error[np.isfinite(error)]
    return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0
