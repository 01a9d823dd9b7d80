"""git: without an image, a cached step's mask is widened by the tokens of one all the same.

pins: transformers==5.24.0 torch==2.13.0
GitModel.forward puts image_patch_tokens ones before the mask of every step whose cache is not
empty: it does not ask whether an image is in it, so the padding of a text alone is read.
"""

import torch
from transformers import DynamicCache, GitConfig, GitForCausalLM

torch.set_grad_enabled(False)
torch.manual_seed(0)
sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "image_size": 16}
vision |= {"num_attention_heads": 4, "patch_size": 8}
config = GitConfig(vision_config=vision, **sizes, num_attention_heads=4, max_position_embeddings=64)
model = GitForCausalLM(config).double().eval()
for weight in model.parameters():
    if weight.dim() == 2:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids, mask = torch.randint(3, 97, (1, 12)), torch.ones(1, 12, dtype=torch.long)


def error(padding):
    """Return the largest error of four cached tokens behind so much padding, relative."""
    seen = mask.clone()
    seen[:, :padding] = 0
    whole = model(ids, attention_mask=seen, use_cache=False).logits[:, 8:]
    cache = DynamicCache(config=config)
    model(ids[:, :8], attention_mask=seen[:, :8], cache=cache)
    later = model(ids[:, 8:], attention_mask=seen, cache=cache).logits
    return ((later - whole).abs().max() / whole.abs().max()).item()


print(f"wrong, 3 tokens of padding: {error(3):.1e}; right, none: {error(0):.1e}")
