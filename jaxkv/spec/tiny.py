"""The checkpoints that subjects are made of: tiny families with random weights, or real ones.

Sizes of the tiny ones are pairwise distinct, so that a swapped axis cannot pass; windows are
shorter than a test's texts.
"""

import difflib

from jaxkv.spec.checkpoint import Checkpoint, Weights
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm, Rope
from jaxkv.spec.errors import SourceError
from jaxkv.spec.families import preset
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.source import open_source
from jaxkv.spec.tiny_families import CONFIG_JSON, tiny_family


def llama(*windows: int | None, bias: bool = False) -> ModelConfig:
    """Return a tiny llama-like config with one layer a window.

    D=40 N=6 K=3 G=2 H=18 R=9 F=52 V=97.
    """

    def layer(window: int | None) -> Layer:
        attention = Attention(6, 3, 18, window, Rope(100.0, 18), bias, bias)
        return Layer(attention, Mlp(52, "silu", gated=True, bias=bias))

    return ModelConfig(
        family="llama",
        vocab_size=97,
        width=40,
        max_positions=512,
        layers=tuple(layer(window) for window in windows),
        norm=Norm("rms", 1e-5),
        learned_positions=False,
        tied_head=True,
        head_bias=False,
    )


def gpt2() -> ModelConfig:
    """Return a tiny gpt2-like config: learned positions, tanh GELU, a tied head."""
    attention = Attention(4, 4, 7, None, None, qkv_bias=True, out_bias=True)
    layer = Layer(attention, Mlp(52, "gelu_tanh", gated=False, bias=True))
    return ModelConfig(
        family="gpt2",
        vocab_size=23,
        width=28,
        max_positions=128,
        layers=(layer, layer),
        norm=Norm("layer", 1e-5),
        learned_positions=True,
        tied_head=True,
        head_bias=False,
    )


CONFIGS: dict[str, ModelConfig] = {
    "reference": preset("reference"),
    "llama": llama(5, None, 8),
    "gpt2": gpt2(),
}


# Those of subjects: few layers, since every shape of a step is compiled anew; and one window or
# none, so that a fault of the mask can be planted by one mask for all layers.
SUBJECTS: dict[str, ModelConfig] = {
    "reference": CONFIGS["reference"],
    "llama": llama(None, None),
    "llama-window": llama(5, 5),
    "llama-mixed": llama(5, None),
    "gpt2": CONFIGS["gpt2"],
}


def subject_names() -> tuple[str, ...]:
    """Return the names of the tiny subjects: a family, or a family and what is special in it."""
    return (*SUBJECTS, *CONFIG_JSON)


def open_subject(name: str, *, seed: int = 0) -> tuple[Checkpoint, tuple[str, ...]]:
    """Return the checkpoint that a subject's name leads to, and sentences about it for reports.

    Args:
        name: One of `subject_names`, where a dash may stand for an underscore: tiny, with random
            weights that let faults show (see `random_arrays`); anything else goes to
            `open_source`: "smollm2", "kjv", a path, a hub id.
        seed: Of the random weights.

    Raises:
        SourceError: The name is none of these.
        WeightError: The file is damaged.
        ConfigError: The file asks for something unsupported.
    """
    name = _known(name)
    if name not in subject_names():
        return _opened(name), ()
    config = SUBJECTS[name] if name in SUBJECTS else tiny_family(name)
    checkpoint = Checkpoint(
        config=config,
        weights=Weights.from_arrays(random_arrays(config, seed)),
        interleaved_qk=False,
        end_ids=(),
        tokenizer_data=None,
        name=name,
    )
    return checkpoint, (f"{name}: tiny, random weights of seed {seed} with peaked attention",)


def _opened(name: str) -> Checkpoint:
    try:
        return open_source(name)
    except SourceError as error:
        near = difflib.get_close_matches(name, subject_names(), n=1)
        if not near:
            raise
        raise SourceError(f"{error} Or is it the tiny subject {near[0]!r}?") from None


def _known(name: str) -> str:
    """Return the subject's name where only a dash stands for an underscore; else the name."""
    alike = {each.replace("_", "-"): each for each in subject_names()}
    return alike.get(name, name)
