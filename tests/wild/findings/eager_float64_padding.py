"""Eager attention in float64: a row of padding gives NaN, which the next layer spreads.

pins: transformers==5.24.0 torch==2.13.0
"""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

torch.set_grad_enabled(False)
sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, max_position_embeddings=64)
heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
config = LlamaConfig(**sizes, **heads, num_hidden_layers=3)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
for name, weight in model.named_parameters():
    if weight.dim() > 1 and "dt_" not in name and "A_log" not in name:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids = torch.randint(3, 97, (2, 14))
whole = model(ids, use_cache=False).logits

padded = torch.cat([torch.zeros(2, 4, dtype=torch.long), ids[:, :10]], 1)
mask = (torch.arange(14) >= 4).long().expand(2, -1)
places = (mask.cumsum(1) - 1).clamp_min(0)
out = {}
for dtype in (torch.float64, torch.float32):
    said = model.to(dtype)(padded, attention_mask=mask, position_ids=places, use_cache=False)
    out[dtype] = (said.logits[:, 4:] - whole[:, :10]).abs().max()
print(f"wrong: {out[torch.float64]}; in float32: {out[torch.float32]:.1e}")
