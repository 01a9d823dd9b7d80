"""T5, T5 v1.1 and BART: saved by transformers, loaded here, the same logits and greedy ids.

In float64, within 1e-9 of the largest |logit|: whole texts, and any chunks of the decoder's tokens.
"""

import importlib
import json

import numpy as np
import pytest
import torch

from crosscheck import assert_agree, decode, semantic
from jaxkv.spec.huggingface import read_huggingface
from jaxkv.spec.huggingface_save import write_huggingface
from jaxkv.spec.relative import Relative
from tests.encoder.peers import (
    IDS,
    MODELS,
    encoder_ids,
    logits_of,
    peer,
    peer_logits,
    released,
    texts,
)
from tests.parity.peers import in_float64
from tests.tiny import DEEP, TWINS

cells = pytest.mark.parametrize(("name", "twin"), [(n, t) for n in MODELS for t in TWINS])
# jaxkv pads steps to 1, 8 or 24 tokens, so that little is compiled.
PARTITIONS = ([17], [8, 1, 8]) + (([1] * 17, [3, 5, 1, 8], [16, 1]) if DEEP else ())
LAYOUTS = ("contiguous", "paged")
# The library's norms take their mean in float32 whatever the dtype, and scores that nothing scales
# carry the encoder's rounding into every layer of the decoder; measured 2.4e-6.
ROUNDED = {"flan-t5": 5e-6}


def stepped(subject, sizes) -> np.ndarray:
    """Return the logits of both rows fed in steps of these sizes, beside a filled cache."""
    state, logits, at = subject.init(2, 20, encoder=encoder_ids()), [], 0
    for size in sizes:
        out, state = subject.step(state, IDS[:, at : at + size])
        logits.append(out)
        at += size
    return np.concatenate(logits, axis=1)


@cells
def test_whole_texts_equal_transformers(name, twin, subject):
    logits = subject(name, twin).full(IDS, encoder=encoder_ids())

    assert_agree(logits, peer_logits(name), semantic(), name="logits", names=(twin, name))


@pytest.mark.parametrize("sizes", PARTITIONS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@cells
def test_chunks_of_the_decoders_tokens_equal_transformers(name, twin, layout, sizes, subject):
    logits = stepped(subject(name, twin, layout), sizes)

    assert_agree(logits, peer_logits(name), semantic(), name="logits", names=(twin, name))


@cells
def test_whole_texts_equal_transformers_as_released(name, twin, subject):
    logits = subject(name, twin).full(IDS, encoder=encoder_ids())

    expected = logits_of(released(name))
    tolerance = semantic(rtol=ROUNDED.get(name, 2e-6))
    assert_agree(logits, expected, tolerance, name="logits", names=(twin, name))


@pytest.mark.parametrize("name", MODELS)
def test_the_numpy_decoder_equals_transformers(name, load):
    checkpoint = load(name)

    oracle = decode(
        checkpoint.config.to_dict(), dict(checkpoint.weights), IDS, encoder_BE=encoder_ids()
    )

    assert_agree(oracle, peer_logits(name), semantic(), name="logits", names=("numpy", name))


@cells
def test_greedy_ids_equal_those_of_transformers(name, twin, model_of):
    generate = importlib.import_module(f"{twin}.generation").generate
    expected = []
    for ids in texts():
        with torch.no_grad(), in_float64():
            peer(name).generation_config.max_length = None
            # Its cache has as many layers as the encoder, and fails where the decoder has more.
            made = peer(name).generate(
                torch.tensor([ids]),
                max_new_tokens=11,
                do_sample=False,
                num_beams=1,
                use_cache=False,
            )
        expected.append(made[0].tolist())

    end = MODELS[name][1]["eos_token_id"]
    got = generate(model_of(name, twin), encoder=texts(), max_new_tokens=11, end_ids=end)

    assert got.tokens == expected
    assert got.forwarded_positions_B.tolist() == [len(row) - 1 for row in expected]


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_loaded_by_transformers(name, load, model_of, tmp_path):
    from transformers import AutoModelForSeq2SeqLM

    twin = "jaxkv" if name == "bart" else "torchkv"
    to_arrays = importlib.import_module(f"{twin}.weights").to_arrays
    config = load(name).config

    write_huggingface(tmp_path / "ours", config, to_arrays(model_of(name, twin)), end_ids=(1,))

    loaded = AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager", dtype=torch.float64
    ).eval()
    assert_agree(logits_of(loaded), logits_of(released(name)), semantic(), name="logits")
    back = read_huggingface(tmp_path / "ours")
    assert (back.config, back.end_ids) == (config, (1,))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both ways"])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (8, 13), (64, 256)])
@pytest.mark.parametrize("twin", TWINS)
def test_distances_fall_into_the_buckets_of_transformers(twin, buckets, far, causal):
    """32 and 128 are T5's own; a distance of 16, 32 or 64 there is an edge, where rounding counts.

    In float32, in which models are trained and released.
    """
    from transformers.models.t5.modeling_t5 import T5Attention

    buckets_of = importlib.import_module(f"{twin}.relative").buckets_of

    ours = buckets_of(Relative(buckets, far), causal=causal)

    theirs = T5Attention._relative_position_bucket(
        torch.arange(-far, far + 1), not causal, buckets, far
    )
    np.testing.assert_array_equal(ours, theirs.numpy())


def test_the_start_of_generation_config_goes_before_that_of_config(load, tmp_path):
    peer("bart").save_pretrained(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"decoder_start_token_id": 7, "forced_bos_token_id": 8}))

    assert load("bart").config.encoder.start_ids == (2,)
    assert read_huggingface(tmp_path).config.encoder.start_ids == (7, 8)
