"""Stop strings: where a text ends before one, and how much of a growing text is certain."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxkv.spec.errors import RequestError

Decode = Callable[[Sequence[int]], str]
_UNFINISHED = "\ufffd"


@dataclass(frozen=True)
class Certain:
    """What later tokens cannot change.

    Attributes:
        count: Ids whose text is the beginning of `text`. The last character of the text may be
            within the next id: a token is kept whole or not at all.
        text: Up to the stop string, or to what may still become one.
        stop: The stop string that was found; None for none.
    """

    count: int
    text: str
    stop: str | None


@dataclass(frozen=True)
class Stops:
    """Strings that end a text, and how ids become text.

    Of several in a text the one that is complete first counts, of those the longest: so the result
    does not depend on how many tokens come at a time.

    Attributes:
        strings: None of them empty; without one, only characters wait for their bytes.
        decode: Ids -> text; more ids only ever append to it, but for a character whose bytes are
            not all there yet.
    """

    strings: tuple[str, ...]
    decode: Decode

    def look(self, ids: Sequence[int], *, is_last: bool) -> Certain:
        """Return what is certain of a text.

        Args:
            ids: The new ones, all of them so far.
            is_last: Whether no more will come, so that nothing is held back.

        Cost: decodes the text once, and once for each id held back.
        """
        text = self.decode(ids)
        whole = text if is_last else text.rstrip(_UNFINISHED)
        found = [(at + len(s), at, s) for s in self.strings if (at := whole.find(s)) >= 0]
        _, at, stop = min(found, default=(0, len(whole), None))
        if stop is None and not is_last:
            at -= self._held(whole)
        count = next(n for n in range(len(ids), -1, -1) if self._begins(whole[:at], ids[:n]))
        return Certain(count, whole[:at], stop)

    def _begins(self, text: str, ids: Sequence[int]) -> bool:
        return not ids or text.startswith(self.decode(ids))

    def _held(self, text: str) -> int:
        """Return how many last characters could be the beginning of a stop string."""
        longest = min(len(text), max(map(len, self.strings), default=1) - 1)
        ends = (size for size in range(longest, 0, -1) if self._can_end(text[-size:]))
        return next(ends, 0)

    def _can_end(self, end: str) -> bool:
        return any(string.startswith(end) for string in self.strings)


def check_stops(function: str, stop: Any, decode: Decode | None) -> Stops | None:
    """Return the stop strings that are asked for; None for none.

    Args:
        function: For messages: whose arguments these are.
        stop: A string, several, or none.
        decode: Ids -> text.

    Raises:
        RequestError: A string is empty or none, or there is nothing to make text with.
    """
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for each in strings:
        if not isinstance(each, str) or not each:
            raise RequestError(
                f"{function}: stop holds {each!r}, expected strings of at least 1 character. Leave "
                "it out."
            )
    if strings and decode is None:
        raise RequestError(
            f"{function}: stop is {strings[0]!r}, and decode is None, expected what makes text of "
            "ids. Give decode=tokenizer.decode."
        )
    return Stops(strings, decode) if strings and decode is not None else None
