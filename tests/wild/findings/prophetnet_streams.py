"""prophetnet: the bias of its predicting streams is read in another order than it is made.

pins: transformers==5.24.0 torch==2.13.0
ProphetNetNgramSelfAttention.get_predict_relative_pos_embeddings makes rows in the order (batch,
token, stream, head) and views them as (batch, stream, head, token): a token gets others' biases,
those of later tokens too. One token at a time, as with a cache, both orders are the same.
"""

import torch
from transformers import ProphetNetConfig, ProphetNetForCausalLM

torch.set_grad_enabled(False)
torch.manual_seed(0)
sizes = {"vocab_size": 97, "hidden_size": 32, "decoder_ffn_dim": 48, "num_decoder_layers": 2}
sizes |= {"num_decoder_attention_heads": 4, "is_decoder": True, "add_cross_attention": False}
model = ProphetNetForCausalLM(ProphetNetConfig(**sizes)).double().eval()
for weight in model.parameters():
    if weight.dim() == 2:
        weight.data.normal_(0, 1.2 / weight.shape[-1] ** 0.5)
ids = torch.randint(3, 97, (1, 12))


def error():
    """Return how much the last four tokens change the logits of those before them, relative."""
    whole = model(ids, use_cache=False).logits[:, :8]
    alone = model(ids[:, :8], use_cache=False).logits
    return ((alone - whole).abs().max() / whole.abs().max()).item()


wrong = error()
for layer in model.prophetnet.decoder.layers:
    layer.self_attn.relative_pos_embeddings.weight.data.zero_()
    layer.self_attn.relative_pos_embeddings.bias.data.zero_()
print(f"wrong: {wrong:.1e}; right, without that bias: {error():.1e}")
