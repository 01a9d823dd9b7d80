"""The command `torchkv`."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxkv.spec import command, command_cache, command_generate, flag_groups, flags_drafts
from jaxkv.spec.checkpoint import Checkpoint

if TYPE_CHECKING:
    from jaxkv.spec.identity import Identity
    from torchkv.caches import Cache
    from torchkv.generation import Generated
    from torchkv.model import Decoder

# Where the functions are that flags can ask for, by the names that a group of flags gives them.
ENTRIES = {
    "generate": "torchkv.generation",
    "beam_search": "torchkv.searching",
    "sample_many": "torchkv.samples",
    "speculate": "torchkv.speculative",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of `torchkv ...`: 0, or 2 after one line for wrong input."""
    return command.main("torchkv", prepare, argv)


@dataclass(frozen=True)
class Engine:
    """This twin with a checkpoint's weights in it.

    Attributes:
        model: The decoder.
        asked: Arguments of `generate` and `stream`.
        cached: Whether `generate` keeps a cache.
        keeps: Whether `generate` returns it, for `save`.
        entry: Which function generates, one of `ENTRIES`.
        tenant: Whose caches are saved and loaded.
        held: A saved cache that prompts go on from.
        held_ids: The prompt tokens that it holds.
    """

    model: "Decoder"
    asked: dict[str, Any]
    cached: bool
    keeps: bool = False
    entry: str = flag_groups.PLAIN
    tenant: str = ""
    held: "Cache | None" = None
    held_ids: tuple[int, ...] = ()

    @property
    def reused(self) -> int:
        """Prompt tokens that a saved cache holds."""
        return len(self.held_ids)

    def generate(self, prompt_ids: Sequence[int], budget: int, **ending: Any) -> "Generated":
        """Return the continuation, with what only `generate` takes of how it ends."""
        kept = ending if self.cached else {**ending, "cached": False}
        # Only what was asked for: another entry need not take the rest.
        kept |= {"keep_cache": True} if self.keeps else {}
        kept |= {} if self.held is None else {"cache": self.held}
        texts = self._texts(prompt_ids)
        return _entry(self.entry)(self.model, **texts, max_new_tokens=budget, **kept, **self.asked)

    def stream(
        self, prompt_ids: Sequence[int], budget: int, progress: Callable[[int, int], None]
    ) -> Iterator[list[list[int]]]:
        """Return an iterator over the same tokens as they come."""
        from torchkv.streaming import stream

        return stream(
            self.model,
            **self._texts(prompt_ids),
            max_new_tokens=budget,
            progress=progress,
            cache=self.held,
            **self.asked,
        )

    def load(self, path: str, prompt_ids: Sequence[int]) -> "Engine":
        """Return an engine that goes on from a saved cache with whose text the prompt begins.

        Raises:
            SourceError: The file is none of this model, layout or tenant, or of another text.
            ShapeError: It has another form, as of another page size.
        """
        import torch

        from torchkv import caches

        saved = caches.peek(path, tenant=self.tenant)
        reused = command_cache.reused_of(saved, prompt_ids, path)
        names = ("layout", "page_size", "slack")
        form = {name: self.asked[name] for name in names if self.asked[name] is not None}
        form |= self.asked.get("layout_options") or {}
        like = caches.init(
            self.model.config,
            batch=1,
            capacity=saved.capacity,
            dtype=self.model.dtype,
            **form,
        )
        cache = caches.load(path, like, identity=self._identity())
        length_B = torch.tensor([reused], dtype=torch.int32)
        held = caches.rollback(cache, length_B)
        return replace(self, held=held, held_ids=tuple(prompt_ids[:reused]))

    def save(self, path: str, outcome: "Generated") -> None:
        """Write the cache of what was generated, and of its prompt, to a file.

        Raises:
            SourceError: The file cannot be written.
        """
        from torchkv import caches

        assert outcome.cache is not None  # `generate` was asked to keep it
        text = [*self.held_ids, *outcome.tokens[0]][: int(outcome.cache.length_B[0])]
        caches.save(outcome.cache, path, identity=self._identity(), tokens=[text])

    def score(
        self, texts_ids: Sequence[Sequence[int]], encoder: Sequence[Sequence[int]] | None = None
    ) -> tuple[float, int]:
        """Return the mean nats of all predictions, and their number."""
        from torchkv.scoring import score

        return score(self.model, texts_ids, encoder=encoder)

    def _texts(self, prompt_ids: Sequence[int]) -> dict[str, Any]:
        """Return the prompt as what it is to the model: the decoder's text, or its encoder's."""
        name = "prompts" if self.model.config.encoder is None else "encoder"
        return {name: [prompt_ids[self.reused :]]}

    def _identity(self) -> "Identity":
        from torchkv.identity import identity_of

        return identity_of(self.model, layout=self.asked["layout"], tenant=self.tenant)


def prepare(options: argparse.Namespace, checkpoint: Checkpoint) -> Engine:
    """Return the engine with the checkpoint's weights, as the options say.

    Raises:
        JaxkvError: The checkpoint or an option does not fit.
    """
    from torchkv.devices import use

    use(options.device)
    dtype = command.dtype_of(options, checkpoint)
    model = _model(checkpoint, dtype)
    is_score = options.command == "score"
    if is_score:
        return Engine(model, {}, cached=True)
    return Engine(
        model,
        command_generate.asked(options, checkpoint) | _draft(options, checkpoint, dtype),
        cached=not options.no_cache,
        keeps=options.save_cache is not None,
        entry=flag_groups.entry(options),
        tenant=options.tenant,
    )


def _model(checkpoint: Checkpoint, dtype: str) -> "Decoder":
    from torchkv.weights import from_arrays

    return from_arrays(
        checkpoint.config,
        checkpoint.weights,
        dtype=dtype,
        interleaved_qk=checkpoint.interleaved_qk,
    )


def _draft(options: argparse.Namespace, checkpoint: Checkpoint, dtype: str) -> dict[str, Any]:
    """Return what drafts, where a flag asks for it."""
    flags_drafts.check_config(options, checkpoint)
    if options.draft == flags_drafts.MTP:
        return {"draft": flags_drafts.MTP}
    if options.draft is not None:
        return {"draft": _model(flags_drafts.open_draft(options, checkpoint), dtype)}
    if options.prompt_lookup is None:
        return {}
    from torchkv.drafts import PromptLookup

    return {"draft": PromptLookup()}


def _entry(name: str) -> Callable[..., Any]:
    return getattr(import_module(ENTRIES[name]), name)
