"""A place in an array [B, T, ...], and the words for it: row, position, head, channel, token."""

import re
from dataclasses import dataclass


def is_logits(name: str) -> bool:
    """Return whether a point holds logits, by its name (`logits`, `logits_BTV`)."""
    return re.fullmatch(r"logits(_[A-Z]+)?", name) is not None


def quantity(name: str) -> str:
    """Return a point's name for use between bars, without its dimension suffix: `|logit|`."""
    return "logit" if is_logits(name) else re.sub(r"_[A-Z]+$", "", name)


def point_words(name: str) -> str:
    """Return a point's name in words: `k.1` and `layers.1.k` are both "layer 1, k"."""
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", name):
        return f"layer {match[1]}, {match[2]}"
    if match := re.fullmatch(r"(.+)\.(\d+)", name):
        return f"layer {match[2]}, {match[1]}"
    return name


def possessive(name: str) -> str:
    """Return a captured point's name as a part of a sentence: "layer 1's attn"."""
    found = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
    if found is None:
        return "what enters the last norm" if name == "norm.in" else name
    layer, part = f"layer {found[1]}", found[2]
    if part == "in":
        return f"what enters {layer}"
    fed = part.removesuffix("_norm")
    return f"{layer}'s {part}" if fed == part else f"what enters {layer}'s {fed}"


@dataclass(frozen=True)
class Place:
    """One element: its point, row (axis 0), position (axis 1) and the rest of its index."""

    name: str
    row: int
    position: int
    index: tuple[int, ...]

    def __str__(self) -> str:
        rest = self.index
        words = [f"row {self.row}", f"position {self.position}"]
        if len(rest) == 1:
            words.append(f"{'token' if is_logits(self.name) else 'channel'} {rest[0]}")
        elif len(rest) == 2:
            words += [f"head {rest[0]}", f"channel {rest[1]}"]
        elif rest:
            words.append(f"index {rest}")
        return ", ".join(words)
