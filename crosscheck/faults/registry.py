"""What a fault is, and the decorator that names one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from crosscheck.errors import CrosscheckError
from crosscheck.subjects.protocol import SubjectInfo, describe

Plant = Callable[[Any], Any]
Applies = Callable[[SubjectInfo], str]


@dataclass(frozen=True)
class Fault:
    """One fault: `plant(subject)` returns a subject that has it.

    Attributes:
        name: Dotted, unique (`pos.reset`); a third part names a variant (`pos.reset.queries`).
        needs: Capabilities of the subject through which it is planted.
        kinds: Letters of docs/bug-reports.md.
        shows: What the cache shows first: "positions", "attention", "write", "overwrite",
            "bookkeeping", "output" or "run" (the rows of the first-differing-entry table).
        about: What is wrong, one sentence.
        advice: What to look at in the source, one sentence.
        plant: Wraps the subject; the subject itself stays right.
        ways: Where there are several ways to plant it: what each needs besides; one is enough.
        applies: Gives the reason why a subject cannot have it, "" where it can.
        parity: Whether it changes cached and uncached runs alike, so that only a second model
            can show it.
    """

    name: str
    needs: frozenset[str]
    kinds: frozenset[str]
    shows: str
    about: str
    advice: str
    plant: Plant
    ways: tuple[frozenset[str], ...] = ()
    applies: Applies | None = None
    parity: bool = False

    def missing(self, info: SubjectInfo) -> str:
        """Return why this fault cannot be planted in such a subject; "" where it can."""
        lacking = sorted(self.needs - info.capabilities)
        if lacking:
            return f"the subject does not declare {', '.join(lacking)}"
        if self.ways and not any(way <= info.capabilities for way in self.ways):
            ways = " or ".join(" with ".join(sorted(way)) for way in self.ways)
            return f"the subject does not declare {ways}"
        return "" if self.applies is None else self.applies(info)


FAULTS: dict[str, Fault] = {}


def fault(
    *,
    name: str,
    needs: Iterable[str],
    shows: str,
    advice: str,
    kinds: Iterable[str] = (),
    ways: Iterable[Iterable[str]] = (),
    applies: Applies | None = None,
    parity: bool = False,
) -> Callable[[Plant], Plant]:
    """Return a decorator that registers a planter as a fault; its docstring says what is wrong.

    Raises:
        CrosscheckError: The name is taken, or the function has no docstring.
    """

    def register(plant: Plant) -> Plant:
        if name in FAULTS:
            raise CrosscheckError(f"fault: name is {name!r}, which is taken. Choose another.")
        about = (plant.__doc__ or "").strip().split("\n\n")[0]
        if not about:
            raise CrosscheckError(f"fault: {name!r} has no docstring that says what is wrong.")

        def named(subject: Any) -> Any:
            if reason := FAULTS[name].missing(describe(subject)):
                raise CrosscheckError(f"plant: {name} cannot be planted: {reason}.")
            planted = plant(subject)
            planted.fault = name
            return planted

        FAULTS[name] = Fault(
            name,
            frozenset(needs),
            frozenset(kinds),
            shows,
            " ".join(about.split()),
            advice,
            named,
            tuple(frozenset(way) for way in ways),
            applies,
            parity,
        )
        return plant

    return register
