"""The differential tester: do two decoders agree, and where do they first differ? Needs numpy."""

from crosscheck.compare import Comparison, assert_agree, compare
from crosscheck.decoder import decode
from crosscheck.errors import (
    ComparisonError,
    CrosscheckError,
    DecoderError,
    Disagreement,
    Inconclusive,
    ToleranceError,
)
from crosscheck.greedy import GreedyComparison, assert_greedy_agree, compare_greedy
from crosscheck.levels import Tolerance
from crosscheck.place import Place
from crosscheck.tolerance import bitwise, bounded, close, ratio, semantic

__all__ = [
    "Comparison",
    "ComparisonError",
    "CrosscheckError",
    "DecoderError",
    "Disagreement",
    "GreedyComparison",
    "Inconclusive",
    "Place",
    "Tolerance",
    "ToleranceError",
    "assert_agree",
    "assert_greedy_agree",
    "bitwise",
    "bounded",
    "close",
    "compare",
    "compare_greedy",
    "decode",
    "ratio",
    "semantic",
]
