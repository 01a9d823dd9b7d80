"""The level of relations that compare a state too: memory bit by bit, logits by the gate."""

from dataclasses import dataclass

from crosscheck.judge import Judgement, Sample
from crosscheck.levels import Bitwise, Semantic


@dataclass(frozen=True)
class Stateful(Semantic):
    """Every bit of `k.i` and `v.i` equal, everything else within rtol * max |right|."""

    @property
    def rule(self) -> str:
        """The rule in words."""
        return f"{super().rule}, k and v bit by bit"

    def judge(self, sample: Sample) -> Judgement:
        """Return the judgement by the level that the point's name asks for."""
        if sample.name.startswith(("k.", "v.")):
            return Bitwise().judge(sample)
        return super().judge(sample)


def stateful(*, rtol: float = 1e-9) -> Stateful:
    """Return the level: bits for keys and values, the float64 gate for the rest."""
    return Stateful(rtol)
