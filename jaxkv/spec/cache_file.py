"""What stands beside the arrays of a saved cache, and what of it must agree before it is loaded."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxkv.spec.errors import ShapeError, SourceError
from jaxkv.spec.identity import Identity, first_difference

FORMAT, VERSION = "cache", 2


@dataclass(frozen=True)
class Saved:
    """What a saved cache says of itself.

    Attributes:
        identity: What its keys and values belong to, as plain data.
        tokens: The text that each row holds.
        form: Of the cache: capacity, the kinds of its parts, name -> dtype and shape of its arrays.
    """

    identity: dict[str, Any]
    tokens: list[list[int]]
    form: dict[str, Any]

    @property
    def capacity(self) -> int:
        """Tokens that a row can hold."""
        return self.form["capacity"]


def write_notes(
    twin: str, identity: Identity, tokens: Sequence[Sequence[int]], form: dict[str, Any]
) -> dict[str, str]:
    """Return the notes of a file: format, version, twin, identity, tokens and form.

    Args:
        twin: "jaxkv" or "torchkv", whose order of axes the arrays have.
        identity: What keys and values belong to.
        tokens: The text of each row.
        form: See `Saved`.
    """
    return {
        "format": f"{twin}-{FORMAT}",
        "version": str(VERSION),
        "identity": json.dumps(identity.to_dict()),
        "tokens": json.dumps([[int(token) for token in row] for row in tokens]),
        "form": json.dumps(form),
    }


def read_notes(twin: str, notes: Mapping[str, str]) -> Saved:
    """Return what the notes of a file say.

    Raises:
        SourceError: It is no cache, the other twin's, or of another version.
    """
    found, wanted = notes.get("format", "none"), f"{twin}-{FORMAT}"
    if found != wanted:
        raise SourceError(
            f"load: the file's format is {found!r}, expected {wanted!r}. Was it written by "
            f"{twin}'s `save`? The twins order axes differently and read their own files only."
        )
    if notes.get("version") != str(VERSION):
        raise SourceError(
            f"load: the file's version is {notes.get('version')}, this program reads {VERSION}. "
            "Use the program that wrote it, or compute the cache anew."
        )
    try:
        identity, tokens, form = (json.loads(notes[key]) for key in ("identity", "tokens", "form"))
    except (KeyError, json.JSONDecodeError) as error:
        raise SourceError(f"load: the file's notes are damaged ({error!r}). Save again.") from error
    return Saved(identity, tokens, form)


def check_saved(
    saved: Saved,
    identity: Identity,
    tokens: Sequence[Sequence[int]] | None,
    form: dict[str, Any],
) -> None:
    """Refuse a file that differs in anything, and name the first field that does.

    Args:
        saved: What the file says.
        identity: What is asked for.
        tokens: The texts that are asked for; None for whichever were saved.
        form: Of the cache that it is to become.

    Raises:
        SourceError: Identity or tokens differ.
        ShapeError: The form differs.
    """
    for field, value in json.loads(json.dumps(identity.to_dict())).items():
        found = first_difference(saved.identity.get(field, "nothing"), value, field)
        if found is not None:
            raise SourceError(
                f"load: {found[0]} is {found[1]!r} in the file, {found[2]!r} asked for. Compute "
                "the cache anew."
            )
    if tokens is not None:
        texts = [[int(token) for token in row] for row in tokens]
        if (found := first_difference(saved.tokens, texts, "tokens")) is not None:
            raise SourceError(
                f"load: {found[0]} is {found[1]} in the file, {found[2]} asked for. Ask for the "
                "text that was saved, or compute the cache anew."
            )
    if (found := first_difference(saved.form, json.loads(json.dumps(form)), "cache")) is not None:
        place = found[0].removeprefix("cache.")
        raise ShapeError(
            f"load: {place} is {found[1]} in the file, {found[2]} in `like`. Make them alike."
        )


def check_texts(function: str, tokens: Sequence[Sequence[int]], lengths: Sequence[int]) -> None:
    """Refuse texts of which a cache holds another number of tokens.

    Raises:
        ShapeError: The number of rows or a row's length differs.
    """
    counts = [len(row) for row in tokens]
    if counts != list(lengths):
        raise ShapeError(
            f"{function}: tokens has rows of {counts}, the cache holds {list(lengths)}. Give what "
            "has entered the model: of a finished generation all but the last token."
        )
