"""RoBERTa as a decoder: cached padding counts as a position.

pins: transformers==5.24.0 torch==2.13.0
"""

import torch
from transformers import AutoModelForCausalLM, RobertaConfig

torch.set_grad_enabled(False)
sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, max_position_embeddings=64)
heads = dict(num_hidden_layers=3, num_attention_heads=4, is_decoder=True, pad_token_id=1)
config = RobertaConfig(**sizes, **heads)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
for name, weight in model.named_parameters():
    if weight.dim() > 1 and "dt_" not in name and "A_log" not in name:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids = torch.randint(3, 97, (2, 14))
whole = model(ids, use_cache=False).logits

alone = model(ids[1:, :10], use_cache=False).logits
padded = torch.cat([torch.ones(1, 4, dtype=torch.long), ids[1:, :10]], 1)
mask = torch.cat([torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 10, dtype=torch.long)], 1)
out, cache = [], None
for end in (10, 11, 12, 13, 14):
    given = dict(attention_mask=mask[:, :end], **({"cache": cache} if cache else {}))
    said = model(padded[:, len(torch.cat(out, 1)[0]) if out else 0 : end], use_cache=True, **given)
    out, cache = [*out, said.logits], said.cache
uncached = model(padded, attention_mask=mask, use_cache=False).logits[:, 4:]
error = (torch.cat(out, 1)[:, 4:] - alone).abs().amax((0, 2)) / alone.abs().max()
print(
    f"wrong: {error.max():.1e}, first {int((error > 1e-5).nonzero()[0])}; "
    f"padded without a cache: {(uncached - alone).abs().max():.1e}"
)
