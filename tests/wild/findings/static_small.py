"""StaticCache, all layers sliding: a buffer below the window becomes the window.

pins: transformers==5.24.0 torch==2.13.0
"""

import torch
from transformers import AutoModelForCausalLM, MistralConfig, StaticCache

torch.set_grad_enabled(False)
sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, max_position_embeddings=64)
heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8)
config = MistralConfig(**sizes, **heads, num_hidden_layers=2, sliding_window=12)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
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


small, large = (StaticCache(config=config, max_cache_len=room) for room in (8, 20))
print(f"wrong: {off(fed([1] * 14, small))}; with room for all: {off(fed([1] * 14, large))}")
