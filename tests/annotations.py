"""Which calls' annotations are checked: to check each call took 60 % of an eager test's time."""

import jaxtyping

# All of a test's first calls, which are several steps of a model, and then each so many.
WHOLE, EACH = 1_000, 17


class Sparing(type(jaxtyping.config)):
    """jaxtyping's settings, of which every annotated call asks whether it is not to be checked."""

    calls = 0

    @property
    def jaxtyping_disable(self) -> bool:
        self.calls += 1
        return self.calls > WHOLE and self.calls % EACH != 0


def check_sparingly() -> None:
    """Count from here on: a test begins."""
    jaxtyping.config.__class__ = Sparing
    jaxtyping.config.calls = 0
