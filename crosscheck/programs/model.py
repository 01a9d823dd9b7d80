"""What each row of a cache holds, as plain lists of tokens: the truth that a program is held to.

Letters: B rows, T tokens of the stream.
"""

from dataclasses import dataclass, replace

from crosscheck.programs.case import (
    Append,
    AppendRagged,
    Case,
    Fork,
    Gather,
    Op,
    Pad,
    Rollback,
    Speculate,
)

Text = tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """The texts of all rows after some operations.

    Row i reads the stream ids[i % B] at one cursor that all rows share and no operation moves back,
    so that what follows a rollback differs from what it dropped, and copies of a row part ways. The
    stream starts again at its end.

    Attributes:
        case: Where the streams are.
        texts: What each row holds.
        cursor: Tokens of the streams that are spent.
        pad: Tokens that are not real, owed to the next append.
        padded: How many of those were fed so far, which some caches keep room for.
    """

    case: Case
    texts: tuple[Text, ...]
    cursor: int = 0
    pad: Pad | None = None
    padded: int = 0

    @classmethod
    def start(cls, case: Case) -> "Rows":
        """Return empty rows, one a stream."""
        return cls(case, ((),) * case.ids.shape[0])

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens each row holds."""
        return tuple(map(len, self.texts))

    def coming(self, n: int) -> tuple[Text, ...]:
        """Return the next n tokens of each row's stream."""
        streams, period = self.case.ids.shape
        places = [(self.cursor + i) % period for i in range(n)]
        return tuple(
            tuple(int(self.case.ids[row % streams, place]) for place in places)
            for row in range(len(self.texts))
        )

    def after(self, op: Op) -> "Rows":
        """Return the rows after one operation."""
        match op:
            case Append(n):
                return self._fed((n,) * len(self.texts))
            case AppendRagged(counts):
                return self._fed(counts)
            case Rollback(to):
                kept = (to,) * len(self.texts) if isinstance(to, int) else to
                return self._kept(kept)
            case Gather(rows):
                return replace(self, texts=tuple(self.texts[row] for row in rows))
            case Fork(n):
                return replace(self, cursor=self.cursor + n)
            case Speculate(k, accepted):
                kept = tuple(length + accepted for length in self.lengths)
                return self._fed((k,) * len(self.texts))._kept(kept)
            case Pad():
                return replace(self, pad=op)
            case _:
                return self

    def _fed(self, counts: tuple[int, ...]) -> "Rows":
        spent = max(counts)
        texts = tuple(
            text + new[:count]
            for text, new, count in zip(self.texts, self.coming(spent), counts, strict=True)
        )
        extra = 0 if self.pad is None else self.pad.n
        return replace(
            self, texts=texts, cursor=self.cursor + spent, pad=None, padded=self.padded + extra
        )

    def _kept(self, lengths: tuple[int, ...]) -> "Rows":
        texts = tuple(text[:n] for text, n in zip(self.texts, lengths, strict=True))
        return replace(self, texts=texts)


def room(case: Case) -> int:
    """Return the tokens for which a cache needs room to run a case, those not real included."""
    rows, most = Rows.start(case), 1
    for op in case.ops:
        held = max(rows.lengths) + rows.padded
        rows = rows.after(op)
        passing = op.k if isinstance(op, Speculate) else op.n if isinstance(op, Fork) else 0
        most = max(most, held + passing, max(rows.lengths) + rows.padded)
    return most
