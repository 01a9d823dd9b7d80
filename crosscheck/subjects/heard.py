"""What one part of a model was given and what it gave, in one run; for subjects that can tell.

Such a subject has `heard()`, a context that collects part -> Heard while the subject is called.
"""

from dataclasses import dataclass
from typing import Any

OPAQUE = "..."


@dataclass(frozen=True)
class Heard:
    """One call of a part.

    Attributes:
        given: Its arguments' arrays and plain values, in order; OPAQUE for any other object, as a
            cache is.
        gave: Those of its results.
    """

    given: tuple[Any, ...]
    gave: tuple[Any, ...]
