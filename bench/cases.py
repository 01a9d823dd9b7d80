"""The cases of decode and prefill: batch, prompt, capacity and how much of it is used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.runner import Runner
from jaxkv.spec.source import open_source, open_tokenizer

Continue = Callable[[int], list[list[int]]]
# Prompt tokens of all rows from which on the steps of decode are timed without their prefill.
LONG = 2048


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: As in the results.
        batch: Rows, all with the same prompt length and different texts.
        prompt: Tokens of each prompt.
        new: New tokens.
        capacity: Of a cache allocated before the clock starts; None leaves it to the subject.
    """

    name: str
    batch: int
    prompt: int
    new: int
    capacity: int | None = None


CASES = {
    case.name: case
    for case in (
        Case("b1-p16", batch=1, prompt=16, new=33),
        Case("b8-p16", batch=8, prompt=16, new=33),
        Case("b8-p1024", batch=8, prompt=1024, new=17),
        Case("b1-p512", batch=1, prompt=512, new=17),
        Case("b1-p2048", batch=1, prompt=2048, new=17),
        Case("b1-cap512-u300", batch=1, prompt=256, new=45, capacity=512),
        Case("b1-cap8192-u300", batch=1, prompt=256, new=45, capacity=8192),
    )
}


CASE_HELP = f"of {', '.join(CASES)}"


def used_of(case: Case) -> int:
    """Return the tokens that a row holds on average while its new ones are decoded."""
    return case.prompt + case.new // 2


def prompts_of(case: Case) -> list[list[int]]:
    """Return the case's prompts, each a different stretch of one text."""
    ids = _text()
    return [ids[37 * row : 37 * row + case.prompt] for row in range(case.batch)]


@cache
def _text() -> list[int]:
    tokenizer = open_tokenizer(open_source("smollm2"))
    return tokenizer.encode((Path(__file__).parent / "prompt.txt").read_text())


def differing(
    case: Case, runners: list[Runner], calls: Mapping[str, Continue] | None = None
) -> list[str]:
    """Return the subjects whose ids differ from the last one's: they must not be timed.

    Args:
        case: What is run.
        runners: Who.
        calls: By name, calls that continue the case's prompts, from `kept`; the others prefill.
    """
    kept = calls or {}
    texts = {
        runner.name: kept[runner.name](case.new)
        if runner.name in kept
        else runner.prepare(prompts_of(case), case.new, capacity=case.capacity)()
        for runner in runners
    }
    expected = texts[runners[-1].name]
    return [name for name, ids in texts.items() if ids != expected]


def kept(case: Case, runners: list[Runner]) -> dict[str, Continue]:
    """Return, by name, the calls that continue a long case's prompts after they entered once.

    None for a short case, and none of a subject that cannot: its every call prefills.
    """
    if case.batch * case.prompt < LONG or case.capacity is not None:
        return {}
    able = [runner for runner in runners if hasattr(runner, "kept")]
    return {each.name: each.kept(prompts_of(case), case.new) for each in able}  # pyright: ignore[reportAttributeAccessIssue] as asked in the line above
