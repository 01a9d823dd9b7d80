"""What a fault is, and the decorator that names one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from crosscheck.errors import CrosscheckError

Plant = Callable[[Any], Any]


@dataclass(frozen=True)
class Fault:
    """One fault: `plant(subject)` returns a subject that has it.

    Attributes:
        name: Dotted, unique (`pos.reset`).
        needs: Capabilities of the subject through which it is planted.
        kinds: Letters of docs/bug-reports.md.
        shows: What the cache shows first: "positions", "attention", "write", "overwrite",
            "bookkeeping", "output" or "run" (the rows of the first-differing-entry table).
        about: What is wrong, one sentence.
        advice: What to look at in the source, one sentence.
        plant: Wraps the subject; the subject itself stays right.
    """

    name: str
    needs: frozenset[str]
    kinds: frozenset[str]
    shows: str
    about: str
    advice: str
    plant: Plant


FAULTS: dict[str, Fault] = {}


def fault(
    *, name: str, needs: Iterable[str], shows: str, advice: str, kinds: Iterable[str] = ()
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
        FAULTS[name] = Fault(name, frozenset(needs), frozenset(kinds), shows, about, advice, plant)
        return plant

    return register
