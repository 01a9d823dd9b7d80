"""QuantizedCache: batch_select_indices moves the full-precision tail, the codes stay.

pins: transformers==5.24.0 torch==2.13.0 optimum-quanto
"""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, QuantizedCache

torch.set_grad_enabled(False)
sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, max_position_embeddings=64)
heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
config = LlamaConfig(**sizes, **heads, num_hidden_layers=2)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
for name, weight in model.named_parameters():
    if weight.dim() > 1 and "dt_" not in name and "A_log" not in name:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids = torch.randint(3, 97, (2, 14))
whole = model(ids, use_cache=False).logits

codes = dict(nbits=4, axis_key=0, axis_value=0, q_group_size=8, residual_length=64)
swap, next_id, found = torch.tensor([1, 0]), ids[:, 13:], {}
for verb in ("", "reorder_cache", "batch_select_indices"):
    cache = QuantizedCache("quanto", config, **codes)
    model(ids[:, :10], use_cache=True, cache=cache)
    model(ids[:, 10:13], use_cache=True, cache=cache)
    if verb:
        getattr(cache, verb)(swap)
    found[verb] = model(next_id[swap] if verb else next_id, use_cache=True, cache=cache).logits
right = found.pop("")[swap]
off = {k: float((x - right).abs().max() / right.abs().max()) for k, x in found.items()}
print(f"wrong: {off['batch_select_indices']:.1e}, next; reorder_cache: {off['reorder_cache']:.1e}")
