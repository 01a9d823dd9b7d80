"""falcon_h1: selecting rows of a batch moves the keys of its layers, not their states.

pins: transformers==5.24.0 torch==2.13.0
LinearAttentionAndFullAttentionLayer has a reorder_cache for both of its halves, and inherits
batch_select_indices and batch_repeat_interleave from DynamicLayer, which knows keys and values.
"""

import torch
from transformers import DynamicCache, FalconH1Config, FalconH1ForCausalLM

torch.set_grad_enabled(False)
torch.manual_seed(0)
sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
state = {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
config = FalconH1Config(**sizes, **heads, **state, mamba_chunk_size=4)
model = FalconH1ForCausalLM(config).double().eval()
for weight in model.parameters():
    if weight.dim() == 2:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids, rows = torch.randint(3, 97, (2, 12)), torch.tensor([1, 0])
whole = model(ids[rows], use_cache=False).logits[:, 8:]


def error(verb):
    """Return the largest error after the rows are exchanged by a verb of the cache, relative."""
    cache = DynamicCache(config=config)
    model(ids[:, :8], cache=cache)
    getattr(cache, verb)(rows)
    later = model(ids[rows, 8:], cache=cache).logits
    return ((later - whole).abs().max() / whole.abs().max()).item()


print(f"wrong, batch_select_indices: {error('batch_select_indices'):.1e}")
print(f"right, reorder_cache: {error('reorder_cache'):.1e}")
