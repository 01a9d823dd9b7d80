"""transformers as a subject: its model on our weights, under the names that it knows."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.cases import Case, used_of
from bench.runner import Rows, Run
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.config import Mlp


class TransformersRunner:
    """transformers' own llama in a plain greedy loop, on torch's default device.

    The loop asks for the last position's logits only and does nothing else, so it is faster than
    the library's `generate`. Its caches: "dynamic", the default, which grows; "static", buffers of
    the text's length; "compiled", the same with the step compiled by `torch.compile`.
    """

    def __init__(self, checkpoint: Checkpoint, *, cache: str = "dynamic", dtype: str = "float32"):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        self.name = "transformers" if cache == "dynamic" else f"transformers-{cache}"
        self._cache = cache
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
        )
        self.model = self.model.to(getattr(torch, dtype)).eval()
        state = {name: torch.from_numpy(array) for name, array in their_names(checkpoint)}
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        assert not unexpected
        assert set(missing) <= {"lm_head.weight"}  # tied
        self._step = self.model
        if cache == "compiled":
            self._step = torch.compile(self.model, mode="reduce-overhead", fullgraph=True)

    def prepare(self, prompts: Rows, budget: int, *, capacity: int | None = None) -> Run:
        """Return the call that continues the prompts; a static cache is allocated here.

        The default cache grows, so that a capacity says nothing to it.
        """
        slots = capacity or len(prompts[0]) + budget
        return lambda: self._continue(prompts, budget, slots)

    def kept(self, prompts: Rows, budget: int) -> Callable[[int], list[list[int]]]:
        """Return the call that continues the prompts by so many tokens, `budget` at most.

        They have entered a cache here, once, all but their last tokens.
        """
        import torch

        head, last = [row[:-1] for row in prompts], [row[-1:] for row in prompts]
        cache = self._new_cache(len(head[0]) + budget)
        with torch.inference_mode():
            ids = torch.tensor(head, device=self.model.device)
            self.model(ids, cache=cache, use_cache=True, logits_to_keep=1)

        def run(new: int) -> list[list[int]]:
            found = self._steps(cache, last, new, first=self._step)
            cache.crop(-new)
            return found

        return run

    def slots_read(self, case: Case) -> int:
        """Return how many slots of a row a step reads: a static cache is read whole."""
        if self._cache == "dynamic":
            return used_of(case)
        return case.capacity or case.prompt + case.new

    def _continue(self, prompts: Rows, budget: int, slots: int) -> list[list[int]]:
        return self._steps(self._new_cache(slots), prompts, budget, first=self.model)

    def _steps(self, cache: Any, ids: Rows, budget: int, *, first: Any) -> list[list[int]]:
        import torch

        with torch.inference_mode():
            ids_BT = torch.tensor(ids, device=self.model.device)
            new, forward = [], first
            for _ in range(budget):
                out = forward(ids_BT, cache=cache, use_cache=True, logits_to_keep=1)
                ids_BT = out.logits[:, -1:].argmax(-1)
                new.append(ids_BT)
                forward = self._step
            return torch.cat(new, 1).tolist()

    def _new_cache(self, slots: int) -> Any:
        from transformers import DynamicCache, StaticCache

        if self._cache == "dynamic":
            return DynamicCache()
        return StaticCache(config=self.model.config, max_cache_len=slots)


def their_names(checkpoint: Checkpoint) -> Iterator[tuple[str, np.ndarray]]:
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
