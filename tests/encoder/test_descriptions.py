"""What a config with an encoder refuses, and what config.json and the tensors say together."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxkv.spec.config import Attention, ModelConfig, Relative
from jaxkv.spec.errors import ConfigError, WeightError
from jaxkv.spec.huggingface import read_huggingface
from jaxkv.spec.tiny_families import tiny_family
from jaxkv.spec.weight_shapes import weight_shapes
from tests.encoder.peers import peer

T5, BART = tiny_family("t5"), tiny_family("bart")
LAYER, CROSS = T5.layers[0], T5.layers[0].cross
PLAIN = replace(LAYER, cross=None)


@pytest.mark.parametrize("config", [T5, tiny_family("flan-t5"), BART], ids=lambda c: c.family)
def test_a_config_passes_through_plain_data(config):
    data = json.loads(json.dumps(config.to_dict()))

    assert ModelConfig.from_dict(data) == config


def test_weights_stand_under_their_stack():
    shapes = weight_shapes(BART)

    assert shapes["position.weight"] == shapes["encoder.position.weight"] == (130, 28)
    assert shapes["layers.1.cross.k.weight"] == (28, 28)
    assert shapes["encoder.layers.0.mlp.up.weight"] == (44, 28)
    assert shapes["head.bias"] == (97,)
    assert not {"head.weight", "norm.weight", "encoder.norm.weight"} & {*shapes}
    assert weight_shapes(T5)["encoder.relative.weight"] == (8, 6)
    assert (BART.num_sites, BART.self_sites) == (4, (0, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(T5, encoder=None), "layers[0] has a cross attention, the config no"),
        (lambda: replace(T5, layers=(PLAIN,)), "layers[0] has no cross attention, the config an"),
        (
            lambda: replace(T5.encoder, layers=(PLAIN,)),
            "Encoder: layers[0] is causal or has a cross attention, expected neither.",
        ),
        (lambda: replace(T5.encoder, layers=()), "Encoder: layers is empty"),
        (
            lambda: replace(T5, layers=T5.encoder.layers, encoder=None),
            "ModelConfig: layers[0].attention is not causal.",
        ),
        (
            lambda: replace(LAYER, cross=replace(CROSS, window=3)),
            "Layer: cross has a window, expected None.",
        ),
        (
            lambda: replace(LAYER, cross=replace(CROSS, causal=True)),
            "Layer: cross is causal, expected causal=False.",
        ),
        (lambda: replace(LAYER, parallel=True), "Layer: cross is for layers that are neither"),
        (
            lambda: replace(PLAIN, norm_after=True, post_norms=True),
            "Layer: norm_after is for layers that are neither parallel nor have post_norms.",
        ),
        (
            lambda: replace(T5, encoder=replace(T5.encoder, start_ids=(97,))),
            "ModelConfig: encoder.start_ids holds 97, expected 0 to 96.",
        ),
        (lambda: replace(BART, position_offset=-1), "position_offset is -1, expected at least 0."),
        (lambda: Relative(6, 20), "Relative: buckets is 6, expected a multiple of 4."),
        (lambda: Relative(8, 4), "Relative: max_distance is 4, expected above buckets / 2 = 4."),
        (
            lambda: replace(
                T5, layers=(LAYER, replace(LAYER, attention=_other_buckets(LAYER.attention)))
            ),
            "ModelConfig: layers have 2 forms of relative bias, expected one table for all.",
        ),
    ],
)
def test_a_contradiction_is_refused_in_words(make, message):
    with pytest.raises(ConfigError) as error:
        make()

    assert message in str(error.value)


def _other_buckets(attention: Attention) -> Attention:
    return replace(attention, relative=Relative(12, 20))


@pytest.fixture
def saved(tmp_path):
    """Return a function: name, keys of config.json, change of the tensors -> a directory."""

    def write(name, change, **keys):
        path = tmp_path / name
        peer(name).save_pretrained(path)
        config = json.loads((path / "config.json").read_text()) | keys
        (path / "config.json").write_text(json.dumps(config))
        tensors = load_file(path / "model.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return path

    return write


def test_a_bias_of_the_logits_that_a_file_leaves_out_is_zero(saved):
    path = saved("bart", lambda tensors: tensors.pop("final_logits_bias"))

    checkpoint = read_huggingface(path)

    assert not checkpoint.config.head_bias
    assert "head.bias" not in checkpoint.weights


def test_a_head_beside_the_embedding_is_taken_where_none_is_scaled(saved):
    """The library writes tie_word_embeddings true for every model of the family."""
    path = saved("flan-t5", lambda tensors: None)
    assert json.loads((path / "config.json").read_text())["tie_word_embeddings"] is True

    config = read_huggingface(path).config

    assert (config.tied_head, config.scaled_head) == (False, False)


def test_an_old_file_of_v1_1_must_hold_its_head(saved):
    keys = {"tie_word_embeddings": False, "scale_decoder_outputs": None}
    path = saved("flan-t5", lambda tensors: tensors.pop("lm_head.weight"), **keys)

    with pytest.raises(WeightError, match=r"weight 'lm_head\.weight' is missing"):
        read_huggingface(path)


def test_a_scaled_head_must_be_the_embedding(saved):
    other = np.ones((97, 40))
    path = saved("t5", lambda tensors: tensors.update({"lm_head.weight": other}))

    with pytest.raises(WeightError, match=r"config\.json ties the head to 'shared\.weight'"):
        read_huggingface(path)


def test_tables_of_each_stack_beside_the_shared_one_are_not_read(saved):
    def add(tensors):
        tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"].copy()
        unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        tensors[unused] = np.zeros((8, 6))

    assert read_huggingface(saved("t5", add)).config == read_huggingface(saved("t5", add)).config


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj is 'gated-mish', expected"),
        ("t5", {"is_decoder": True}, "is_decoder is True, expected False"),
        ("bart", {"normalize_before": True}, "normalize_before is True, expected False"),
        ("bart", {"decoder_start_token_id": "a"}, "decoder_start_token_id is 'a', expected"),
        ("bart", {"scale_embeddings": True}, "Did you mean 'scale_embedding'?"),
        (
            "bart",
            {"encoder_attention_heads": 7},
            "expected a multiple of encoder_attention_heads 7",
        ),
    ],
)
def test_what_config_json_may_not_say_is_refused_by_name(name, keys, message, saved):
    path = saved(name, lambda tensors: None, **keys)
    (path / "generation_config.json").unlink()

    with pytest.raises(ConfigError) as error:
        read_huggingface(path)

    assert message in str(error.value)
