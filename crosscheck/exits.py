"""Exit codes: one a verdict, so that a script can tell "could not tell" from "agrees"."""

PASS, DIVERGENCE, USAGE, UNTOLD, RAISED, NOTHING = range(6)

MEANING = {
    PASS: "every relation that ran agrees, and each has seen faults planted in this model",
    DIVERGENCE: "a divergence",
    USAGE: "wrong usage",
    UNTOLD: "blind or inconclusive: the run could not tell",
    RAISED: "the subject raised, or broke the protocol",
    NOTHING: "nothing was compared: everything is unsupported, or nothing was selected",
}

_OF_VERDICT = {
    "pass": PASS,
    "fail": DIVERGENCE,
    "error": RAISED,
    "inconclusive": UNTOLD,
    "blind": UNTOLD,
    "unsupported": NOTHING,
}


def exit_code(verdict: str, *, allow_blind: bool = False) -> int:
    """Return the exit code of a verdict.

    Args:
        verdict: Of the whole run.
        allow_blind: Whether blind exits with 0; the verdict stays blind, and nothing else changes.
    """
    if allow_blind and verdict == "blind":
        return PASS
    return _OF_VERDICT[verdict]
