"""Bamba: a step's positions start at 0, whatever is cached.

pins: transformers==5.24.0 torch==2.13.0
"""

import torch
from transformers import AutoModelForCausalLM, BambaConfig

torch.set_grad_enabled(False)
sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_attention_heads=4)
mamba = dict(mamba_n_heads=8, mamba_n_groups=1, mamba_d_state=8, num_key_value_heads=2)
config = BambaConfig(**sizes, **mamba, num_hidden_layers=4, attn_layer_indices=[1, 3])
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


steps, places = [6] + [1] * 8, torch.arange(14).expand(2, -1)
print(f"wrong: {off(fed(steps))}; with position_ids: {off(fed(steps, position_ids=places))}")
