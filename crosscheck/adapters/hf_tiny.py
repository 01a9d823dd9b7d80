"""Random tiny models of any family of transformers, from its config class alone; no download.

Sizes: vocabulary 97, width 32, 4 query heads, 2 key/value heads of 8, window 5, 64 positions.
"""

import difflib
import inspect
from dataclasses import replace
from typing import Any

import numpy as np

from crosscheck.adapters.hf import CausalLM
from crosscheck.adapters.hf_load import adapt_model, floating
from crosscheck.adapters.torch_tools import torch_module
from crosscheck.errors import CrosscheckError

VOCAB, WIDTH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, WINDOW, POSITIONS = 97, 32, 4, 2, 8, 48, 5, 64
# One table for all families: what a config's parameter of this name becomes. A family takes those
# that its config class names.
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "is_decoder": True,
    "use_cache": True,
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size"), WIDTH),
    **dict.fromkeys(("word_embed_proj_dim", "input_embedding_size"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(
        ("num_key_value_heads", "num_kv_heads", "num_global_key_value_heads"), KV_HEADS
    ),
    **dict.fromkeys(("head_dim", "global_head_dim", "v_head_dim"), HEAD_DIM),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim"), HEAD_DIM),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"), HIDDEN),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), HIDDEN // 2),
    **dict.fromkeys(("expert_dim", "shared_intermediate_size", "dff", "d_inner"), HIDDEN),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), POSITIONS),
    **dict.fromkeys(("sliding_window", "window_size", "attention_chunk_size"), WINDOW),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "num_selected_experts"), 2),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "num_shared_experts"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "index_head_dim"), 16),
    **dict.fromkeys(("index_n_heads", "index_topk"), 32),
    **dict.fromkeys(("num_mtp_layers", "num_nextn_predict_layers"), 0),
    **dict.fromkeys(("mamba_n_heads", "mamba_d_head", "mamba_d_state"), 8),
    "mamba_n_groups": 1,
    "mamba_chunk_size": 4,
    "layer_norm_eps": 1e-5,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
    "query_pre_attn_scalar": HEAD_DIM,
    "altup_num_inputs": 2,
    "laurel_rank": 4,
    "type_vocab_size": 2,
    "conv_L_cache": 3,
}
# What fits beside a run's copies: 2e9 bytes in float64.
MOST_PARAMETERS = 250_000_000
OWN_WEIGHTS = "random weights of the package's own initialization: faults may hardly show"
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
DROPS = ("dropout", "pdrop", "drop_prob")
SPECIAL: dict[str, dict[str, Any]] = {
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "modernbert_decoder": {"local_attention": WINDOW},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "bamba": {"attn_layer_indices": [1, 3]},
    # Of four layers their own pattern leaves none that attends, or the sizes of a state don't fit.
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "bailing_hybrid": {"layer_group_size": 2},
    "granitemoehybrid": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        **{"mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 8},
    },
    "mamba2": {"num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1, "state_size": 8},
    "falcon_h1": {"mamba_d_ssm": 64},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "chunk_size": 4},
    "falcon": {"new_decoder_architecture": True, "alibi": False, "num_kv_heads": KV_HEADS},
    "dory": {"num_hidden_layers": 6, "recurrent_kv_cache_mode": "per_loop"}
    | dict.fromkeys(("n_input_layers", "n_recurrent_layers", "n_output_layers"), 2),
    "big_bird": {"attention_type": "original_full"},
}


def tiny_subject(family: str, **options: Any) -> CausalLM:
    """Return a random tiny model of a family, with amplified weights.

    Options: attn ("sdpa"), dtype ("float64"), cache, gather, seed (0), layers (4), window, amplify
    ("yes"), `cache.NAME=` for arguments of the cache; anything else is a field of the config.
    """
    torch = torch_module()
    seed = _whole(family, "seed", options.pop("seed", 0))
    dtype = floating(f"hf-tiny:{family}", str(options.pop("dtype", "float64")))
    attn, amplify = options.pop("attn", None), options.pop("amplify", "yes")
    hints = {k: options.pop(k) for k in ("cache", "gather", "documented") if k in options}
    hints["cache_options"] = _within(options, "cache.")
    config = tiny_config(family, **options)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _made(config, attn).to(dtype).eval()
    kept = amplify in ("no", "false", False)
    notes = (OWN_WEIGHTS,) if kept else ()
    if type(config) is not _config_class(family):
        notes += (f"{family} is made of parts: this is its text decoder, {config.model_type}",)
    if "window" in options and not hasattr(config, "sliding_window"):
        notes += (f"{family} has no window: window={options['window']} changes nothing",)
    hints |= {"amplify": None if kept else seed, "notes": notes}
    subject = adapt_model(model, name=f"hf-tiny:{family}", **hints)
    return subject if attn else _without_empty_rows(subject)


def tiny_config(family: str, **given: Any) -> Any:
    """Return a config of the family with tiny sizes; of a family made of parts, its decoder's.

    Raises:
        CrosscheckError: transformers has no such family, or its config refuses the sizes.
    """
    maker = _decoder_class(_config_class(family))
    known = inspect.signature(maker.__init__).parameters
    window = given.pop("window", None)
    if window is not None and "sliding_window" in known:
        given["sliding_window"] = window
    depth = _whole(family, "layers", given.pop("layers", 4), least=1)
    _check_fields(family, given, list(known))
    special = SPECIAL.get(maker.model_type.replace("-", "_"), {})
    sizes = SIZES | dict.fromkeys(DEPTHS, depth) | special
    if "kv_lora_rank" in known:
        sizes["num_key_value_heads"] = HEADS
    chosen = {k: v for k, v in sizes.items() if k in known}
    chosen |= {k: 0.0 for k in known if k.endswith(DROPS) and "classifier" not in k}
    chosen |= {k: _literal(v) for k, v in given.items()}
    try:
        return maker(**chosen)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise CrosscheckError(f"hf-tiny: {family}: {type(error).__name__}: {said}") from None


def _config_class(family: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for name in (family, family.replace("-", "_"), family.replace("_", "-")):
        if name in CONFIG_MAPPING:
            return CONFIG_MAPPING[name]
    raise CrosscheckError(_unknown(family, list(CONFIG_MAPPING)))


def _decoder_class(own: Any) -> Any:
    """Return the config class of the text decoder that a family of several parts has, or its own.

    The parts' sizes are not this config's: the whole of gemma3 would take 20e9 bytes.
    """
    if "text_config" not in getattr(own, "sub_configs", {}):
        return own
    return type(own().get_text_config())


def _whole(family: str, name: str, given: Any, *, least: int = 0) -> int:
    """Return an option's whole number, which may be given as text."""
    if not str(given).isdecimal() or int(given) < least:
        raise CrosscheckError(
            f"hf-tiny: {family}: {name} is {given!r}, expected a whole number of at least {least}."
        )
    return int(given)


def _check_fields(family: str, given: dict[str, Any], known: list[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3) or known[-3:]
            raise CrosscheckError(
                f"hf-tiny: {family}: option is {name!r}, expected attn, dtype, cache, gather, "
                f"seed, layers, window, amplify or a field of its config such as {', '.join(near)}."
            )


def _made(config: Any, attn: str | None) -> Any:
    """Return the model, made only after its size is known: some families have sizes of their own.

    Raises:
        CrosscheckError: It is too large, or the family refuses the sizes or the attention.
    """
    torch = torch_module()
    with torch.device("meta"):
        drawn = _drawn(config, attn)
    parameters = sum(each.numel() for each in drawn.parameters())
    if parameters > MOST_PARAMETERS:
        raise CrosscheckError(
            f"hf-tiny: {config.model_type} would have {parameters:,} parameters, expected at most "
            f"{MOST_PARAMETERS:,}: it has sizes that are not known here. Name its text model "
            "instead, or give fields of its config: hf-tiny:FAMILY?FIELD=NUMBER."
        )
    return _drawn(config, attn)


def _drawn(config: Any, attn: str | None) -> Any:
    maker, refused = _maker(config), None
    for wanted in (attn,) if attn else ("sdpa", "eager"):
        try:
            return maker(config, attn_implementation=wanted)
        except (ValueError, ImportError) as error:
            refused = error
    said = " ".join(str(refused).split())[:200]
    raise CrosscheckError(f"hf-tiny: {config.model_type}: {said}") from None


def _maker(config: Any) -> Any:
    """Return what makes a causal LM: the auto class, or the family's own class beside it."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM.from_config
    own = getattr(transformers, type(config).__name__.replace("Config", "ForCausalLM"), None)
    if own is None:
        raise CrosscheckError(f"hf-tiny: {config.model_type} has no causal language model.")
    return own._from_config


def _without_empty_rows(subject: CausalLM) -> CausalLM:
    """Return the subject, without padding where its only attention code can't take it.

    Eager attention adds float64's minimum and takes the softmax in float32, where that is -inf: a
    row that is all padding gives NaN, which the next layer spreads. Nobody asked for eager here.
    """
    if subject.model.config._attn_implementation != "eager":
        return subject
    ids_BT = np.full((1, 4), subject.info.first_id)
    mask_BT = np.arange(4)[None] >= 2
    if np.isfinite(subject.full(ids_BT, mask=mask_BT)[:, 2:]).all():
        return subject
    why = "eager attention is its only one, NaN on padding rows in float64 (attn=eager shows it)"
    facts = subject.facts
    padding = ("left_pad", "right_pad", "count")
    absent = dict(facts.absent) | dict.fromkeys(padding, why)
    facts = replace(facts, capabilities=facts.capabilities - set(padding), absent=absent)
    return CausalLM(subject.model, subject.setup, facts=facts)


def _within(options: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Take the options that begin with a prefix out of the others."""
    names = [k for k in options if k.startswith(prefix)]
    return {k.removeprefix(prefix): _literal(options.pop(k)) for k in names}


def _literal(value: Any) -> Any:
    """Return a Python literal written as text; other text as it is."""
    import ast

    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        return value


def _unknown(family: str, known: list[str]) -> str:
    near = difflib.get_close_matches(family, known, 3) or ["llama", "gpt2"]
    return f"hf-tiny: family is {family!r}, expected a model type of transformers such as " + (
        ", ".join(near) + "."
    )
