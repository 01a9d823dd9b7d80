"""litgpt: a chunk of several tokens in a ring that is full reads its own later tokens.

pins: litgpt==0.5.13 torch==2.13.0
"""

import torch
from litgpt import GPT, Config

torch.set_grad_enabled(False)
heads = dict(n_layer=2, n_head=4, n_embd=32, n_query_groups=2, rotary_percentage=1.0)
sizes = dict(block_size=64, vocab_size=97, padded_vocab_size=97, intermediate_size=48)
kind = dict(norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", bias=False)
window = dict(sliding_window_size=5, sliding_window_indices=[1, 1])
torch.manual_seed(0)
model = GPT(Config(**sizes, **heads, **kind, **window, parallel_residual=False)).double().eval()
for weight in model.parameters():
    if weight.dim() > 1:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids = torch.randint(0, 97, (2, 14))
whole = model(ids)


def off(size):
    """Return the largest error, relative, and the first wrong position, of chunks of this size."""
    model.max_seq_length = 32
    model.set_kv_cache(2, dtype=torch.float64)
    out, at = [], 0
    for part in ids.split(size, 1):
        end = at + part.shape[1]
        out.append(model(part, input_pos=torch.arange(at, end), input_pos_maxp1=end))
        at = end
    error = ((torch.cat(out, 1) - whole).abs() / whole.abs().max()).amax((0, 2))
    return f"{error.max():.1e}, first {next((i for i, e in enumerate(error) if e > 1e-5), None)}"


print(f"wrong: {off(4)}; token by token: {off(1)}")
