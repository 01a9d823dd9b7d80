"""Reading a compiled program's text: which operations its loop body does on arrays of a shape."""

import re
from collections import Counter

_DEFINITION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (\w+\[[\d,]*\])\S* ([\w\-]+)\(")
_CALLED = re.compile(r"(?:calls|body|condition|to_apply)=%?([\w.\-]+)")


def computations(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation by name."""
    found, name = {}, None
    for line in text.splitlines():
        head = re.match(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if head:
            name = head.group(1)
            found[name] = []
        elif name:
            found[name].append(line)
    return found


def loop_operations(text: str) -> Counter:
    """Return how often each (operation, shape) occurs in the largest loop, fusions included."""
    parts = computations(text)
    bodies = [match.group(1) for match in re.finditer(r"while\(.*?body=%?([\w.\-]+)", text)]
    counts = [_count(parts, body) for body in bodies]
    return max(counts, key=lambda count: sum(count.values()))


def _count(parts: dict[str, list[str]], name: str) -> Counter:
    total = Counter()
    for line in parts.get(name, []):
        match = _DEFINITION.match(line)
        if match:
            total[match.group(2), match.group(1)] += 1
        for called in _CALLED.findall(line):
            total += _count(parts, called)
    return total
