"""Arrays in the header of a GGUF file, read at once: a vocabulary is 100,000 of their elements.

Source of the format: docs/gguf.md of ggml-org/ggml: the elements' type (uint32), their number
(uint64), the elements; a string is its length (uint64) and its bytes.
"""

import struct
from collections.abc import Callable

_LENGTH = struct.Struct("<Q")


def string_parts(
    view: memoryview, start: int, count: int, cut: Callable[[int, int], Exception]
) -> tuple[int, list[memoryview]]:
    """Return where an array of strings ends, and the bytes of each.

    Args:
        view: All bytes of the file.
        start: Where the first string's length stands.
        count: How many strings there are; a damaged number ends at the file's end.
        cut: Makes the error from the file's size and the byte that it should have.

    Raises:
        Exception: What `cut` makes, if a string lies beyond the file's end.
    """
    parts, at, size = [], start, len(view)
    for _ in range(count):
        begin = at + _LENGTH.size
        if begin > size:
            raise cut(size, begin)
        at = begin + _LENGTH.unpack_from(view, at)[0]
        if at > size:
            raise cut(size, at)
        parts.append(view[begin:at])
    return at, parts
