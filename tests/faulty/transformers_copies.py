"""Copies of transformers' own models and caches, edited in their source text."""

from tests.faulty.build import seeded
from tests.faulty.source_edits import edited, file_of, load, text_of

COMMON = {"attn_implementation": "eager", "use_cache": True}
SIZES = {
    "llama": {
        "vocab_size": 67,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "max_position_embeddings": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    },
    "gpt2": {
        "vocab_size": 59,
        "n_embd": 36,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": 96,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}
SIZES["mistral"] = {**SIZES["llama"], "sliding_window": 5, "vocab_size": 71}
CLASSES = {"llama": "Llama", "gpt2": "GPT2", "mistral": "Mistral"}
HEADS = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel", "mistral": "MistralForCausalLM"}


def transformers_copy(family, edits=(), *, static=False, seed=0):
    """Return (model, cache class): transformers' own source with these edits, float64, seeded.

    Edits go into "modeling" (the family's file) or "cache_utils".
    """
    text = {
        "modeling": f"transformers.models.{family}.modeling_{family}",
        "cache_utils": "transformers.cache_utils",
    }
    parts = {
        into: edited(text_of(module), tuple(edit for edit in edits if edit.into == into))
        for into, module in text.items()
    }
    caches = load(parts["cache_utils"], name="cache_utils", package="transformers")
    package = f"transformers.models.{family}"
    modeling = load(
        parts["modeling"],
        name=f"modeling_{family}",
        package=package,
        file=file_of(text["modeling"]),
    )
    modeling.DynamicCache = caches.DynamicCache
    config = getattr(modeling, f"{CLASSES[family]}Config")(**SIZES[family], **COMMON)
    model = getattr(modeling, HEADS[family])(config).double().eval()
    return seeded(model, seed), caches.StaticCache if static else caches.DynamicCache
