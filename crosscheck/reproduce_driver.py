"""Cut the lines that drive a bare model down to what one program needs."""

import re
from collections.abc import Sequence, Set

HELPERS = frozenset({"__init__", "call"})


def trimmed(driver: Sequence[str], used: Set[str], *, plain: bool) -> tuple[str, ...] | None:
    """Return a driver with only the methods used, or None where it lacks one of them.

    Args:
        driver: Lines of a class `Drive`, its imports first.
        used: Methods that the program calls.
        plain: Whether every call gives ids alone: what serves masks and positions is left out.
    """
    head, blocks = _blocks(driver)
    if used - blocks.keys():
        return None
    kept = [block for name, block in blocks.items() if name in used | HELPERS]
    if plain and "call" in blocks:
        kept[kept.index(blocks["call"])] = _plain_call(blocks["call"])
    body = [line for block in kept for line in block]
    return (*(line.replace("import copy, ", "import ") for line in head), *body)


def _blocks(driver: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    head: list[str] = []
    blocks: dict[str, list[str]] = {}
    block = head
    for line in driver:
        if match := re.match(r"    def (\w+)\(", line):
            block = blocks.setdefault(match[1], [])
        block.append(line)
    return head, blocks


def _plain_call(block: Sequence[str]) -> list[str]:
    first = next(i for i, line in enumerate(block) if line.strip().startswith("with "))
    ids = "torch.as_tensor(np.array(ids, np.int64))"
    rest = [line.replace("torch.as_tensor(ids)", ids).replace("**given, ", "") for line in block]
    return [rest[0], *rest[first:]]
