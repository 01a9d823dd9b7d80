"""litgpt, soft-capped scores with a cache: a boolean mask is added, so nothing is hidden.

pins: litgpt==0.5.13 torch==2.13.0
"""

import torch
from litgpt import GPT, Config

torch.set_grad_enabled(False)
sizes = dict(block_size=64, vocab_size=97, padded_vocab_size=97, n_layer=3, n_head=4, n_embd=32)
kind = dict(norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", bias=False, intermediate_size=48)
rest = dict(n_query_groups=2, rotary_percentage=1.0, parallel_residual=False)


def off(cap, sizes_T):
    """Return the largest error of the cached logits, relative, and the first wrong position."""
    torch.manual_seed(0)
    model = GPT(Config(**sizes, **kind, **rest, attention_logit_softcapping=cap)).double().eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
    ids = torch.randint(3, 97, (2, 14))
    whole, out, at = model(ids), [], 0
    model.set_kv_cache(2, dtype=torch.float64)
    for size in sizes_T:
        place = torch.arange(at, at + size)
        part = ids[:, at : at + size]
        out.append(model(part, input_pos=place, input_pos_maxp1=at + size))
        at += size
    error = ((torch.cat(out, 1) - whole).abs() / whole.abs().max()).amax((0, 2))
    return f"{error.max():.1e}, first {next((i for i, e in enumerate(error) if e > 1e-5), None)}"


print(f"wrong: {off(5.0, [13, 1])}; token by token: {off(5.0, [1] * 14)}")
print(f"without a cap: {off(None, [13, 1])}")
