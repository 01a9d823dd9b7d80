"""What stands beside the arrays of a saved cache, and what of it must agree before it is loaded."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxkv.spec.errors import RequestError, ShapeError, SourceError
from jaxkv.spec.identity import Identity, first_difference

FORMAT, VERSION = "cache", 3
# What helps besides computing the cache anew, where anything does.
_REMEDY = {
    "dtype": "Load the model in the file's dtype, or compute",
    "layout": "Ask for the file's layout, or compute",
    "adapter": "Ask for the file's adapter, or compute",
}


@dataclass(frozen=True)
class Saved:
    """What a saved cache says of itself.

    Attributes:
        identity: What its keys and values belong to, as plain data.
        tokens: The text that each row holds.
        encoder: What the encoder read of each source; None for a model without one.
        form: Of the cache: capacity, the kinds of its parts, name -> dtype and shape of its arrays.
    """

    identity: dict[str, Any]
    tokens: list[list[int]]
    encoder: list[list[int]] | None
    form: dict[str, Any]

    @property
    def capacity(self) -> int:
        """Tokens that a row can hold."""
        return self.form["capacity"]


def write_notes(
    twin: str,
    identity: Identity,
    tokens: Sequence[Sequence[int]],
    encoder: Sequence[Sequence[int]] | None,
    form: dict[str, Any],
) -> dict[str, str]:
    """Return the notes of a file: format, version, twin, identity, tokens, encoder and form.

    Args:
        twin: "jaxkv" or "torchkv", whose order of axes the arrays have.
        identity: What keys and values belong to.
        tokens: The text of each row.
        encoder: The text of each source; None for a model without an encoder.
        form: See `Saved`.
    """
    return {
        "format": f"{twin}-{FORMAT}",
        "version": str(VERSION),
        "identity": json.dumps(identity.to_dict()),
        "tokens": json.dumps(_plain(tokens)),
        "encoder": json.dumps(None if encoder is None else _plain(encoder)),
        "form": json.dumps(form),
    }


def read_notes(function: str, twin: str, notes: Mapping[str, str], *, tenant: str) -> Saved:
    """Return what the notes of a file say, to the tenant who saved it alone.

    Whoever else asks is told that it is another's, and neither whose nor anything of its text: a
    tenant's name is a salt, and a text is read out of messages token by token.

    Args:
        function: For messages: who asks.
        twin: Whose file it should be.
        notes: Of the file.
        tenant: Who asks to read it.

    Raises:
        SourceError: It is no cache, the other twin's, of another version, or another tenant's.
    """
    found, wanted = notes.get("format", "none"), f"{twin}-{FORMAT}"
    if found != wanted:
        raise SourceError(
            f"{function}: the file's format is {found!r}, expected {wanted!r}. Was it written by "
            f"{twin}'s `save`? The twins order axes differently and read their own files only."
        )
    if notes.get("version") != str(VERSION):
        raise SourceError(
            f"{function}: the file's version is {notes.get('version')}, this program reads "
            f"{VERSION}. Use the program that wrote it, or compute the cache anew."
        )
    try:
        identity = json.loads(notes["identity"])
        _check_tenant(function, identity["tenant"], tenant)
        tokens, encoder, form = (json.loads(notes[name]) for name in ("tokens", "encoder", "form"))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise SourceError(
            f"{function}: the file's notes are damaged ({error!r}). Save again."
        ) from error
    return Saved(identity, tokens, encoder, form)


def _check_tenant(function: str, owner: str, tenant: str) -> None:
    if owner != tenant:
        raise SourceError(
            f"{function}: tenant is {tenant!r}, expected the one that saved the file. Ask as the "
            "tenant that saved it, or compute the cache anew."
        )


def check_saved(
    saved: Saved,
    identity: Identity,
    tokens: Sequence[Sequence[int]] | None,
    encoder: Sequence[Sequence[int]] | None,
    form: dict[str, Any],
) -> None:
    """Refuse a file that differs in anything, and name the first field that does.

    Args:
        saved: What the file says.
        identity: What is asked for.
        tokens: The texts that are asked for; None for whichever were saved.
        encoder: What the encoder read, as asked for; None for a model without one.
        form: Of the cache that it is to become.

    Raises:
        SourceError: Identity, tokens or the encoder's texts differ.
        ShapeError: The form differs.
    """
    wanted = json.loads(json.dumps(identity.to_dict()))
    # The hash of the weights differs with their dtype: the cause is named, not what follows.
    for field in ("dtype", *wanted):
        found = first_difference(saved.identity.get(field, "nothing"), wanted[field], field)
        if found is not None:
            raise SourceError(
                f"load: {found[0]} is {found[1]!r} in the file, {found[2]!r} asked for. "
                f"{_REMEDY.get(field, 'Compute')} the cache anew."
            )
    asked = {"tokens": (saved.tokens, tokens), "encoder": (saved.encoder, encoder)}
    for name, (held, texts) in asked.items():
        found = None if texts is None else first_difference(held, _plain(texts), name)
        if found is not None:
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


def check_encoder(
    function: str, encoder: Sequence[Sequence[int]] | None, lengths: Sequence[int] | None
) -> None:
    """Refuse a cache whose sources are not named, and sources that it does not have.

    Equal tokens of two sources have other keys and values, which nothing else in a file tells.

    Args:
        function: For messages.
        encoder: What the encoder read of each source.
        lengths: Of the sources that the cache holds; None if it holds none, empty if unknown.

    Raises:
        RequestError: `encoder` is missing, or given without need.
        ShapeError: The number of sources or a source's length differs.
    """
    if lengths is None:
        if encoder is not None:
            raise RequestError(
                f"{function}: encoder is given, but the cache holds nothing of an encoder. Leave "
                "it out."
            )
        return
    if encoder is None:
        raise RequestError(
            f"{function}: encoder is None, but the cache holds what an encoder read. Give the ids "
            "of each source."
        )
    counts = [len(row) for row in encoder]
    if lengths and counts != list(lengths):
        raise ShapeError(
            f"{function}: encoder has rows of {counts}, the cache's sources are of "
            f"{list(lengths)}. Give what the encoder has read."
        )


def _plain(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[int(token) for token in row] for row in texts]
