"""Unmodified models of packages that are not this project's, or of other releases of them.

Each factory says in its first line which fault of its package it shows; `make test-wild` runs them
in the environments of environments.txt.
"""

from tests.wild.models import DENSE, SIZES, causal_lm


def litgpt_softcap(cap=5.0, **window):
    """WF-10: with a soft cap a boolean mask is added to the scores, so that nothing is hidden."""
    import torch
    from litgpt import GPT, Config

    torch.manual_seed(0)
    sizes = {"block_size": 64, "vocab_size": 97, "padded_vocab_size": 97, "intermediate_size": 48}
    heads = {"n_layer": 3, "n_head": 4, "n_embd": 32, "n_query_groups": 2}
    kind = {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "bias": False}
    config = Config(
        **sizes,
        **heads,
        **kind,
        rotary_percentage=1.0,
        parallel_residual=False,
        attention_logit_softcapping=cap,
        **window,
    )
    return GPT(config).double().eval(), {"amplify": True}


def litgpt_llama():
    """Without a soft cap the same model is right."""
    return litgpt_softcap(None)


def litgpt_ring():
    """A later step of several tokens reads all of a ring, its own later tokens too."""
    return litgpt_softcap(None, sliding_window_size=5, sliding_window_indices=[1, 1, 1])


def x_transformers_shift(**option):
    """WF-12: a cached step does not know the token before it."""
    import torch
    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    option = option or {"shift_tokens": 1}
    layers = Decoder(dim=32, depth=3, heads=4, attn_dim_head=8, **option)
    model = TransformerWrapper(num_tokens=97, max_seq_len=64, attn_layers=layers)
    return model.double().eval(), {"amplify": True}


def x_transformers_plain():
    """Without the shift the same model is right."""
    return x_transformers_shift(shift_tokens=0)


def x_transformers_forget():
    """A cached step adds up the forget gates of its own tokens alone."""
    return x_transformers_shift(attn_data_dependent_alibi=True)


def gpt2_sdpa():
    """WF-13: the triangle of a cached chunk starts at the top left."""
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    return causal_lm(config, "sdpa"), {"amplify": True}


def gpt2_eager():
    """With eager attention the same model is right."""
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=97, n_embd=32, n_layer=3, n_head=4, n_positions=64)
    return causal_lm(config), {"amplify": True}


def gpt_neox_sdpa():
    """WF-13, in its second family."""
    from transformers import GPTNeoXConfig

    heads = {"num_hidden_layers": 3, "num_attention_heads": 4, "rotary_pct": 0.5}
    config = GPTNeoXConfig(**SIZES, **heads, intermediate_size=48)
    return causal_lm(config, "sdpa"), {"amplify": True}


def mistral_sliding(cache="SlidingWindowCache"):
    """WF-14: a fixed ring begins to shift one token early."""
    from transformers import MistralConfig

    config = MistralConfig(**DENSE, num_hidden_layers=2, sliding_window=5)
    return causal_lm(config, "sdpa"), {"cache": cache, "amplify": True}


def mistral_dynamic():
    """With the cache that grows the same model is right."""
    return mistral_sliding("dynamic")


def gemma2_default(window=5):
    """WF-15: the model asks layer 0, which keeps only a window, how long the text is."""
    from transformers import Gemma2Config

    config = Gemma2Config(**DENSE, num_hidden_layers=4, sliding_window=window)
    return causal_lm(config, "sdpa"), {"amplify": True}


def gemma2_wide():
    """With a window that no text fills, and a cache with room, the same model is right."""
    return gemma2_default(60)[0], {"cache": "HybridCache", "amplify": True}


def mistral_static_chunks():
    """WF-19: a chunk longer than the window drops what was there before it."""
    return mistral_sliding("static")


def mistral_dynamic_later():
    """With the cache that grows this release is right too."""
    return mistral_sliding("dynamic")


def quantized_llama(backend="quanto"):
    """WF-06: rows are selected in the full-precision tail alone, not in the codes."""
    from transformers import LlamaConfig

    axis, bits = (0, 4) if backend == "quanto" else (1, 8)
    options = {"backend": backend, "nbits": bits, "q_group_size": 8, "residual_length": 64}
    options |= {"axis_key": axis, "axis_value": axis}
    config = LlamaConfig(**DENSE, num_hidden_layers=2)
    cache = {"cache": "quantized", "cache_options": options}
    return causal_lm(config, "sdpa"), cache | {"amplify": True}


def quantized_llama_hqq():
    """WF-06, in its second backend."""
    return quantized_llama("hqq")


def quantized_llama_reordered():
    """With the verb that also moves the codes the same cache is right."""
    model, hints = quantized_llama()
    return model, hints | {"gather": "reorder_cache"}


def keras_hub_neox():
    """WF-11: queries are rotated from position 0 in every step, cached keys from theirs."""
    return keras_lm("GPTNeoX", rotary_percentage=0.5)


def keras_hub_llama():
    """WF-18: past the end of the cache a write is moved back over what it holds."""
    return keras_lm("Llama", num_key_value_heads=2)


def keras_hub_neox_jax():
    """WF-11, on keras's other backend."""
    return keras_lm("GPTNeoX", backend="jax", rotary_percentage=0.5)


def keras_hub_llama_jax():
    """WF-18, on keras's other backend."""
    return keras_lm("Llama", backend="jax", num_key_value_heads=2)


def keras_lm(family, *, backend="torch", **sizes):
    """Return a keras-hub decoder of three layers."""
    import os

    os.environ["KERAS_BACKEND"] = backend
    import keras
    import keras_hub

    keras.utils.set_random_seed(0)
    known = {"num_layers": 3, "hidden_dim": 32, "intermediate_dim": 48}
    heads = "num_heads" if family == "GPTNeoX" else "num_query_heads"
    make = getattr(keras_hub.models, f"{family}Backbone")
    backbone = make(vocabulary_size=97, **{heads: 4}, **known, **sizes)
    task = getattr(keras_hub.models, f"{family}CausalLM")
    return task(backbone=backbone, preprocessor=None), {"amplify": True}


def onnx_right(first_row="past_length"):
    """A decoder of one layer as a graph, run by ONNX Runtime."""
    import tempfile

    import onnxruntime

    from tests.wild.graphs import write_decoder

    with tempfile.TemporaryDirectory() as folder:
        write_decoder(f"{folder}/decoder.onnx", first_row=first_row)
        file = f"{folder}/decoder.onnx"
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session, {"max_positions": 64}


def onnx_top_left():
    """Planted: the graph's causal triangle begins at row 0 in every step."""
    return onnx_right("zero")


def mlx_llama(window=None):
    """A llama of mlx-lm; with a window every other layer keeps a ring."""
    import mlx.core as mx
    from mlx_lm.models.llama import Model, ModelArgs

    mx.random.seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 48, "vocab_size": 97}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
    kinds = ["full_attention", "sliding_attention", "full_attention"] if window else None
    args = ModelArgs("llama", **sizes, **heads, layer_types=kinds, sliding_window=window)
    return Model(args), {"amplify": True}


def mlx_window():
    """A full ring refuses to be trimmed by returning 0: the adapter must not take that for done."""
    return mlx_llama(5)


def mlx_restarted():
    """Planted: the rotation does not know how much is cached."""
    model, hints = mlx_llama()
    for layer in model.layers:
        layer.self_attn.rope = lambda x, offset=0, rope=layer.self_attn.rope: rope(x)
    return model, hints


def torchtune_llama():
    """A llama of torchtune."""
    import torch
    from torchtune.models.llama3 import llama3

    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "embed_dim": 32, "intermediate_dim": 48, "max_seq_len": 64}
    model = llama3(**sizes, num_layers=3, num_heads=4, num_kv_heads=2)
    return model.double().eval(), {"amplify": True}


def torchtune_restarted():
    """Planted: the rotation is not told where the step begins."""
    model, hints = torchtune_llama()
    rope = model.layers[0].attn.pos_embeddings
    rope.forward = lambda x, input_pos=None, forward=rope.forward: forward(x)
    return model, hints
