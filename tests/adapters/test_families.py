"""Every family of the clean list can be made tiny, and its cache agrees with its forward."""

import numpy as np
import pytest

from crosscheck.adapters.hf_tiny import tiny_subject
from crosscheck.errors import CrosscheckError
from tests.adapters.programs import TOKENS, apart, fed, texts
from tests.conftest import DEEP

pytestmark = pytest.mark.filterwarnings("ignore")
# Each is here for a convention of its own: its own padding, expert layers, shared keys, no
# position_ids, latent keys, sinks, two kinds of layers with states and keys.
FEW = "biogpt bloom deepseek_v3 ernie4_5_moe falcon gpt_oss lfm2 modernbert-decoder"
ALL = """
    afmoe apertus apertus1p5_text arcee aria_text axk1 axk2 beam bert bert-generation big_bird
    bitnet codegen cohere cohere2 cohere2_moe ctrl cwm deepseek_v2 deepseek_v32 diffllama doge dory
    electra ernie ernie4_5 exaone exaone4 exaone_moe flex_olmo flint gemma gemma2 gemma3_text
    gemma3n_text gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt-sw3
    gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gptj granite granite_swa granitemoe granitemoe_swa
    granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4 hyperclovax
    internlm3 iquestcoder jais2 jetmoe kolibri1 laguna llama llama4_text megatron-bert mellum
    mimo_v2_flash minicpm3 minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral mpt
    nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3
    qwen3_moe rembert sarvam_mla sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2
    vaultgemma youtu
"""
# Their own pattern has no layer that attends among four, or a state's sizes don't fit the others.
HYBRIDS = ["jamba", "granitemoehybrid", "bailing_hybrid", "mamba2", "falcon_h1", "zamba2"]
CHOSEN = FEW.split() + (ALL.split() if DEEP else [])


@pytest.mark.parametrize("family", CHOSEN)
def test_a_clean_family_agrees_with_itself(family):
    subject = tiny_subject(family)
    ids, rows = texts(subject), np.array([1, 1, 0])
    whole = subject.full(ids)

    for sizes in ([TOKENS], [1] * TOKENS, [6, 1, 7]):
        assert apart(fed(subject, ids, sizes)[0], whole) < 1e-5
    _, state = fed(subject, ids, [9])
    later, _ = subject.step(subject.gather(state, rows), ids[rows, 9:])

    assert apart(later, whole[rows, 9:]) < 1e-5
    assert subject.kv(subject.init(2, 4), 0).keys_BSKH.shape[1] == 0


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_tiny_family_with_states_can_be_made_and_has_a_cache(family):
    subject = tiny_subject(family)
    ids = texts(subject)

    assert "cache" in subject.info.capabilities
    assert apart(fed(subject, ids, [TOKENS])[0], subject.full(ids)) < 1e-5


@pytest.mark.parametrize("family", ["gemma2", "bloom"])
def test_eager_only_families_say_why_they_take_no_padding(family):
    info = tiny_subject(family).info

    assert not {"left_pad", "right_pad", "count"} & info.capabilities
    assert info.absent["left_pad"].startswith("eager attention is its only one, NaN on padding")
    assert "left_pad" in tiny_subject(family, attn="eager").info.capabilities


def test_a_family_made_of_parts_is_its_text_decoder_with_tiny_sizes():
    whole, decoder = tiny_subject("gemma3"), tiny_subject("gemma3_text")

    assert whole.info.notes[0] == "gemma3 is made of parts: this is its text decoder, gemma3_text"
    assert sum(p.numel() for p in whole.model.parameters()) < 1e5
    assert apart(whole.full(texts(whole)), decoder.full(texts(decoder))) == 0


def test_a_family_whose_sizes_are_not_known_is_refused_before_it_takes_memory():
    refused = (
        r"hf-tiny: blt would have 4,\d{3},\d{3},\d{3} parameters, expected at most 250,000,000: "
    )

    with pytest.raises(CrosscheckError, match=refused):
        tiny_subject("blt")
