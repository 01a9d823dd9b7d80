"""Faults of compiled forms: what was a number at the first trace is a constant ever after."""

from typing import Any

from numpy.typing import NDArray

from crosscheck.faults.planted import Call, Held, Planted
from crosscheck.faults.positions import NEEDS, Positioned, within
from crosscheck.faults.registry import fault


class Compiled(Positioned):
    """Computes every step at the positions of the first step of the same width."""

    def __init__(self, subject: Any) -> None:
        super().__init__(subject, self.traced)
        self.start: dict[int, int] = {}

    def traced(self, planted: Planted, held: Held, call: Call) -> NDArray:
        """Return positions from where the first step of this width began."""
        start = self.start.setdefault(call.width, int(call.length_B.max()))
        return within(call.position_BT - call.length_B[:, None] + start, self.facts.max_positions)


class CompiledWrongly(Planted):
    """Is right itself; its variant `jit` is not."""

    def variant(self, name: str) -> Any:
        """Return the variant, the compiled one with the fault."""
        variant = self.inner.variant(name)
        return Compiled(variant) if name == "jit" else variant


@fault(
    name="jit.stale",
    needs=NEEDS | {"jit"},
    kinds="E",
    shows="positions",
    advice="Look for a Python int (a length, an offset) that the traced function closes over.",
)
def jit_stale(subject: Any) -> Planted:
    """The compiled step keeps the offset that it was traced with."""
    return CompiledWrongly(subject)
