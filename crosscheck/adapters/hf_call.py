"""How a transformers causal LM is called: which keywords it takes, and what it gives back.

Letters: B rows, T tokens of this call, S tokens fed so far with this call's.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters.hf_cache import all_layers
from crosscheck.adapters.hf_facts import text_config
from crosscheck.adapters.torch_tools import quiet, to_numpy, to_torch, torch_module


class Caller:
    """Calls one model with numpy arrays.

    Attributes:
        keywords: Parameters of the model's forward.
        cache_keyword: Under which name it takes its cache.
        offset: Added to explicit positions (some families start counting at pad id + 1).
        own_positions: The model counts positions itself from which ids are padding.
        within: The context in which the model runs.
        placed_masks: A prepared mask needs explicit positions beside it.
        pad: The padding id; what stands at tokens that are not real where the model looks at ids.
        forwarded_positions: Rows times tokens that entered the input embedding so far.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.keywords = set(inspect.signature(model.forward).parameters)
        self.cache_keyword = "cache" if "cache" in self.keywords else "past_key_values"
        self.offset = 0
        self.own_positions = False
        self.placed_masks = False
        self.within: Callable[[], Any] = quiet
        self.pad: int | None = None
        self.forwarded_positions = 0
        model.get_input_embeddings().register_forward_hook(self._count)

    def __call__(
        self,
        ids_BT: NDArray,
        *,
        cache: Any = None,
        use_cache: bool = False,
        real_BS: NDArray | None = None,
        position_BT: NDArray | None = None,
        visible_BTS: NDArray | None = None,
        encoder: Any = None,
        slot: int | None = None,
    ) -> tuple[NDArray, Any]:
        """Return logits and the cache after this call.

        Args:
            ids_BT: The next tokens.
            cache: What earlier calls left; None at the start.
            use_cache: Whether later calls will go on from here.
            real_BS: Which tokens fed so far are real; None where all are.
            position_BT: Explicit positions, counted from 0; None for the model's own.
            visible_BTS: Which of the tokens fed so far each token may read.
            encoder: [B, T', D], for models with cross-attention.
            slot: The first slot that this call fills, as `generate` tells a model with a fixed
                buffer in releases 4.42 to 4.57; None where nobody tells it.
        """
        options: dict[str, Any] = {"use_cache": use_cache}
        if cache is not None:
            options[self.cache_keyword] = cache
        if visible_BTS is not None:
            options["attention_mask"] = self._given_mask(visible_BTS, cache)
        elif real_BS is not None:
            options["attention_mask"] = to_torch(real_BS.astype(np.int64))
        if position_BT is not None and "position_ids" in self.keywords:
            options["position_ids"] = to_torch(position_BT.astype(np.int64) + self.offset)
        if slot is not None and "cache_position" in self.keywords:
            options["cache_position"] = to_torch(np.arange(slot, slot + ids_BT.shape[1]))
        if encoder is not None:
            options["encoder_hidden_states"] = to_torch(encoder, like=next(self.model.parameters()))
        with self.within():
            out = self.model(input_ids=to_torch(ids_BT.astype(np.int64)), **options)
        after = getattr(out, "cache", None)
        after = getattr(out, "past_key_values", None) if after is None else after
        return to_numpy(out.logits), cache if after is None else after

    def _given_mask(self, visible_BTS: NDArray, cache: Any) -> Any:
        """Return a prepared mask, one tensor, or one for each layer type where sizes differ."""
        new = visible_BTS.shape[1]
        first = visible_BTS.shape[2] - new
        sizes = [_mask_sizes(layer, first, new) for layer in all_layers(cache)] if cache else []
        sizes = [s for s in sizes if s is not None] or [(visible_BTS.shape[2], 0)]
        types = getattr(text_config(self.model), "layer_types", None)
        if len(set(sizes)) == 1 or not types or len(types) != len(sizes):
            return self._additive(visible_BTS, *sizes[0])
        return {t: self._additive(visible_BTS, *s) for t, s in zip(types, sizes, strict=True)}

    def _additive(self, visible_BTS: NDArray, slots: int, first: int) -> Any:
        """Return [B, 1, T, slots]: 0 where a token may be read, else the dtype's minimum."""
        torch = torch_module()
        open_BTS = np.zeros((*visible_BTS.shape[:2], slots), bool)
        held = visible_BTS[:, :, first : first + slots]
        open_BTS[:, :, : held.shape[2]] = held
        dtype = next(self.model.parameters()).dtype
        mask = torch.zeros(open_BTS.shape, dtype=dtype)
        mask[~torch.as_tensor(open_BTS)] = torch.finfo(dtype).min
        return mask[:, None]

    def _count(self, _module: Any, arguments: Any, _out: Any) -> None:
        shape = tuple(arguments[0].shape) if arguments else (0,)
        self.forwarded_positions += int(np.prod(shape[:2]))


def _mask_sizes(layer: Any, fed: int, new: int) -> tuple[int, int] | None:
    """Return how many slots a layer will show to so many new tokens, and the first one's token."""
    if not hasattr(layer, "keys") or not hasattr(layer, "get_mask_sizes"):
        return None
    told = inspect.signature(layer.get_mask_sizes).parameters
    # Releases 4.56 to 4.57 ask for the places of the tokens, not for their number.
    given = to_torch(np.arange(fed, fed + new)) if "cache_position" in told else new
    slots, first = layer.get_mask_sizes(given)
    return int(slots), int(first)
