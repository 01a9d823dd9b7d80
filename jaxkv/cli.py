"""The command `jaxkv`."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxkv.spec import command
from jaxkv.spec.checkpoint import Checkpoint

if TYPE_CHECKING:
    from jaxkv.generation import Generated
    from jaxkv.model import Decoder


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of `jaxkv ...`: 0, or 2 after one line for wrong input."""
    return command.main("jaxkv", prepare, argv)


@dataclass(frozen=True)
class Engine:
    """This twin with a checkpoint's weights in it.

    Attributes:
        model: The decoder.
        asked: Arguments of `generate` and `stream`.
        cached: Whether `generate` keeps a cache.
    """

    model: "Decoder"
    asked: dict[str, Any]
    cached: bool

    def generate(self, prompt_ids: Sequence[int], budget: int) -> "Generated":
        """Return the continuation."""
        from jaxkv.generation import generate

        return generate(
            self.model,
            **self._texts(prompt_ids),
            max_new_tokens=budget,
            cached=self.cached,
            **self.asked,
        )

    def stream(
        self, prompt_ids: Sequence[int], budget: int, progress: Callable[[int, int], None]
    ) -> Iterator[list[list[int]]]:
        """Return an iterator over the same tokens as they come."""
        from jaxkv.streaming import stream

        return stream(
            self.model,
            **self._texts(prompt_ids),
            max_new_tokens=budget,
            progress=progress,
            **self.asked,
        )

    def score(
        self, texts_ids: Sequence[Sequence[int]], encoder: Sequence[Sequence[int]] | None = None
    ) -> tuple[float, int]:
        """Return the mean nats of all predictions, and their number."""
        from jaxkv.scoring import score

        return score(self.model, texts_ids, encoder=encoder)

    def _texts(self, prompt_ids: Sequence[int]) -> dict[str, Any]:
        """Return the prompt as what it is to the model: the decoder's text, or its encoder's."""
        name = "prompts" if self.model.config.encoder is None else "encoder"
        return {name: [prompt_ids]}


def prepare(options: argparse.Namespace, checkpoint: Checkpoint) -> Engine:
    """Return the engine with the checkpoint's weights, as the options say.

    Raises:
        JaxkvError: The checkpoint or an option does not fit.
    """
    import jax

    from jaxkv.weights import from_arrays

    if command.dtype_of(options, checkpoint) == "float64":
        jax.config.update("jax_enable_x64", True)
    model = from_arrays(
        checkpoint.config,
        checkpoint.weights,
        dtype=command.dtype_of(options, checkpoint),
        interleaved_qk=checkpoint.interleaved_qk,
    )
    is_score = options.command == "score"
    asked = {} if is_score else command.asked(options, checkpoint)
    return Engine(model, asked, cached=is_score or not options.no_cache)


if __name__ == "__main__":
    raise SystemExit(main())
