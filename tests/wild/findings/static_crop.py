"""StaticCache of a sliding layer: a crop past what the ring holds moves counters only.

pins: transformers==5.24.0 torch==2.13.0
"""

import torch
from transformers import AutoModelForCausalLM, MistralConfig, StaticCache

torch.set_grad_enabled(False)
sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, max_position_embeddings=64)
heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
config = MistralConfig(**sizes, **heads, num_hidden_layers=2, sliding_window=5)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
for name, weight in model.named_parameters():
    if weight.dim() > 1 and "dt_" not in name and "A_log" not in name:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids = torch.randint(3, 97, (2, 14))
whole = model(ids, use_cache=False).logits

found = []
for kept, more in ((8, 3), (2, 2)):
    cache = StaticCache(config=config, max_cache_len=20)
    junk = (ids[:, kept : kept + more] + 7) % 94 + 3
    model(torch.cat([ids[:, :kept], junk], 1), use_cache=True, cache=cache)
    cache.crop(-more)
    again = model(ids[:, kept : kept + 1], use_cache=True, cache=cache).logits
    found.append(float((again - whole[:, kept : kept + 1]).abs().max() / whole.abs().max()))
print(f"wrong: {found[0]:.1e}, first 8; before the ring is full: {found[1]:.1e}")
