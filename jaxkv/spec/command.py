"""The command lines' common half: options, output, errors.

What a twin computes, it computes in its own cli.py.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jaxkv.spec import (
    command_generate,
    command_info,
    command_memory,
    command_programs,
    flag_groups,
)
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.command_endings import ended
from jaxkv.spec.command_generate import Prepare
from jaxkv.spec.command_words import reword
from jaxkv.spec.errors import RequestError, SourceError
from jaxkv.spec.source import open_source, open_tokenizer

DTYPES = ("float32", "bfloat16", "float64")
DEVICES = ("cpu", "cuda")
STORED = "stored"


def main(program: str, prepare: Prepare, argv: Sequence[str] | None) -> int:
    """Return the exit code of one command, see `ended`; argparse exits by itself."""
    options = argparse.Namespace()

    def work() -> None:
        parser(program).read(argv, options)
        if hasattr(options, "run"):
            options.run(options)
        else:
            {"generate": command_generate.run, "score": _score}[options.command](options, prepare)

    return ended(program, work, lambda message: reword(message, options))


def _score(options: argparse.Namespace, prepare: Prepare) -> None:
    checkpoint = open_source(options.model)
    tokenizer, encoder = open_tokenizer(checkpoint), checkpoint.config.encoder
    ids = tokenizer.encode(_read_text("--text-file", options.text_file))
    read = None
    if encoder is not None and options.encoder_file is not None:
        # The library's shift: what is predicted first stands behind the start.
        ids = [*encoder.start_ids[:1], *ids]
        read = [tokenizer.encode(_read_text("--encoder-file", options.encoder_file))]
    elif encoder is not None or options.encoder_file is not None:
        wanted = "what its encoder reads" if encoder else "nothing: the model has no encoder"
        raise RequestError(f"score: --encoder-file is {options.encoder_file}, expected {wanted}.")
    loss, predictions = prepare(options, checkpoint).score([ids], read)
    if options.json:
        print(json.dumps({"loss": loss, "predictions": predictions}))
    else:
        print(f"{loss:.6f} nats per token over {predictions} predictions")


def _read_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fact = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise SourceError(f"score: {option} {path}: {fact}.") from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with 2 after one line, as for every other wrong input."""
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help.\n")

    def read(self, argv: Sequence[str] | None, options: argparse.Namespace) -> None:
        """Fill in the options; what no command knows sends to the help of the one given."""
        _, unknown = self.parse_known_args(argv, options)
        if unknown:
            own = _Parser(f"{self.prog} {options.command}")
            own.error(f"unrecognized arguments: {' '.join(unknown)}")

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse itself says nothing where it cannot be written."""
        print(self.format_help(), end="", file=file)


def dtype_of(options: argparse.Namespace, checkpoint: Checkpoint) -> str:
    """Return the dtype that the options ask for, of a given checkpoint."""
    return checkpoint.dtype if options.dtype == STORED else options.dtype


def parser(program: str) -> _Parser:
    """Return the parser of either twin's command line."""
    top = _Parser(program, description="Generate and score text with a decoder with a KV cache.")
    commands = top.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="continue a prompt")
    score = commands.add_parser("score", help="say how well a text is predicted")
    for each in (generate, score):
        each.add_argument(
            "model",
            help="'smollm2', 'kjv', 'reference', the path of a .gguf file or of a Hugging Face "
            "directory, or a hub id",
        )
        each.add_argument(
            "--dtype",
            choices=(*DTYPES, STORED),
            default="float32",
            help="of weights and cache; 'stored' is that of the file",
        )
        each.add_argument(
            "--device", choices=DEVICES, help="where to compute (the framework's own choice)"
        )
        each.add_argument("--json", action="store_true", help="print one JSON object")
    score.add_argument("--text-file", required=True, metavar="F", help="UTF-8 text")
    score.add_argument(
        "--encoder-file", metavar="F", help="what the encoder reads, if there is one"
    )
    flag_groups.add(generate)
    command_info.add(commands)
    command_memory.add(commands)
    if program == "jaxkv":
        command_programs.add(commands)
    return top
