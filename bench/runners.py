"""The compared programs behind one call: prompts and a budget in, ids out, on the same weights."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.config import Mlp

Rows = Sequence[Sequence[int]]
Run = Callable[[], list[list[int]]]


class Runner(Protocol):
    """A program that continues prompts of one length greedily."""

    name: str
    model: Any

    def prepare(self, prompts: Rows, budget: int, *, capacity: int | None = None) -> Run:
        """Return the call to time: it gives the new ids of each prompt.

        What a capacity costs to allocate is paid here, apart from the call.
        """
        ...


class TwinRunner:
    """jaxkv or torchkv through its public `generate`."""

    def __init__(self, twin: str, checkpoint: Checkpoint):
        self.name = twin
        self._generate = importlib.import_module(f"{twin}.generation").generate
        self._caches = importlib.import_module(f"{twin}.caches")
        self.model = importlib.import_module(f"{twin}.weights").from_arrays(
            checkpoint.config, checkpoint.weights, interleaved_qk=checkpoint.interleaved_qk
        )

    def prepare(
        self, prompts: Rows, budget: int, *, capacity: int | None = None, cached: bool = True
    ) -> Run:
        """Return the call that continues the prompts, on a cache of that capacity if given."""
        options = {"max_new_tokens": budget, "cached": cached}
        if capacity is not None:
            options["consume"] = True
            options["cache"] = self.allocate(batch=len(prompts), capacity=capacity)
        return lambda: self._generate(self.model, prompts, **options).new_tokens

    def allocate(self, *, batch: int, capacity: int, layout: str = "contiguous") -> Any:
        """Return an empty cache whose buffers are there."""
        cache = self._caches.init(
            self.model.config,
            batch=batch,
            capacity=capacity,
            dtype=self.model.dtype,
            layout=layout,
        )
        if self.name == "jaxkv":
            import jax

            jax.block_until_ready(cache)
        return cache


class TransformersRunner:
    """transformers' own llama with its default cache, in a plain greedy loop.

    The loop asks for the last position's logits only and does nothing else, so it is faster than
    the library's `generate`.
    """

    def __init__(self, checkpoint: Checkpoint):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        self.name = "transformers"
        config, layer = checkpoint.config, checkpoint.config.layers[0]
        assert layer.attention.rope is not None  # a llama checkpoint
        assert isinstance(layer.mlp, Mlp)
        self.model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.width,
                intermediate_size=layer.mlp.width,
                num_hidden_layers=config.num_layers,
                num_attention_heads=layer.attention.num_heads,
                num_key_value_heads=layer.attention.num_kv_heads,
                head_dim=layer.attention.head_dim,
                max_position_embeddings=config.max_positions,
                rms_norm_eps=config.norm.eps,
                tie_word_embeddings=config.tied_head,
                rope_parameters={"rope_type": "default", "rope_theta": layer.attention.rope.theta},
            )
        ).eval()
        state = {name: torch.from_numpy(array) for name, array in _their_names(checkpoint)}
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}  # tied

    def prepare(self, prompts: Rows, budget: int, *, capacity: int | None = None) -> Run:
        """Return the call that continues the prompts; the default cache grows, capacity is moot."""
        return lambda: self._continue(prompts, budget)

    def _continue(self, prompts: Rows, budget: int) -> list[list[int]]:
        import torch
        from transformers import DynamicCache

        with torch.inference_mode():
            cache, ids = DynamicCache(), torch.tensor(prompts)
            new = []
            for _ in range(budget):
                out = self.model(ids, cache=cache, use_cache=True, logits_to_keep=1)
                ids = out.logits[:, -1:].argmax(-1)
                new.append(ids)
            return torch.cat(new, 1).tolist()


def subjects(checkpoint: Checkpoint) -> list[Runner]:
    """Return both twins and transformers, the baseline, on a checkpoint's weights."""
    return [
        TwinRunner("jaxkv", checkpoint),
        TwinRunner("torchkv", checkpoint),
        TransformersRunner(checkpoint),
    ]


def _their_names(checkpoint: Checkpoint):
    """Yield transformers' name and the array of each weight, rotary rows in half-split order."""
    from torchkv.weights import half_split

    renames = (
        ("attn_norm", "input_layernorm"),
        ("mlp_norm", "post_attention_layernorm"),
        (".attn.", ".self_attn."),
    )
    for name in checkpoint.weights:
        array = checkpoint.weights[name]
        part = name.split(".")[-2]
        if part in ("q", "k") and checkpoint.interleaved_qk:
            attention = checkpoint.config.layers[0].attention
            heads = attention.num_heads if part == "q" else attention.num_kv_heads
            array = half_split(array, heads=heads)
        theirs = name.replace("embed.", "embed_tokens.")
        for ours, new in renames:
            theirs = theirs.replace(ours, new)
        if part in ("q", "k", "v", "o", "gate", "up", "down"):
            theirs = theirs.replace(f".{part}.", f".{part}_proj.")
        yield (theirs.replace("head", "lm_head") if part == "head" else f"model.{theirs}"), array
