"""QuantizedCache: crop cuts the full-precision tail, its length stays, and so do positions.

pins: transformers==5.24.0 torch==2.13.0 optimum-quanto
"""

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, QuantizedCache

torch.set_grad_enabled(False)
sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, max_position_embeddings=64)
heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
config = LlamaConfig(**sizes, **heads, num_hidden_layers=2)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().eval()
for weight in model.parameters():
    if weight.dim() > 1:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids = torch.randint(3, 97, (2, 14))
codes = dict(nbits=4, axis_key=0, axis_value=0, q_group_size=8, residual_length=64)


def after(cache, *, dropped):
    """Return the logits of tokens 6 to 9, with four others fed and cropped before them."""
    model(ids[:, :6], use_cache=True, cache=cache)
    if dropped:
        model(ids[:, 10:], use_cache=True, cache=cache)
        cache.crop(-4)
    parts = [model(each, use_cache=True, cache=cache).logits for each in ids[:, 6:10].split(1, 1)]
    return torch.cat(parts, 1)


def off(make):
    """Return the largest error against never having fed them, relative."""
    right = after(make(), dropped=False)
    return float((after(make(), dropped=True) - right).abs().max() / right.abs().max())


wrong = off(lambda: QuantizedCache("quanto", config, **codes))
print(f"wrong: {wrong:.1e}, next; DynamicCache: {off(lambda: DynamicCache(config=config)):.1e}")
