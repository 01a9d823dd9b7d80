"""RecurrentGemma: a chunk of several tokens begins its convolution anew.

pins: transformers==5.24.0 torch==2.13.0
"""

import torch
from transformers import AutoModelForCausalLM, DynamicCache, RecurrentGemmaConfig

torch.set_grad_enabled(False)
sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=96, num_hidden_layers=3, lru_width=32)
heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, attention_window_size=32)
config = RecurrentGemmaConfig(**sizes, **heads)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
for weight in model.parameters():
    if weight.dim() > 1:
        weight.data.normal_(0, 1.2 / weight[0].numel() ** 0.5)
ids = torch.randint(3, 97, (2, 14))
whole = model(ids, use_cache=False).logits


def off(sizes):
    """Return the largest error, relative, and the first wrong position, of these chunks."""
    model(ids, use_cache=False)  # the state lies in the module: this clears it
    cache = DynamicCache(config=config)
    out = [model(part, use_cache=True, cache=cache).logits for part in ids.split(sizes, 1)]
    error = ((torch.cat(out, 1) - whole).abs() / whole.abs().max()).amax((0, 2))
    return f"{error.max():.1e}, first {next((i for i, e in enumerate(error) if e > 1e-4), None)}"


print(f"wrong: {off([6, 4, 4])}; token by token after it: {off([6] + [1] * 8)}")
