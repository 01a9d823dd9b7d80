"""nemotron_h: a step of one token leaves out the lower limit that a longer step puts on time.

pins: transformers==5.24.0 torch==2.13.0
NemotronHMamba2Mixer makes (config.time_step_min, inf) its limit and gives it to mamba2_chunk_scan,
not to mamba2_selective_state_update, which takes the steps of one token: there dt stays as small as
it comes. The config's own time_step_limit, (0, inf), is read by neither. zamba2 has the same lines.
Error: the largest difference of the logits, relative to the largest logit.
"""

import torch
from transformers import DynamicCache, NemotronHConfig, NemotronHForCausalLM

torch.set_grad_enabled(False)


def error(time_step_min, sizes):
    torch.manual_seed(0)
    config = NemotronHConfig(
        **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "chunk_size": 4},
        **{"layers_block_type": ["linear_attention", "attention", "linear_attention", "mlp"]},
        **{"mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 8},
        time_step_min=time_step_min,
    )
    model = NemotronHForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, std=2.5) if "in_proj" in name else None
        weight.sub_(4.0) if "dt_bias" in name else None
    ids = torch.randint(0, 97, (1, 12))
    full, cache = model(ids, use_cache=False).logits, DynamicCache(config=config)
    steps = [model(part, past_key_values=cache).logits for part in ids.split(sizes, dim=1)]
    return ((torch.cat(steps, dim=1) - full).abs().max() / full.abs().max()).item()


print(f"wrong, one token at a time: {error(0.001, [1] * 12):.1e}")
print(f"in chunks of 5, 7: {error(0.001, [5, 7]):.1e}")
print(f"one token at a time, time_step_min=1e-9: {error(1e-9, [1] * 12):.1e}")
