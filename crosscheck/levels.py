"""The four levels that need no oracle, and what any level must have.

Left is the candidate a, right the reference b.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import ToleranceError
from crosscheck.judge import Judgement, Sample, judge_each, largest, required_factor, share
from crosscheck.place import quantity


class Tolerance(Protocol):
    """A level of agreement: any frozen object with these members; str() gives all three."""

    @property
    def level(self) -> str:
        """The level's name, as typed."""
        ...

    @property
    def dtype(self) -> str:
        """The one dtype that the level judges, or "any"."""
        ...

    @property
    def rule(self) -> str:
        """The rule in words, without the numbers of a sample."""
        ...

    def judge(self, sample: Sample) -> Judgement:
        """Return the judgement of one point, element by element."""
        ...


def short(number: float) -> str:
    """Return a number as one would write it by hand: 1e-9, not 1e-09.

    >>> short(1e-9), short(0.05), short(2.0)
    ('1e-9', '0.05', '2')
    """
    return re.sub(r"e([+-])0+", r"e\1", f"{number:g}")


class Printed:
    """What all levels print: level, dtype, rule."""

    def __str__(self: Tolerance) -> str:
        return f"{self.level}, {self.dtype}, {self.rule}"


@dataclass(frozen=True)
class Bitwise(Printed):
    """Every bit equal; made by `bitwise`."""

    level: str = field(default="bitwise", init=False)
    dtype: str = field(default="any", init=False)
    rule: str = field(default="every bit equal", init=False)

    def judge(self, sample: Sample) -> Judgement:
        """Return the judgement; -0.0 and 0.0 differ, and NaN fails even against the same NaN."""
        a, b = sample.left, sample.right
        if a.dtype != b.dtype:
            raise ToleranceError(
                f"left '{sample.name}' is {a.dtype}, right is {b.dtype}, bitwise compares "
                "equal dtypes. Cast one."
            )
        error = sample.error()
        outside = (_bytes(a) != _bytes(b)).any(axis=-1) | ~np.isfinite(error)
        required = float(np.max(error)) if np.isfinite(error).all() else math.inf
        return Judgement("|a-b|", error, np.zeros_like(error), outside, required, self.rule)


@dataclass(frozen=True)
class Semantic(Printed):
    """The float64 gate: every error at most rtol * max |right|; made by `semantic`."""

    rtol: float
    level: str = field(default="semantic", init=False)
    dtype: str = field(default="float64", init=False)

    @property
    def rule(self) -> str:
        """The rule in words."""
        return f"{short(self.rtol)} x max |right|"

    def judge(self, sample: Sample) -> Judgement:
        """Return the judgement; `required` is the rtol that would have passed."""
        sample.require_float("semantic", self.dtype)
        error, scale = sample.error(), largest(sample.right)
        rule = f"{short(self.rtol)} x max |{quantity(sample.name)}| {scale:.2g}"
        required = required_factor(largest(error), scale)
        return judge_each("|a-b|", error, self.rtol * scale, required=required, rule=rule)


@dataclass(frozen=True)
class Close(Printed):
    """The familiar pair: every error at most atol + rtol * |right|; made by `close`."""

    rtol: float
    atol: float
    level: str = field(default="close", init=False)
    dtype: str = field(default="any", init=False)

    @property
    def rule(self) -> str:
        """The rule in words."""
        return f"{short(self.atol)} + {short(self.rtol)} x |right|"

    def judge(self, sample: Sample) -> Judgement:
        """Return the judgement; `required` is the factor on both numbers that would have passed."""
        sample.require_float("close")
        error = sample.error()
        magnitude = np.abs(sample.right.astype(np.float64))
        allowed = self.atol + self.rtol * np.where(np.isfinite(magnitude), magnitude, 0.0)
        required = largest(share(error, allowed)) * (1 + 1e-15)
        return judge_each("|a-b|", error, allowed, required=required, rule=self.rule)


@dataclass(frozen=True)
class Bounded(Printed):
    """Every error at most eps, an absolute bound from the scheme; made by `bounded`."""

    eps: float
    level: str = field(default="bounded", init=False)
    dtype: str = field(default="any", init=False)

    @property
    def rule(self) -> str:
        """The rule in words."""
        return f"eps {short(self.eps)}"

    def judge(self, sample: Sample) -> Judgement:
        """Return the judgement; `required` is the eps that would have passed."""
        sample.require_float("bounded")
        error = sample.error()
        return judge_each("|a-b|", error, self.eps, required=largest(error), rule=self.rule)


def _bytes(array: NDArray) -> NDArray[np.uint8]:
    flat = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    return flat.reshape(*array.shape, array.dtype.itemsize)
