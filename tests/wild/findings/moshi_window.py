"""Moshi: the cache keeps a window of 5, the mask of the uncached forward has none.

pins: transformers==5.24.0 torch==2.13.0
"""

import torch
from transformers import MoshiConfig, MoshiForCausalLM

torch.set_grad_enabled(False)
sizes = dict(vocab_size=97, hidden_size=32, ffn_dim=64, num_hidden_layers=3)
heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
config = MoshiConfig(**sizes, **heads, sliding_window=5)
torch.manual_seed(0)
model = MoshiForCausalLM._from_config(config, attn_implementation="eager").double().eval()
for name, weight in model.named_parameters():
    if weight.dim() > 1 and "dt_" not in name and "A_log" not in name:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids = torch.randint(3, 97, (2, 14))
whole = model(ids, use_cache=False).logits


def fed(sizes, cache=None, **given):
    """Return the logits of all tokens, fed in chunks of these sizes through one cache."""
    out = []
    for i, part in enumerate(ids.split(sizes, 1)):
        now = {k: v.split(sizes, 1)[i] for k, v in given.items()}
        said = model(part, use_cache=True, **({"cache": cache} if cache else {}), **now)
        out, cache = [*out, said.logits], said.cache
    return torch.cat(out, 1)


def off(got, right=whole):
    """Return the largest error, relative, and the first wrong position."""
    error = ((got - right).abs() / right.abs().max()).amax((0, 2)).nan_to_num(torch.inf)
    return f"{error.max():.1e}, first {next((i for i, e in enumerate(error) if e > 1e-5), None)}"


print(f"wrong: {off(fed([1] * 14))}; in two chunks: {off(fed([1, 13]))}")
