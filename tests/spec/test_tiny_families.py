"""The tiny subjects: one of every family, in which a fault of a cache has room to show."""

import numpy as np
import pytest

from crosscheck.relations.texts import TOKENS
from jaxkv.spec import families
from jaxkv.spec.config import Experts
from jaxkv.spec.errors import SourceError
from jaxkv.spec.tiny import open_subject, subject_names

NAMES = subject_names()
CONFIGS = {name: open_subject(name)[0].config for name in NAMES}
named = pytest.mark.parametrize("name", NAMES)


def sizes(name: str) -> list[int]:
    """Return the sizes that an axis may be mistaken for."""
    config = CONFIGS[name]
    attention = config.layers[0].attention
    kinds = {attention.num_heads, attention.num_kv_heads, attention.head_dim}
    mlp = config.layers[0].mlp
    hidden = (mlp.expert if isinstance(mlp, Experts) else mlp).width
    return [*kinds, config.width, hidden, config.vocab_size]


def test_there_is_a_tiny_subject_of_every_family():
    known = {*families.huggingface_families(), *families.presets()}

    assert {config.family for config in CONFIGS.values()} == known


@named
def test_no_two_axes_are_equally_long(name):
    assert len(set(sizes(name))) == len(sizes(name))


@named
def test_windows_and_the_start_of_a_scaling_lie_within_a_testers_text(name):
    attentions = [layer.attention for layer in CONFIGS[name].layers]
    scalings = [a.rope.scaling for a in attentions if a.rope is not None]
    starts = [getattr(scaling, "original_max_positions", 1) for scaling in scalings]

    assert max([*(a.window or 1 for a in attentions), *starts]) < TOKENS - 1
    assert CONFIGS[name].max_positions >= 2 * TOKENS


@named
def test_repeated_and_tiled_kv_heads_differ(name):
    for attention in (layer.attention for layer in CONFIGS[name].layers):
        n, k = attention.num_heads, attention.num_kv_heads

        # One head, a latent's, is everybody's: there is nothing to repeat.
        assert k in (1, n) or (np.arange(n) // (n // k) != np.arange(n) % k).any()


def test_a_dash_in_a_familys_name_is_as_good_as_its_underscore():
    assert open_subject("qwen3-moe")[0].config == CONFIGS["qwen3_moe"]


def test_a_name_that_is_nearly_a_tiny_subjects_is_told():
    with pytest.raises(SourceError, match="Or is it the tiny subject 'gemma3'"):
        open_subject("gema3")
