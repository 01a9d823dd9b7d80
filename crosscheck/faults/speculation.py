"""Faults of drafting ids, verifying them in one step, and taking back what was rejected."""

from typing import Any

from numpy.typing import NDArray

from crosscheck.faults.drafting import speculated
from crosscheck.faults.planted import Planted
from crosscheck.faults.registry import fault
from crosscheck.subjects.protocol import SubjectInfo

NEEDS = {"cache", "chunk", "rollback", "speculate"}


def _alone(info: SubjectInfo) -> str:
    return "drafting is not driven beside an encoder" if "cross" in info.capabilities else ""


class KeepsDrafts(Planted):
    """Leaves rejected drafts in the cache."""

    def speculate(self, ids: NDArray, new: int, draft: Any, k: int) -> NDArray:
        """Return ids [B, T + new]."""
        return speculated(self, ids, new, draft, k, back=lambda state, rejected: state)


@fault(
    name="spec.leak",
    needs=NEEDS,
    kinds="F",
    shows="overwrite",
    applies=_alone,
    advice="Look at how many drafted tokens the rollback after a rejection takes back.",
)
def spec_leak(subject: Any) -> Planted:
    """Rejected drafts stay in the cache."""
    return KeepsDrafts(subject)


class WrongBonus(Planted):
    """Takes the id after the accepted ones from the row before the right one."""

    def speculate(self, ids: NDArray, new: int, draft: Any, k: int) -> NDArray:
        """Return ids [B, T + new]."""
        return speculated(self, ids, new, draft, k, bonus=lambda accepted: max(accepted - 1, 0))


@fault(
    name="spec.bonus",
    needs=NEEDS,
    kinds="F",
    shows="output",
    applies=_alone,
    advice="Look at which row of the verifying step the id after the accepted ones comes from.",
)
def spec_bonus(subject: Any) -> Planted:
    """The id after the accepted drafts is that of the position before."""
    return WrongBonus(subject)
