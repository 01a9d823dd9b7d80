"""How someone's decoder is called: told by a hint, or read off its signature."""

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from crosscheck.errors import CrosscheckError

# What a parameter of this name is given.
NAMES: Mapping[str, tuple[str, ...]] = {
    "ids": ("ids", "input_ids", "tokens", "idx", "token_ids", "inputs", "input_tokens", "x"),
    "cache": (
        *("cache", "kv_cache", "kvcache", "caches", "kv_caches", "past_key_values", "past"),
        *("past_kv", "past_kvs", "layer_past", "state", "states", "kv", "mems", "decode_state"),
    ),
    "start": (
        *("start", "start_pos", "start_index", "offset", "pos", "cur_pos", "cur_index", "index"),
        *("past_length", "position", "cache_index", "step", "seqlen_offset", "length"),
    ),
    "positions": ("positions", "position_ids", "pos_ids", "input_pos", "cache_position"),
    "use_cache": ("use_cache", "return_cache", "decode"),
    "mask": (
        *("attention_mask", "padding_mask", "pad_mask", "key_padding_mask", "attn_mask", "mask"),
        *("src_key_padding_mask", "token_mask"),
    ),
}
MAKERS = (
    *("init_cache", "make_cache", "new_cache", "empty_cache", "create_cache", "init_state"),
    *("setup_caches", "allocate_cache", "init_kv_cache", "make_kv_cache", "initialize_cache"),
)
ROOM = {
    "batch": ("batch", "batch_size", "max_batch_size", "bsz", "b", "rows"),
    "capacity": (
        *("capacity", "max_len", "max_length", "max_seq_len", "max_seq_length", "max_cache_len"),
        *("length", "size", "seq_len", "cache_len"),
    ),
}


@dataclass(frozen=True)
class Call:
    """One way to call a model: which of ids, cache, start, ... goes to which argument.

    Attributes:
        method: Name of the method; "" for the object itself.
        positional: What the arguments without a name are.
        named: Argument name -> what it is.
        fixed: Arguments that are always the same.
    """

    method: str = ""
    positional: tuple[str, ...] = ("ids",)
    named: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, what: str) -> bool:
        """Return whether one of the arguments is this."""
        return what in self.positional or what in self.named.values()

    def argument(self, what: str) -> str:
        """Return the name of the argument that is this; what it is where it has no name."""
        return next((name for name, each in self.named.items() if each == what), what)

    def __call__(self, target: Any, values: Mapping[str, Any]) -> Any:
        """Call a model; an argument whose value is not given is left out."""
        function = getattr(target, self.method) if self.method else target
        given = [values[what] for what in self.positional if what in values]
        named = {name: values[what] for name, what in self.named.items() if what in values}
        return function(*given, **named, **self.fixed)


def written(text: str) -> Call:
    """Return the call that a hint writes out: `forward(ids, kv=cache, start_pos=start, n=1)`.

    Raises:
        CrosscheckError: It is not one call whose arguments are known names or literals.
    """
    known = ", ".join(NAMES)
    try:
        node = ast.parse(text.strip(), mode="eval").body
        assert isinstance(node, ast.Call)
        assert isinstance(node.func, ast.Name)
        positional = tuple(_known(argument) for argument in node.args)
        named, fixed = {}, {}
        for keyword in node.keywords:
            if isinstance(keyword.value, ast.Name) and keyword.value.id in NAMES:
                named[str(keyword.arg)] = keyword.value.id
            else:
                fixed[str(keyword.arg)] = ast.literal_eval(keyword.value)
    except (SyntaxError, AssertionError, ValueError):
        raise CrosscheckError(
            f"adapt: call is {text!r}, expected one call such as 'forward(ids, cache=cache, "
            f"start_pos=start)' with {known} or literals."
        ) from None
    method = "" if node.func.id in ("forward", "__call__") else node.func.id
    return Call(method, positional, named, fixed)


def read(function: Callable[..., Any]) -> Call:
    """Return the call that a signature suggests: ids first, the others by their names."""
    parameters = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY, p.POSITIONAL_ONLY)
    ]
    if not parameters:
        raise CrosscheckError("adapt: forward takes no arguments, expected token ids. Give call=.")
    named = {}
    for parameter in parameters[1:]:
        for what, names in NAMES.items():
            if parameter.name in names and what not in named.values():
                named[parameter.name] = what
                break
    return Call("", ("ids",), named, {})


def maker(target: Any) -> str | None:
    """Return the name of the method that makes an empty cache, if there is one."""
    return next((name for name in MAKERS if callable(getattr(target, name, None))), None)


def made(function: Callable[..., Any], batch: int, capacity: int) -> Any:
    """Return what a maker of caches gives for this room, passed by name or in this order."""
    given = {"batch": batch, "capacity": capacity}
    named, left = {}, dict(given)
    for name, parameter in inspect.signature(function).parameters.items():
        what = next((w for w, names in ROOM.items() if name in names and w in left), None)
        if what is not None:
            named[name] = left.pop(what)
        elif parameter.default is parameter.empty and parameter.kind is not (parameter.VAR_KEYWORD):
            raise CrosscheckError(
                f"adapt: {function.__name__} needs {name}, which is not known. Give init=."
            )
    return function(**named)


def has_room(function: Callable[..., Any]) -> bool:
    """Return whether a maker of caches takes a capacity."""
    return any(n in ROOM["capacity"] for n in inspect.signature(function).parameters)


def split(result: Any, cache: Any) -> tuple[Any, Any]:
    """Return (logits, cache) of what a forward gave: a pair, an object with fields, or logits."""
    if isinstance(result, tuple):
        return result[0], result[1] if len(result) > 1 and result[1] is not None else cache
    if hasattr(result, "logits"):
        names = (n for n in NAMES["cache"] if getattr(result, n, None) is not None)
        name = next(names, None)
        return result.logits, cache if name is None else getattr(result, name)
    return result, cache


def _known(argument: Any) -> str:
    if not isinstance(argument, ast.Name) or argument.id not in NAMES:
        raise ValueError
    return argument.id
