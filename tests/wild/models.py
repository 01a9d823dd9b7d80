"""Unmodified models of released packages, each from a factory of a few lines.

Nobody tells the tool what is wrong with them: a factory makes the model, with the cache that the
package offers for it, and at most quotes what the package documents.
"""

ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES = {"vocab_size": 97, "hidden_size": 32, "max_position_embeddings": 64}
DENSE = SIZES | ATTENTION | {"intermediate_size": 48}


def causal_lm(config, attention="eager"):
    """Return the seeded model of a config, in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().eval()


def bamba():
    """WF-02: positions start anew in every step."""
    from transformers import BambaConfig

    mamba = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
    layers = {"num_hidden_layers": 4, "attn_layer_indices": [1, 3], "mamba_chunk_size": 4}
    return causal_lm(BambaConfig(**(DENSE | mamba | layers))), {"amplify": True}


def moshi():
    """WF-03: the cache has a window, the mask has none."""
    import torch
    from transformers import MoshiConfig, MoshiForCausalLM

    torch.manual_seed(0)
    sizes = SIZES | ATTENTION | {"ffn_dim": 64, "num_hidden_layers": 3, "sliding_window": 5}
    model = MoshiForCausalLM._from_config(MoshiConfig(**sizes), attn_implementation="eager")
    return model.double().eval(), {"amplify": True}


def gpt_neo_static():
    """WF-04: a fixed buffer's capacity is taken for the number of keys."""
    from transformers import GPTNeoConfig

    heads = {"num_layers": 4, "num_heads": 4, "intermediate_size": 48, "window_size": 5}
    config = GPTNeoConfig(**SIZES, **heads, attention_types=[[["global", "local"], 2]])
    return causal_lm(config), {"cache": "static", "amplify": True}


def mistral_static():
    """WF-05: a fixed ring is cropped after it has wrapped, and only its counters move."""
    from transformers import MistralConfig

    config = MistralConfig(**DENSE, num_hidden_layers=2, sliding_window=5)
    return causal_lm(config), {"cache": "static", "amplify": True}


def roberta():
    """WF-07: cached padding counts as a position."""
    from transformers import RobertaConfig

    drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    heads = {"num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    config = RobertaConfig(**(SIZES | heads | drop), pad_token_id=1, is_decoder=True)
    return causal_lm(config), {"amplify": True}


def llama_eager():
    """WF-08: a float64 minimum becomes -inf in a float32 softmax, so an empty row is NaN."""
    from transformers import LlamaConfig

    return causal_lm(LlamaConfig(**DENSE, num_hidden_layers=3)), {"amplify": True}


def mistral_small_static():
    """WF-09: a buffer that is smaller than the window shrinks the window."""
    from transformers import MistralConfig

    config = MistralConfig(**DENSE, num_hidden_layers=2, sliding_window=12)
    return causal_lm(config), {"cache": "static", "amplify": True}


def dory():
    """WF-17: one cache for all loops, as documented."""
    from transformers import DoryConfig

    loops = {"n_input_layers": 2, "n_recurrent_layers": 2, "n_output_layers": 2}
    config = DoryConfig(
        **DENSE,
        **loops,
        num_hidden_layers=6,
        sliding_window=5,
        recurrent_kv_cache_mode="last_loop",
    )
    return causal_lm(config), {"amplify": True}


def mamba():
    """A later step of several tokens begins its scan without the state before it."""
    from transformers import MambaConfig

    config = MambaConfig(vocab_size=97, hidden_size=32, state_size=8, num_hidden_layers=2)
    return causal_lm(config), {"cache": "dynamic", "amplify": True}


def recurrent_gemma():
    """A later step of several tokens begins its convolution with zeros."""
    from transformers import RecurrentGemmaConfig

    sizes = {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 32}
    config = RecurrentGemmaConfig(**(DENSE | sizes | {"intermediate_size": 96}))
    return causal_lm(config), {"cache": "dynamic", "amplify": True}


def flax_attention(is_causal=True):
    """WF-01: the training-time causal option stays on in decode, so only slot 0 is read.

    With a mask in its place, and none in decode, it is right.
    """
    import jax.numpy as jnp
    from flax import nnx

    rngs = nnx.Rngs(0)

    class Decoder(nnx.Module):
        """An embedding, flax's own attention with its own cache, a head."""

        def __init__(self):
            self.embed = nnx.Embed(97, 16, rngs=rngs, param_dtype=jnp.float64, dtype=jnp.float64)
            self.attention = nnx.MultiHeadAttention(
                4, 16, dtype=jnp.float64, param_dtype=jnp.float64, decode=False, rngs=rngs
            )
            self.head = nnx.Linear(16, 97, dtype=jnp.float64, param_dtype=jnp.float64, rngs=rngs)

        def init_cache(self, batch, capacity):
            """Make room for a cache of that size."""
            self.attention.init_cache((batch, capacity, 16), dtype=jnp.float64)

        def __call__(self, ids, *, decode=False):
            """Return logits; with decode, of one more token a row."""
            x = self.embed(ids)
            mask = None if is_causal or decode else nnx.make_causal_mask(ids)
            read = self.attention(x, mask=mask, is_causal=is_causal, decode=decode)
            return self.head(x + read)

    return Decoder(), {"amplify": True}


def sdpa_is_causal():
    """WF-16: torch's is_causal starts its triangle at the top left, as documented."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Decoder(nn.Module):
        """Two layers over keys and values that grow by concatenation."""

        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(97, 32)
            self.qkv = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))
            self.out = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
            self.head = nn.Linear(32, 97)

        def forward(self, ids, cache=None):
            x, kept = self.embed(ids), []
            for layer, (qkv, out) in enumerate(zip(self.qkv, self.out, strict=True)):
                q, k, v = (
                    y.unflatten(-1, (4, 8)).transpose(1, 2) for y in qkv(x).split(32, dim=-1)
                )
                if cache is not None:
                    k, v = (
                        torch.cat([old, new], 2)
                        for old, new in zip(cache[layer], (k, v), strict=True)
                    )
                kept.append((k, v))
                read = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + out(read.transpose(1, 2).flatten(2))
            return self.head(x), kept

    torch.manual_seed(0)
    return Decoder().double().eval(), {"amplify": True}


DOCUMENTED = {
    sdpa_is_causal: {
        "cache.partition": (
            "With is_causal the mask is a lower triangle from the top left when it is not square.",
            "torch.nn.functional.scaled_dot_product_attention",
        )
    },
    dory: {
        "cache.partition": (
            "With recurrent_kv_cache_mode='last_loop' earlier loops read the last loop's keys.",
            "transformers, DoryConfig.recurrent_kv_cache_mode",
        )
    },
}
for factory, said in DOCUMENTED.items():
    factory.documented = said
