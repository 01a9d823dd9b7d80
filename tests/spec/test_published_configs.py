"""The config.json of well-known checkpoints is read whole; a key that it does not have is not."""

import math
from typing import Any

import pytest

from jaxkv.spec import families
from jaxkv.spec.config import Experts, ModelConfig
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.errors import ConfigError
from jaxkv.spec.weight_shapes import weight_shapes
from tests.spec.published import LLAMAS
from tests.spec.published_others import OTHERS
from tests.spec.test_family_configs import read

CONFIGS = LLAMAS | OTHERS


def config_of(name: str, **changes: Any) -> ModelConfig:
    """Return the config of a checkpoint, some keys changed."""
    data = CONFIGS[name][0] | changes
    return families.huggingface_family(data["model_type"]).config_from_huggingface(ConfigJson(data))


def test_every_family_has_a_published_checkpoint():
    types = {data["model_type"] for data, _ in CONFIGS.values()}

    assert types == {*families.huggingface_model_types()}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_is_accepted_and_has_the_published_number_of_parameters(name):
    shapes = weight_shapes(config_of(name))

    assert sum(math.prod(shape) for shape in shapes.values()) == CONFIGS[name][1]


@pytest.mark.parametrize(
    ("name", "windows", "rotary_dim", "positions"),
    [
        ("Llama-3.2-1B", {None}, 64, 131072),
        ("Mistral-7B-v0.1", {4096}, 128, 32768),
        ("Mistral-7B-v0.3", {None}, 128, 32768),
        ("Mixtral-8x7B-v0.1", {None}, 128, 32768),
        # A window that use_sliding_window switches off.
        ("Qwen2.5-0.5B", {None}, 64, 32768),
        ("Qwen3-30B-A3B", {None}, 128, 40960),
        ("gemma-2-2b", {4096, None}, 256, 8192),
        ("gemma-3-270m", {512, None}, 256, 32768),
        ("Phi-3-mini-4k-instruct", {2047}, 96, 4096),
        ("Phi-4-mini-instruct", {262144}, 96, 131072),
        ("pythia-70m", {None}, 16, 2048),
        ("gpt-neox-20b", {None}, 24, 2048),
    ],
)
def test_windows_rotary_widths_and_lengths_are_those_of_the_file(
    name, windows, rotary_dim, positions
):
    config = config_of(name)
    attentions = [layer.attention for layer in config.layers]

    assert {each.window for each in attentions} == windows
    assert {each.rope.rotary_dim for each in attentions if each.rope} == {rotary_dim}
    assert config.max_positions == positions


def test_an_old_name_of_the_approximate_gelu_is_read():
    mlp = config_of("gpt-neox-20b").layers[0].mlp

    assert not isinstance(mlp, Experts)
    assert mlp.activation == "gelu_tanh"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_misspelled_key_is_refused_and_the_right_one_offered(name):
    """KV-50: a key that is parsed under one spelling alone."""
    data = CONFIGS[name][0]
    read_keys = families.huggingface_family(data["model_type"]).HUGGINGFACE_READ
    keys = sorted(key for key, value in data.items() if key in read_keys and value is not None)

    hints = {key: _hint(name, f"{key}x", data[key]) for key in keys}

    assert hints == {key: f"Did you mean {key!r}?" for key in keys}


def _hint(name: str, key: str, value: Any) -> str:
    with pytest.raises(ConfigError, match=f"{key} is .*, expected no such key") as error:
        config_of(name, **{key: value})
    return str(error.value).rpartition("(it may change the function). ")[2]


@pytest.mark.parametrize("model_type", families.huggingface_model_types())
def test_quantized_weights_are_refused_by_name_in_every_family(model_type):
    message = r"^config\.json: quantization_config is \{'bits': 4, 'quant_method': 'gptq'\}, "

    with pytest.raises(ConfigError, match=message):
        read(model_type, quantization_config={"quant_method": "gptq", "bits": 4})


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("llama", "rope_interleaved", True),
        ("qwen2", "use_mrope", True),
        ("phi3", "full_attn_mod", 2),
        ("phi3", "interpolate_factor", 2),
        ("phi3", "lm_head_bias", True),
        ("phi3", "mlp_bias", True),
    ],
)
def test_what_these_files_switch_off_is_refused_where_it_is_on(model_type, key, value):
    with pytest.raises(ConfigError, match=f"{key} is {value}, expected .* \\(the only supported"):
        read(model_type, **{key: value})


@pytest.mark.parametrize("model_type", families.huggingface_model_types())
@pytest.mark.parametrize(
    "more",
    [
        {"torch_dtype": "bfloat16", "transformers_version": "4.36.0"},
        {"dtype": "bfloat16", "transformers_version": "5.24.0"},
        {"_attn_implementation_autoset": True, "unsloth_fixed": True},
        {"bos_token_id": 1, "eos_token_id": [1, 2], "pad_token_id": None},
        {"quantization_config": None, "rope_scaling": None, "task_specific_params": None},
    ],
    ids=["older", "newer", "tuned", "ids", "nulls"],
)
def test_what_is_not_of_the_function_changes_nothing_in_any_family(model_type, more):
    assert read(model_type, **more) == read(model_type)
