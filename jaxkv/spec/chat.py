"""Chats as the text that a model was trained on: its own template, rendered in a sandbox.

Templates come with checkpoints, so they run where they can reach neither attributes nor files.
Source: transformers 5.24, `utils/chat_template_utils.py`, for what a template may use.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxkv.spec.errors import ConfigError, RequestError

if TYPE_CHECKING:
    import jinja2


def render_chat(
    tokenizer_data: Mapping[str, Any] | None, messages: Sequence[Mapping[str, Any]]
) -> str:
    """Return the text of a chat up to where the model answers.

    Control tokens are written out: encode it with `rendered=True`.

    Args:
        tokenizer_data: Of a checkpoint. A GGUF file's key `tokenizer.chat_template` (others by name
            have keys `tokenizer.chat_template.NAME`); of a directory `chat_template.jinja`, else
            the key `chat_template` of `tokenizer_config.json`. Of several by name, "default".
        messages: Each has "role" (such as "user") and "content".

    Raises:
        ConfigError: There is no template, or it is damaged.
        RequestError: There are no messages, a key is missing, or the template refuses them.
    """
    _check_messages(messages)
    data = tokenizer_data or {}
    import jinja2

    try:
        template = _environment().from_string(_template(data))
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"render_chat: the chat template is damaged in line {error.lineno}: {error.message}. "
            "Take another checkpoint, or write the text yourself."
        ) from None
    try:
        return template.render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=True,
            tools=None,
            documents=None,
            **_control_tokens(data),
        )
    # A template is a program: it can fail as any can. Its own refusals are TemplateErrors.
    except Exception as error:
        fact = " ".join(str(error).split())[:200]
        raise RequestError(
            f"render_chat: the chat template refuses the messages: {fact}. Check roles and order."
        ) from None


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise RequestError("render_chat: messages is empty, expected at least 1. Add the user's.")
    for i, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise RequestError(
                    f"render_chat: messages[{i}][{key!r}] is {message.get(key)!r}, expected a "
                    "text. Give every message a role and a content."
                )


def _environment() -> "jinja2.Environment":
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    environment.filters["tojson"] = to_json
    return environment


def _template(data: Mapping[str, Any]) -> str:
    named = _named_templates(data)
    found = (data.get("tokenizer.chat_template"), data.get("chat_template.jinja"))
    template = next(
        (each for each in (*found, named.get("default")) if isinstance(each, str)), None
    )
    if template is None and named:
        raise ConfigError(
            f"render_chat: this model has chat templates called {', '.join(sorted(named))}, "
            "expected one called default. Write the text yourself."
        )
    if template is None:
        raise ConfigError(
            "render_chat: this model has no chat template, expected one beside its tokenizer. "
            "Take an instruction-tuned checkpoint, or write the text yourself."
        )
    return template


def _named_templates(data: Mapping[str, Any]) -> dict[str, str]:
    stored = data.get("tokenizer_config.json", {}).get("chat_template")
    if isinstance(stored, str):
        return {"default": stored}
    key = "tokenizer.chat_template."
    named = {name.removeprefix(key): each for name, each in data.items() if name.startswith(key)}
    return named | {each.get("name"): each.get("template") for each in stored or []}


def _control_tokens(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the start, end and padding tokens, as far as they are known."""
    texts: dict[str, str] = {}
    config, tokens = data.get("tokenizer_config.json", {}), data.get("tokenizer.ggml.tokens", [])
    for name in ("bos", "eos", "pad", "unk"):
        given = config.get(f"{name}_token")
        given = given.get("content") if isinstance(given, dict) else given
        key = "padding" if name == "pad" else "unknown" if name == "unk" else name
        at = data.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(given, str):
            texts[f"{name}_token"] = given
        elif isinstance(at, int) and 0 <= at < len(tokens):
            texts[f"{name}_token"] = tokens[at]
    return texts
