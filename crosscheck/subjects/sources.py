"""From what is typed on the command line to a subject."""

import ast
import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from crosscheck.adapters.dispatch import adapt, kind_of
from crosscheck.errors import CrosscheckError, SubjectRaised
from crosscheck.subjects.functions import FunctionSubject
from crosscheck.subjects.modules import importable, one_line
from crosscheck.subjects.protocol import Documented, describe

FORMS = (
    "hf:DIR, hf-tiny:FAMILY, onnx:FILE, pkg.mod:factory or file.py:factory, each with "
    "?key=value&key=value"
)
ADAPTER_HINTS = frozenset({"cache", "gather", "name", "call", "amplify"})


def load_subject(text: str) -> Any:
    """Return the subject that a text names.

    `hf:DIR` (a checkpoint of transformers), `hf-tiny:FAMILY` (a random tiny model), `onnx:FILE`
    (an exported decoder with past inputs), `pkg.mod:factory`, `file.py:factory`; options follow a
    question mark. A factory returns a subject, or a model of any adapted kind, alone or with a dict
    of hints. A module without an attribute of that name but with a function `factory` gets the
    name as its first argument.

    Raises:
        CrosscheckError: The text has another form, names nothing, or the factory refuses.
        SubjectRaised: The factory raised.
    """
    head, options = parse(text)
    # In a process that has not met JAX yet, float64 is still to be had.
    if "jax" not in sys.modules:
        os.environ.setdefault("JAX_ENABLE_X64", "1")
    where, _, name = head.partition(":")
    if where == "hf-tiny":
        subject = _tiny(name, options)
    elif where == "hf":
        from crosscheck.adapters.hf_load import load_directory

        _room(options)
        subject = sourced(load_directory(name, **options), bare=True)
    elif where == "onnx":
        from crosscheck.adapters.onnx import open_onnx

        subject = open_onnx(name, **options)
    else:
        subject = _from_factory(where, name, options)
    return sourced(subject, source=text)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Return the text before the last question mark, and the options after it.

    Values are Python literals where they can be read so, else text.

    Raises:
        CrosscheckError: No colon, an empty side, or an option without an equals sign.
    """
    head, mark, query = text.rpartition("?")
    head, query = (head, query) if mark else (text, "")
    where, colon, name = head.partition(":")
    if not (where and colon and name):
        hint = f" Did you mean '{where}:NAME', with a function of that file?"
        raise CrosscheckError(
            f"load_subject: text is {text!r}, expected {FORMS}.{hint * where.endswith('.py')}"
        )
    options: dict[str, Any] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise CrosscheckError(f"load_subject: option is {pair!r}, expected key=value.")
        options[key] = literal(value)
    return head, options


def literal(text: str) -> Any:
    """Return a Python literal; other text as it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def sourced(subject: Any, **told: Any) -> Any:
    """Return the subject with these attributes: `source`, the text that names it, and `bare`.

    A subject is bare when its factory gave a model and an adapter was chosen here.
    """
    try:
        for name, value in told.items():
            setattr(subject, name, value)
    except (AttributeError, TypeError):
        return Told(subject, **told)
    return subject


class Told:
    """A subject with some attributes replaced; everything else passes through."""

    def __init__(self, subject: Any, **told: Any) -> None:
        self.__dict__.update(told, _subject=subject)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_subject"], name)


def _tiny(family: str, options: dict[str, Any]) -> Any:
    from crosscheck.adapters.hf_tiny import tiny_subject

    return tiny_subject(family, **options)


def _room(options: Mapping[str, Any]) -> None:
    known = {"dtype", "attn", "cache", "gather", "name", "amplify"}
    for key in options:
        if key not in known:
            raise CrosscheckError(
                f"load_subject: option is {key!r}, expected one of {', '.join(sorted(known))}."
            )


def _from_factory(where: str, name: str, options: dict[str, Any]) -> Any:
    with importable(where) as module:
        made, factory, options = _find(module, where, name, options)
        hints = dict(getattr(factory, "hints", {}))
        if factory is not None:
            hints |= {k: options.pop(k) for k in _for_adapter(factory, options)}
            made = _called(f"{where}:{name}", factory, made, options)
        if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict):
            made, hints = made[0], hints | made[1]
        told = hints.pop("documented", getattr(factory, "documented", {}))
        return with_documented(_adapted(f"{where}:{name}", made, hints), told)


def _adapted(what: str, made: Any, hints: dict[str, Any]) -> Any:
    if isinstance(made, FunctionSubject) and not made.named:
        return made.rename(what)
    if hasattr(made, "info") and hasattr(made, "full"):
        return made
    if made is None:
        raise CrosscheckError(
            f"load_subject: {what} returned None, expected a model. Does it end in a return?"
        )
    if not isinstance(made, dict):
        hints = {"name": what} | hints
    return sourced(adapt(made, **hints), bare=True)


def with_documented(subject: Any, told: Mapping[str, Any]) -> Any:
    """Return the subject with what its package documents, relation -> (sentence, source)."""
    if not told:
        return subject
    known = {k: v if isinstance(v, Documented) else Documented(*v) for k, v in told.items()}
    info = describe(subject)
    info = replace(info, documented={**info.documented, **known})
    try:
        subject.info = info
    except (AttributeError, TypeError):
        return Told(subject, info=info)
    return subject


def _find(
    module: ModuleType, where: str, name: str, options: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return (object or first arguments, factory, options)."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        general = getattr(module, "factory", None)
        if not callable(general):
            offered = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
            raise CrosscheckError(
                f"load_subject: {where} has no {name!r} and no factory(name), it offers "
                f"{', '.join(sorted(offered)[:8]) or 'nothing'}."
            )
        return (name,), general, options
    is_object = kind_of(found) is not None or (hasattr(found, "info") and hasattr(found, "full"))
    # numpy itself, which many files import, has an `info` and a `full`.
    is_object = is_object and not isinstance(found, (type, ModuleType))
    return (found, None, options) if is_object else ((), found, options)


def _for_adapter(factory: Any, options: Mapping[str, Any]) -> list[str]:
    """Return the options that the factory does not take and an adapter does."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return []
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return []
    return [k for k in options if k in ADAPTER_HINTS and k not in parameters]


def _called(what: str, factory: Any, arguments: Any, options: dict[str, Any]) -> Any:
    if not callable(factory):
        raise CrosscheckError(
            f"load_subject: {what} is of type {type(factory).__name__}, expected a function that "
            "returns a model."
        )
    try:
        inspect.signature(factory).bind(*arguments, **options)
    except TypeError as error:
        raise CrosscheckError(
            f"load_subject: {what}: {one_line(error)}. It takes {inspect.signature(factory)}; give "
            f"arguments as {what}?name=value."
        ) from None
    except ValueError:
        pass
    try:
        return factory(*arguments, **options)
    except CrosscheckError:
        raise
    except ValueError as error:
        raise CrosscheckError(f"load_subject: {what}: {one_line(error)}") from error
    except Exception as error:
        raise SubjectRaised(f"{what}: raised {type(error).__name__}: {one_line(error)}") from error
