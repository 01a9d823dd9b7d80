"""The command `jaxkv`."""

import argparse
from collections.abc import Sequence

from jaxkv.spec import command
from jaxkv.spec.checkpoint import Checkpoint


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of `jaxkv ...`: 0, or 2 after one line for wrong input."""
    return command.main("jaxkv", prepare, argv)


def prepare(options: argparse.Namespace, checkpoint: Checkpoint) -> command.Generate:
    """Return the function that generates with the checkpoint's weights as the options say.

    Raises:
        JaxkvError: The checkpoint or an option does not fit.
    """
    import jax

    from jaxkv.generation import Generated, generate
    from jaxkv.weights import from_arrays

    if options.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
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
