"""Tiny random encoder-decoders of transformers, for both twins to be held to.

Attention is peaked, no gain or bias is trivial, sizes are pairwise distinct, the encoder's rows are
of unlike lengths, and both texts are longer than the distance past which all buckets are one.
"""

import importlib
from functools import cache
from typing import Any

import numpy as np
import torch

from tests.parity.peers import in_float64

SOURCE_IDS = np.random.default_rng(1).integers(3, 97, (2, 21))
SOURCE_COUNTS = np.array([21, 9])
IDS = np.random.default_rng(2).integers(3, 97, (2, 17))
_T5: dict[str, Any] = {
    "vocab_size": 97,
    "d_model": 40,
    "d_kv": 9,
    "d_ff": 52,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 6,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 13,
    "layer_norm_epsilon": 2**-10,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
}
_BART: dict[str, Any] = {
    "vocab_size": 97,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 52,
    "decoder_ffn_dim": 44,
    "max_position_embeddings": 40,
    "scale_embedding": True,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", _T5),
    "flan-t5": ("T5", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("Bart", _BART),
}
"""Name -> kind of model and its config; flan-t5 is v1.1 too."""
# The library's own generation makes a cache of as many layers as the encoder has.
EVEN: dict[str, tuple[str, dict[str, Any]]] = {"t5-even": ("T5", _T5 | {"num_decoder_layers": 2})}


def build(name: str) -> Any:
    """Return the seeded model, in the dtype that is torch's default."""
    transformers = importlib.import_module("transformers")
    kind, options = (MODELS | EVEN)[name]
    config = getattr(transformers, f"{kind}Config")(**options, attn_implementation="eager")
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    generator = torch.Generator().manual_seed(0)
    if name == "flan-t5":
        # Published files have a head of their own; the library's constructor ties it all the same.
        model.lm_head.weight = torch.nn.Parameter(torch.empty(97, 40))
    bias = [(k, x) for k, x in model.named_buffers() if k == "final_logits_bias"]
    with torch.no_grad():
        for key, weight in [*model.named_parameters(), *bias]:
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if "relative_attention_bias" in key or "final_logits" in key:
                value = noise
            elif weight.dim() >= 2:
                value = noise * (1.3 / weight.shape[-1] ** 0.5)
            else:
                value = (0 if key.endswith("bias") else 1) + 0.3 * noise
            # Multiples of 1/4096: exact in float32.
            weight.copy_(torch.round(value * 4096) / 4096)
    return model


@cache
def peer(name: str) -> Any:
    """Return the model in float64, its buffers too; run it under `in_float64`."""
    with in_float64():
        return build(name)


@cache
def released(name: str) -> Any:
    """Return the same weights in float64, with the library's own float32 casts."""
    return build(name).double()


def logits_of(model: Any) -> np.ndarray:
    """Return the logits of both rows, without a cache, the encoder's texts padded and masked."""
    mask_BE = np.arange(SOURCE_IDS.shape[1]) < SOURCE_COUNTS[:, None]
    with torch.no_grad():
        return model(
            input_ids=torch.from_numpy(SOURCE_IDS),
            attention_mask=torch.from_numpy(mask_BE).long(),
            decoder_input_ids=torch.from_numpy(IDS),
            use_cache=False,
        ).logits.numpy()


@cache
def peer_logits(name: str) -> np.ndarray:
    """Return the logits of both rows in float64."""
    with in_float64():
        return logits_of(peer(name))


def encoder_ids() -> np.ndarray:
    """Return the encoder's texts as a subject takes them: -1 for no token."""
    return np.where(np.arange(SOURCE_IDS.shape[1]) < SOURCE_COUNTS[:, None], SOURCE_IDS, -1)


def texts() -> list[list[int]]:
    """Return the encoder's texts as `generate` takes them."""
    return [row[:n].tolist() for row, n in zip(SOURCE_IDS, SOURCE_COUNTS, strict=True)]
