"""Every key of a GGUF file that a family reads changes what it reads, as for config.json."""

from typing import Any

import numpy as np
import pytest

from jaxkv.spec import families
from jaxkv.spec.errors import ConfigError

SIZES: dict[str, Any] = {
    "attention.head_count": 6,
    "attention.head_count_kv": 3,
    "attention.layer_norm_epsilon": 0.25,
    "attention.layer_norm_rms_epsilon": 0.25,
    "attention.key_length": 10,
    "attention.value_length": 10,
    "attention.sliding_window": 5,
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 48,
    "feed_forward_length": 52,
    "rope.dimension_count": 10,
    "rope.freq_base": 500.0,
    "vocab_size": 97,
}
DEEPSEEK: dict[str, Any] = SIZES | {
    "attention.head_count_kv": 1,
    "attention.key_length": 34,
    "attention.key_length_mla": 21,
    "attention.kv_lora_rank": 24,
    "attention.q_lora_rank": 15,
    "attention.value_length": 24,
    "attention.value_length_mla": 14,
    "expert_count": 8,
    "expert_feed_forward_length": 20,
    "expert_gating_func": 2,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
    "expert_shared_count": 1,
    "expert_used_count": 3,
    "leading_dense_block_count": 1,
}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
# What has to be there for a key to be read at all.
WITH = {
    "rope.scaling.type": {"rope.scaling.factor": 4.0},
    "rope.scaling.attn_factor": YARN,
    "rope.scaling.original_context_length": YARN,
    "rope.scaling.yarn_beta_fast": YARN,
    "rope.scaling.yarn_beta_slow": YARN,
}
OTHER: dict[str, Any] = {
    "attention.key_length_mla": 22,
    "attention.kv_lora_rank": 25,
    "attention.q_lora_rank": 16,
    "attention.value_length_mla": 15,
    "expert_count": 12,
    "expert_feed_forward_length": 21,
    "expert_gating_func": 1,
    "expert_group_count": 2,
    "expert_group_used_count": 3,
    "expert_shared_count": 2,
    "expert_used_count": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "leading_dense_block_count": 2,
    "rope.scaling.yarn_log_multiplier": 0.125,
    "attention.head_count": 3,
    "attention.head_count_kv": 2,
    "attention.key_length": 12,
    "attention.layer_norm_epsilon": 0.5,
    "attention.layer_norm_rms_epsilon": 0.5,
    "attention.sliding_window": 7,
    "attention.sliding_window_pattern": 2,
    "attention.value_length": 12,
    "block_count": 1,
    "context_length": 65,
    "embedding_length": 60,
    "feed_forward_length": 53,
    "rope.dimension_count": 8,
    "rope.freq_base": 7.0,
    "rope.freq_base_swa": 7.0,
    "rope.scale_linear": 2.0,
    "rope.scaling.attn_factor": 1.5,
    "rope.scaling.factor": 2.0,
    "rope.scaling.original_context_length": 16,
    "rope.scaling.type": "none",
    "rope.scaling.yarn_beta_fast": 8.0,
    "rope.scaling.yarn_beta_slow": 0.5,
    "vocab_size": 98,
}
# Keys whose refusal names what they contradict.
REFUSED_AS = {
    "attention.head_count_kv": "num_kv_heads",
    "attention.key_length": "attention.value_length",
    "embedding_length": "attention.head_count",
}
CASES = [
    (architecture, key)
    for architecture in families.gguf_architectures()
    for key in sorted(families.gguf_family(architecture).GGUF_READ)
]
# More names than any layer has: the number of layers is held against them.
TENSORS = {f"blk.{i}": lambda: np.ones(5) for i in range(100)}


def read(architecture: str, **keys: Any) -> Any:
    family = families.gguf_family(architecture)
    sizes = DEEPSEEK if architecture == "deepseek2" else SIZES
    known = {key: value for key, value in sizes.items() if key in family.GGUF_READ}
    if architecture == "gpt2":
        known["attention.head_count_kv"] = known["attention.head_count"]
    found = {f"{architecture}.{key}": value for key, value in (known | keys).items()}
    try:
        return family.config_from_gguf(found, TENSORS)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize(("architecture", "key"), CASES)
def test_a_key_that_is_read_changes_the_config_or_is_refused(architecture, key):
    more = WITH.get(key, {})
    if (architecture, key) == ("gemma3", "attention.sliding_window_pattern"):
        more = {"block_count": 6}
    # Windowed layers of gemma3 have no scaling.
    if architecture == "gemma3" and key.startswith(("rope.scal", "rope.freq_base")):
        more = more | {"attention.sliding_window_pattern": 2}
    if architecture == "deepseek2" and key.startswith("rope.scaling"):
        more = YARN
    before = read(architecture, **more)

    after = read(architecture, **more | {key: OTHER[key]})

    assert not isinstance(before, str)
    assert after != before
    assert not isinstance(after, str) or key in after or REFUSED_AS[key] in after


@pytest.mark.parametrize("architecture", families.gguf_architectures())
def test_a_misspelled_key_is_refused_and_the_nearest_known_one_offered(architecture):
    assert read(architecture, feed_forward_lenght=52) == (
        f"config_from_gguf: {architecture}.feed_forward_lenght is 52, expected no such key (it may "
        "change the function). Did you mean 'feed_forward_length'?"
    )
