"""What the tester drives: a model behind numpy arrays, with what it can do declared."""

from crosscheck.subjects.protocol import (
    CAPABILITIES,
    KV,
    Documented,
    Subject,
    SubjectInfo,
    describe,
)

__all__ = ["CAPABILITIES", "KV", "Documented", "Subject", "SubjectInfo", "describe"]
