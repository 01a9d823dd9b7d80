"""The command `info`: what a model is, and the hash of its weights."""

import argparse
import json
from typing import Any

from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.identity import weights_hash
from jaxkv.spec.memory import num_parameters
from jaxkv.spec.source import open_source


def add(commands: Any) -> None:
    """Add the command to a program's parsers."""
    info = commands.add_parser("info", help="say what a model is")
    info.add_argument("model", help="as for generate")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print what `describe` returns.

    Raises:
        JaxkvError: The model cannot be opened.
    """
    facts = describe(open_source(options.model))
    if options.json:
        print(json.dumps(facts))
        return
    wide = max(14, 2 + max(map(len, facts)))
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        print(f"{name:<{wide}}{shown}")


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the facts of a model, by the names that `--json` prints.

    `heads`, `kv_heads` and `head_dim` are one number where all layers agree, else one a layer.
    `dtype` is of the weights as read (GGUF files are dequantized to float32). `capacity` is the
    most tokens that a cache can hold: the model's positions. Of an encoder, where there is one:
    `encoder_layers`, `encoder_capacity` (tokens of the text that it reads) and `start_ids`.

    Cost: reads all weights.
    """
    config = checkpoint.config
    attentions = [layer.attention for layer in config.layers]
    return {
        "family": config.family,
        "parameters": num_parameters(config),
        "layers": config.num_layers,
        "heads": _one_or_all([each.num_heads for each in attentions]),
        "kv_heads": _one_or_all([each.num_kv_heads for each in attentions]),
        "head_dim": _one_or_all([each.head_dim for each in attentions]),
        "dtype": ", ".join(sorted({array.dtype.name for array in checkpoint.weights.values()})),
        "capacity": config.max_positions,
        **_encoder(config),
        "weights_hash": weights_hash(checkpoint.weights),
    }


def _one_or_all(values: list[int]) -> int | list[int]:
    return values[0] if len(set(values)) == 1 else values


def _encoder(config: ModelConfig) -> dict[str, Any]:
    encoder = config.encoder
    if encoder is None:
        return {}
    return {
        "encoder_layers": encoder.num_layers,
        "encoder_capacity": encoder.max_positions,
        "start_ids": list(encoder.start_ids),
    }
