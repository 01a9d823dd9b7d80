"""What third parties found in SmolLM2-135M-Instruct in Q4_1."""

import hashlib

import numpy as np
import pytest

from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm, Rope
from jaxkv.spec.source import open_tokenizer
from jaxkv.spec.tokenizer import IdTokenizer, Tokenizer
from jaxkv.spec.weight_shapes import weight_shapes

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
CHAT = (
    f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
AUSTEN = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be "
    "in want of a wife. However little known the feelings or views of such a man may be on his "
    "first "
    "entering a neighbourhood, this truth is so well fixed in the minds of the surrounding "
    "families, that "
    "he is considered the rightful property of some one or other of their daughters."
)
COUNTING = [33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216, 37, 28, 216, 38, 28, 216, 39, 28]


@pytest.fixture(scope="module")
def tokenizer(smollm2_checkpoint: Checkpoint) -> Tokenizer | IdTokenizer:
    return open_tokenizer(smollm2_checkpoint)


def test_config_is_the_published_one(smollm2_checkpoint: Checkpoint):
    attention = Attention(
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        window=None,
        rope=Rope(theta=100_000.0, rotary_dim=64),
        qkv_bias=False,
        out_bias=False,
    )
    layer = Layer(attention, Mlp(width=1536, activation="silu", gated=True, bias=False))
    eps = float(np.float32(1e-5))

    assert smollm2_checkpoint.config == ModelConfig(
        family="llama",
        vocab_size=49_152,
        width=576,
        max_positions=8192,
        layers=(layer,) * 30,
        norm=Norm(kind="rms", eps=eps),
        learned_positions=False,
        tied_head=True,
        head_bias=False,
    )


def test_head_is_tied_and_has_no_weight_of_its_own(smollm2_checkpoint: Checkpoint):
    assert smollm2_checkpoint.config.tied_head
    assert "head.weight" not in smollm2_checkpoint.weights


def test_rows_of_q_and_k_are_said_to_be_interleaved(smollm2_checkpoint: Checkpoint):
    assert smollm2_checkpoint.interleaved_qk


def test_one_id_ends_a_text(smollm2_checkpoint: Checkpoint):
    assert smollm2_checkpoint.end_ids == (2,)


def test_name_is_the_one_that_was_asked_for(smollm2_checkpoint: Checkpoint):
    assert smollm2_checkpoint.name == "smollm2"


def test_weights_are_those_of_the_config(smollm2_checkpoint: Checkpoint):
    weights = smollm2_checkpoint.weights

    assert weights.shapes == weight_shapes(smollm2_checkpoint.config)
    assert len(weights) == 272
    assert sum(int(np.prod(shape)) for shape in weights.shapes.values()) == 134_515_008


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        pytest.param("embed.weight", "3fd491c8066dd9dc", id="q8_0-embedding"),
        pytest.param("layers.0.attn.q.weight", "aa74111ad24c3624", id="q4_1-query-raw-row-order"),
    ],
)
def test_dequantized_bytes_are_the_known_ones(
    smollm2_checkpoint: Checkpoint, name: str, digest: str
):
    array = smollm2_checkpoint.weights[name]

    assert array.dtype == np.float32
    assert hashlib.sha256(array.tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        pytest.param("The capital of France is", [504, 3575, 282, 4649, 314], id="capital"),
        pytest.param("1, 2, 3, 4, 5, 6, 7,", COUNTING, id="counting"),
        pytest.param("a  1", [81, 256, 33], id="two-spaces-before-a-digit"),
        pytest.param("10", [33, 32], id="each-digit-alone"),
        pytest.param("<|im_end|>", [2], id="control-token"),
        pytest.param("", [], id="empty"),
    ],
)
def test_text_becomes_the_known_ids(tokenizer: Tokenizer | IdTokenizer, text: str, ids: list[int]):
    assert tokenizer.encode(text) == ids


@pytest.mark.parametrize(
    ("text", "count"),
    [pytest.param(CHAT, 37, id="chat"), pytest.param(AUSTEN, 76, id="austen")],
)
def test_text_becomes_the_known_number_of_ids(
    tokenizer: Tokenizer | IdTokenizer, text: str, count: int
):
    assert len(tokenizer.encode(text)) == count


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("The capital of France is", id="capital"),
        pytest.param("1, 2, 3, 4, 5, 6, 7,", id="counting"),
        pytest.param("January, February, March, April,", id="months"),
        pytest.param(CHAT, id="chat"),
        pytest.param(AUSTEN, id="austen"),
        pytest.param("naïve  \n\t½ 東京 🦋", id="many-scripts"),
    ],
)
def test_decoding_undoes_encoding(tokenizer: Tokenizer | IdTokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_known_continuation_reads_as_text(tokenizer: Tokenizer | IdTokenizer):
    assert tokenizer.decode([504, 3575, 282, 4649, 314, 7042, 30, 2]) == (
        "The capital of France is Paris.<|im_end|>"
    )
