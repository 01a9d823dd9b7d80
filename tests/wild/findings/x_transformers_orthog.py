"""x-transformers: orthog_projected_values makes a causal decoder read its future, cached or not.

pins: x-transformers==2.31.10 torch==2.13.0
"""

import torch
from x_transformers import Decoder, TransformerWrapper

torch.set_grad_enabled(False)


def off(**option):
    """Return how far changing token 10 moves the logits before it, relative, and the first."""
    torch.manual_seed(0)
    layers = Decoder(dim=32, depth=3, heads=4, attn_dim_head=8, **option)
    model = TransformerWrapper(num_tokens=97, max_seq_len=64, attn_layers=layers).double().eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 1.2 / weight[0].numel() ** 0.5)
    ids = torch.randint(0, 97, (2, 14))
    other = ids.clone()
    other[:, 10] = (other[:, 10] + 5) % 97
    whole = model(ids)
    error = ((model(other) - whole).abs() / whole.abs().max()).amax((0, 2))[:10]
    return f"{error.max():.1e}, first {next((i for i, e in enumerate(error) if e > 1e-9), None)}"


print(f"wrong: {off(attn_orthog_projected_values=True)}; without it: {off()}")
