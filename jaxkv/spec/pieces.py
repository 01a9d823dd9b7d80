"""Tokens that come of merging characters by a vocabulary's scores, as sentencepiece's BPE does.

Of all neighbours whose joint text is a token, those with the highest score are joined first, the
leftmost of equal ones, until no two neighbours are a token. No list of merges is needed.
Sources: google/sentencepiece, `bpe_model.cc` (merging; pieces that are never given out are split
again); llama.cpp, src/llama-vocab.cpp, for what a GGUF file's tokenizer `llama` is: a space before
a text and after each special token, which are found in the text first.
"""

import heapq
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from jaxkv.spec.gguf_vocabulary import (
    BYTE,
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    fault,
)

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What stands for a space inside tokens."""


class Pieces:
    """Ids of a text by scores, and back.

    Args:
        vocabulary: Of the file.
        scores: Of each token.
        unknown_id: Of characters that neither a token nor bytes can write.
        space_prefix: Whether a text, and what follows a special token, gets a space before it.
        swallowing: Texts of special tokens that take the white space after them along.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        scores: Sequence[float],
        *,
        unknown_id: int,
        space_prefix: bool,
        swallowing: Collection[str] = (),
    ):
        tokens, kinds = vocabulary.tokens, vocabulary.kinds
        self._tokens, self._kinds = tokens, kinds
        self._unknown_id, self._space_prefix = unknown_id, space_prefix
        self._swallowing = frozenset(swallowing)
        joined = {i for i, kind in enumerate(kinds) if kind not in (UNKNOWN, CONTROL, BYTE)}
        self._ids = {tokens[i]: i for i in joined}
        self._scores = {tokens[i]: scores[i] for i in joined}
        self._unused = {tokens[i] for i in joined if kinds[i] == UNUSED}
        self._bytes = {i: _byte(tokens[i]) for i, kind in enumerate(kinds) if kind == BYTE}
        self._byte_ids = {byte: i for i, byte in self._bytes.items()}
        special = {UNKNOWN, CONTROL, USER_DEFINED}
        self._special_ids = {t: i for i, t in enumerate(tokens) if t and kinds[i] in special}
        # Of two that begin at one place the longer is meant.
        longest_first = sorted(self._special_ids, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return len(self._tokens)

    def encode(self, text: str, *, rendered: bool = False) -> list[int]:
        """Return the ids of a text, special tokens written out in it as their one id.

        Args:
            text: Anything.
            rendered: Changes nothing: no token is added to any text here.

        Cost: n log n in the longest stretch without special tokens; 3 s a million characters.
        """
        ids: list[int] = []
        at = 0
        for match in self._special.finditer(text):
            ids += self._segment_ids(text[at : match.start()])
            ids.append(self._special_ids[match[0]])
            at = match.end()
            while match[0] in self._swallowing and text[at : at + 1].isspace():
                at += 1
        return ids + self._segment_ids(text[at:])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; U+FFFD for bytes that are no UTF-8.

        The space that `encode` puts before a text stays: ids that continue a text begin with the
        space that belongs there.
        """
        return b"".join(map(self._written, ids)).decode("utf-8", "replace")

    def _written(self, token_id: int) -> bytes:
        if token_id in self._bytes:
            return bytes([self._bytes[token_id]])
        token = self._tokens[token_id]
        is_text = self._kinds[token_id] not in (UNKNOWN, CONTROL)
        return (token.replace(SPACE, " ") if is_text else token).encode()

    def _segment_ids(self, text: str) -> list[int]:
        if not text:
            return []
        written = (" " + text if self._space_prefix else text).replace(" ", SPACE)
        ids: list[int] = []
        for piece in _merged(written, self._scores, self._unused):
            ids += self._piece_ids(piece)
            # A run of unknown characters is one unknown token.
            if ids[-2:] == [self._unknown_id] * 2:
                ids.pop()
        return ids

    def _piece_ids(self, piece: str) -> list[int]:
        if piece in self._ids:
            return [self._ids[piece]]
        written = piece.encode()
        if all(byte in self._byte_ids for byte in written):
            return [self._byte_ids[byte] for byte in written]
        return [self._unknown_id]


def _byte(token: str) -> int:
    if not re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token):
        raise fault("tokenizer.ggml.tokens", token, "a byte such as '<0x0A>'", "Is it damaged?")
    return int(token[3:5], 16)


def _merged(text: str, scores: Mapping[str, float], unused: set[str]) -> Iterator[str]:
    """Yield the pieces of a text; those that are never given out are split as they were joined."""
    halves: dict[str, tuple[str, str]] = {}

    def give(piece: str) -> Iterator[str]:
        if piece in unused and piece in halves:
            for half in halves[piece]:
                yield from give(half)
        else:
            yield piece

    def note(left: str, right: str) -> None:
        if left + right in unused:
            halves[left + right] = (left, right)

    ends = _join(text, scores, note)
    at = 0
    while at < len(text):
        yield from give(text[at : ends[at]])
        at = ends[at]


def _join(text: str, scores: Mapping[str, float], note: Callable[[str, str], None]) -> list[int]:
    """Return where the piece that begins at a place ends, for the places where one begins."""
    size = len(text)
    ends, before = list(range(1, size + 1)), list(range(-1, size))
    heap: list[tuple[float, int, int]] = []

    def offer(left: int) -> None:
        right = ends[left]
        if right >= size:
            return
        score = scores.get(text[left : ends[right]])
        if score is not None:
            note(text[left:right], text[right : ends[right]])
            heapq.heappush(heap, (-score, left, ends[right]))

    for place in range(size - 1):
        offer(place)
    while heap:
        _, left, end = heapq.heappop(heap)
        right = ends[left]
        # An offer is void when one of its halves was joined to something else meanwhile.
        if right == 0 or right >= size or ends[right] != end:
            continue
        ends[left], ends[right] = end, 0
        if end < size:
            before[end] = left
        offer(left)
        if before[left] >= 0:
            offer(before[left])
    return ends
