"""`python -m bench families`: equal bytes, counted experts, a time a byte."""

import argparse
import json
from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest

from bench import families
from bench.family_shapes import BASELINE, FAMILIES, moved_bytes, shape_of
from bench.layouts import FLAT
from bench.timing import Spread
from jaxkv.spec import families as known
from jaxkv.spec.config import Experts
from jaxkv.spec.tiny_families import tiny_family
from tests.tiny import CONFIGS, TWINS

HELD = replace(FLAT, used=24)
MIXTRAL = tiny_family("mixtral")


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_each_family_moves_the_bytes_of_llamas_to_one_part_in_fifty(family, batch):
    llama, other = (
        moved_bytes(shape_of(name, batch=batch), batch=batch, used=512)
        for name in (BASELINE, family)
    )

    assert other == pytest.approx(llama, rel=0.02)


def test_every_decoder_family_of_llamas_kind_and_gpts_is_measured():
    measured = {shape_of(family, batch=1).family for family in FAMILIES}

    # Encoder-decoders and latent caches move other things than weights and keys and values a head.
    apart = {"bart", "deepseek_v2", "deepseek_v3", "t5"}
    assert measured == {*known.huggingface_families()} - apart


def test_bytes_are_those_of_matrices_read_once_and_of_entries_in_use():
    """Counted by hand; of an untied embedding a row a token, of the experts those chosen."""
    llama = CONFIGS["llama"]
    d, q, kv, f, v = 40, 6 * 18, 3 * 18, 52, 97
    layers = llama.num_layers
    elements = layers * (2 * d + 2 * d * q + 2 * d * kv + 3 * d * f) + d + v * d

    tied = moved_bytes(replace(llama, tied_head=True), batch=2, used=0)
    untied = moved_bytes(replace(llama, tied_head=False), batch=2, used=0)
    used = moved_bytes(replace(llama, tied_head=True), batch=2, used=4)

    assert tied == 4 * elements
    assert untied - tied == 4 * 2 * d
    assert used - tied == 4 * layers * 2 * 2 * 4 * kv


def test_experts_count_as_many_as_were_chosen():
    layer = MIXTRAL.layers[0].mlp
    assert isinstance(layer, Experts)
    one = 4 * MIXTRAL.num_layers * 3 * MIXTRAL.width * layer.expert.width
    bytes_of = {z: moved_bytes(MIXTRAL, batch=1, used=0, touched=z) for z in (2, 3, 5)}

    assert bytes_of[3] - bytes_of[2] == pytest.approx(one)
    assert bytes_of[5] - bytes_of[2] == pytest.approx(3 * one)
    assert moved_bytes(MIXTRAL, batch=1, used=0) == pytest.approx(bytes_of[2])
    # Of two rows, each with 2 of 5: 5 * (1 - 0.6^2) on average.
    both = moved_bytes(MIXTRAL, batch=2, used=0)
    assert both == moved_bytes(MIXTRAL, batch=2, used=0, touched=3.2)


@pytest.mark.parametrize("twin", TWINS)
def test_the_experts_that_a_step_chose_are_counted(twin):
    route = import_module(f"{twin}.experts").route

    alone = families.Decoder(twin, MIXTRAL, batch=1, held=HELD)

    assert alone.touched == 2
    assert alone.moved == moved_bytes(MIXTRAL, batch=1, used=24 + families.NEW // 2, touched=2)
    assert import_module(f"{twin}.experts").route is route


def test_a_run_gives_a_time_a_byte_of_each_and_llamas_over_it(tmp_path, monkeypatch, capsys):
    tiny = {"llama": CONFIGS["llama"], "mixtral": MIXTRAL}
    monkeypatch.setattr(families, "shape_of", lambda family, *, batch: tiny[family])
    monkeypatch.setattr(families, "Decoder", partial(families.Decoder, held=HELD))
    path = tmp_path / "rows.json"
    options = argparse.Namespace(
        cases=["b8"], families=["mixtral"], twin="torchkv", quick=True, json=path, html=None
    )

    assert families.main(options) == 0

    rows = [json.loads(line) for line in path.read_text().splitlines()][1:]
    llama, mixtral = rows
    assert [row["subject"] for row in rows] == ["llama", "mixtral"]
    assert mixtral["ratio"] == pytest.approx(llama["median"] / mixtral["median"])
    assert "experts" in capsys.readouterr().out


def test_a_quick_run_leaves_out_no_family_that_was_named(monkeypatch):
    asked = []
    found = {"llama": Spread(1.0, 1.0, 1.0)}
    monkeypatch.setattr(families, "shape_of", lambda family, *, batch: asked.append(family))
    monkeypatch.setattr(families, "Decoder", lambda *_, **__: None)
    monkeypatch.setattr(families, "_compared", lambda decoders, *, repeats: found)
    monkeypatch.setattr(families, "_words", lambda found, other: ())
    monkeypatch.setattr(families, "report", lambda rows, options, about: None)
    options = argparse.Namespace(
        cases=["b1"], families=["gpt2", "qwen2", "phi3"], twin="jaxkv", quick=True
    )

    families.main(options)

    assert asked == ["llama", "gpt2", "qwen2", "phi3"]
