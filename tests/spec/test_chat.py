"""Chat templates: the text that a model was trained on, and templates that cannot misbehave."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxkv.spec.chat import render_chat
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.errors import ConfigError, JaxkvError, RequestError
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.source import open_tokenizer
from tests.spec.vocabularies import sentencepiece

LLAMA = sentencepiece(add_space_prefix=False)
USER = {"role": "user", "content": "What is the capital of France?"}
SHORT = "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"


def gguf(template: str) -> dict[str, Any]:
    return {
        "tokenizer.chat_template": template,
        "tokenizer.ggml.tokens": ["<s>", "</s>", "a"],
        "tokenizer.ggml.bos_token_id": 0,
    }


def directory(template: Any, *, file: str | None = None) -> dict[str, Any]:
    config = {"chat_template": template, "bos_token": {"content": "<s>"}}
    return {"tokenizer_config.json": config} | ({"chat_template.jinja": file} if file else {})


def test_smollm2s_chat_has_37_ids_with_the_default_system_text(smollm2_checkpoint: Checkpoint):
    text = render_chat(smollm2_checkpoint.tokenizer_data, [USER])

    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert len(open_tokenizer(smollm2_checkpoint).encode(text, rendered=True)) == 37


def test_a_given_system_text_takes_the_place_of_the_default(smollm2_checkpoint: Checkpoint):
    messages = [{"role": "system", "content": "Be brief."}, USER]

    text = render_chat(smollm2_checkpoint.tokenizer_data, messages)

    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(gguf(SHORT), id="gguf"),
        pytest.param(directory(SHORT), id="tokenizer-config"),
        pytest.param(directory("other", file=SHORT), id="file-of-its-own"),
        pytest.param(
            directory([{"name": "tools", "template": "x"}, {"name": "default", "template": SHORT}]),
            id="several-by-name",
        ),
        pytest.param(
            gguf(SHORT) | {"tokenizer.chat_template.tools": "x"}, id="gguf-several-by-name"
        ),
        pytest.param(
            {"tokenizer.chat_template.default": SHORT, "tokenizer.chat_template.tools": "x"}
            | {key: each for key, each in gguf("").items() if key != "tokenizer.chat_template"},
            id="gguf-default-by-name",
        ),
    ],
)
def test_a_template_is_found_wherever_checkpoints_keep_it(data: dict[str, Any]):
    assert render_chat(data, [USER]) == "<s>[user] What is the capital of France?\n"


def test_the_template_of_a_gguf_file_gives_the_ids_of_its_own_control_tokens(
    write_gguf: Callable[..., Path],
):
    template = "{{ bos_token }}{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"
    metadata = {key: each[:97] if isinstance(each, list) else each for key, each in LLAMA.items()}
    checkpoint = read_gguf(write_gguf(metadata | {"tokenizer.chat_template": template}))

    text = render_chat(checkpoint.tokenizer_data, [{"role": "user", "content": "\n"}])
    ids = open_tokenizer(checkpoint).encode(text, rendered=True)

    # After the unknown token, four control tokens and three others come the bytes.
    assert text == "<s><|user|>\n<|end|>"
    assert ids == [1, 3, 8 + 10, 4]


def test_templates_may_use_what_transformers_offers_them():
    template = (
        "{%- for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m | tojson }}"
        "{% endfor %}\n{{ add_generation_prompt }} {{ strftime_now('%Y') | length }}"
    )

    text = render_chat(gguf(template), [{"role": "user", "content": "é"}, USER])

    assert text == '{"role": "user", "content": "é"}True 4'


def refusal(data: Any, messages: Any, kind: type[JaxkvError]) -> str:
    with pytest.raises(kind) as error:
        render_chat(data, messages)
    return str(error.value)


@pytest.mark.parametrize("data", [None, {}, directory(None), directory([])], ids=str)
def test_a_model_without_template_says_so(data: Any):
    assert refusal(data, [USER], ConfigError) == (
        "render_chat: this model has no chat template, expected one beside its tokenizer. "
        "Take an instruction-tuned checkpoint, or write the text yourself."
    )


@pytest.mark.parametrize(
    "data",
    [
        directory([{"name": "tools", "template": "x"}, {"name": "rag", "template": "x"}]),
        {"tokenizer.chat_template.tools": "x", "tokenizer.chat_template.rag": "x"},
    ],
    ids=["directory", "gguf"],
)
def test_a_model_with_templates_of_other_names_lists_them(data: dict[str, Any]):
    assert refusal(data, [USER], ConfigError) == (
        "render_chat: this model has chat templates called rag, tools, expected one called "
        "default. Write the text yourself."
    )


def test_a_damaged_template_names_its_line():
    assert refusal(gguf("a\n{% if %}"), [USER], ConfigError) == (
        "render_chat: the chat template is damaged in line 2: Expected an expression, got 'end of "
        "statement block'. Take another checkpoint, or write the text yourself."
    )


def test_a_templates_own_refusal_is_told_in_one_line():
    template = "{{ raise_exception('Roles must\nalternate') }}"

    assert refusal(gguf(template), [USER], RequestError) == (
        "render_chat: the chat template refuses the messages: Roles must alternate. "
        "Check roles and order."
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% for i in range(999999999) %}{% endfor %}",
        "{% include 'config.json' %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template: str):
    message = refusal(gguf(template), [USER], RequestError)

    assert message.startswith("render_chat: the chat template refuses the messages: ")


@pytest.mark.parametrize(
    ("messages", "fact"),
    [
        ([], "messages is empty, expected at least 1. Add the user's."),
        (
            [{"role": "user"}],
            "messages[0]['content'] is None, expected a text. "
            "Give every message a role and a content.",
        ),
        (
            [USER, {"role": 3, "content": ""}],
            "messages[1]['role'] is 3, expected a text. Give every message a role and a content.",
        ),
    ],
)
def test_messages_that_are_none_are_refused(messages: Any, fact: str):
    assert refusal(gguf(SHORT), messages, RequestError) == f"render_chat: {fact}"
