"""The command `torchkv`."""

import argparse
from collections.abc import Sequence

from jaxkv.spec import command
from jaxkv.spec.checkpoint import Checkpoint


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of `torchkv ...`: 0, or 2 after one line for wrong input."""
    return command.main("torchkv", prepare, argv)


def prepare(options: argparse.Namespace, checkpoint: Checkpoint) -> command.Generate:
    """Return the function that generates with the checkpoint's weights as the options say.

    Raises:
        JaxkvError: The checkpoint or an option does not fit.
    """
    from torchkv.generation import Generated, generate
    from torchkv.weights import from_arrays

    model = from_arrays(
        checkpoint.config,
        checkpoint.weights,
        dtype=options.dtype,
        interleaved_qk=checkpoint.interleaved_qk,
    )

    def run(prompt_ids: Sequence[int], budget: int) -> Generated:
        return generate(
            model,
            [prompt_ids],
            max_new_tokens=budget,
            end_ids=checkpoint.end_ids,
            capacity=options.capacity,
            cached=not options.no_cache,
        )

    return run


if __name__ == "__main__":
    raise SystemExit(main())
