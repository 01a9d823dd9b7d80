"""x-transformers: data-dependent ALiBi adds up only the forget gates of the tokens of the step.

pins: x-transformers==2.31.10 torch==2.13.0
"""

import torch
from x_transformers import Decoder, TransformerWrapper

torch.set_grad_enabled(False)


def off(**option):
    """Return the largest error of one token a step, relative, and the first wrong position."""
    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=3, heads=4, attn_dim_head=8, **option)
    model = TransformerWrapper(num_tokens=97, max_seq_len=64, attn_layers=layers).double().eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 1.2 / weight[0].numel() ** 0.5)
    ids = torch.randint(0, 97, (2, 14))
    whole, out, cache = model(ids), [], None
    assert model.can_cache_kv
    for end in range(1, 15):
        logits, cache = model(ids[:, :end], cache=cache, return_intermediates=True)
        out.append(logits[:, -1:])
    error = ((torch.cat(out, 1) - whole).abs() / whole.abs().max()).amax((0, 2))
    return f"{error.max():.1e}, first {next((i for i, e in enumerate(error) if e > 1e-5), None)}"


print(f"wrong: {off(attn_data_dependent_alibi=True)}; plain ALiBi: {off(alibi_pos_bias=True)}")
