"""Every weight of a model: its canonical name and its shape.

Letters of the sizes: D width, N query heads, K key/value heads, H head width, F feed-forward width,
V vocabulary, Z experts.
"""

from jaxkv.spec.config import Attention, Encoder, Experts, Latent, Layer, Mlp, ModelConfig
from jaxkv.spec.relative import relative_shapes

Shapes = dict[str, tuple[int, ...]]


def weight_shapes(config: ModelConfig) -> Shapes:
    """Return every weight's canonical name and shape, in the order of the forward pass.

    Matrices are (out, in), as the field's checkpoints hold them; those of experts stand one after
    the other, (Z, out, in). How a twin stores them is its own business. A tied head has no entry:
    it is `embed.weight`.
    """
    d, v = config.width, config.vocab_size
    shapes: Shapes = {"embed.weight": (v, d)}
    if config.encoder is not None:
        shapes |= _stack_shapes("encoder.", config.encoder, config)
    shapes |= _stack_shapes("", config, config)
    shapes |= _mtp_shapes(config) if config.has_mtp else {}
    if not config.tied_head:
        shapes |= {"head.weight": (v, d)}
    return shapes | ({"head.bias": (v,)} if config.head_bias else {})


def _stack_shapes(prefix: str, stack: ModelConfig | Encoder, config: ModelConfig) -> Shapes:
    d, shapes = config.width, {}
    if config.learned_positions:
        rows = stack.max_positions + config.position_offset
        shapes[f"{prefix}position.weight"] = (rows, d)
    shapes |= _norm_shapes(f"{prefix}embed_norm", config) if config.embed_norm else {}
    shapes |= relative_shapes(prefix, [layer.attention for layer in stack.layers])
    for i, layer in enumerate(stack.layers):
        shapes |= _layer_shapes(f"{prefix}layers.{i}", layer, config)
    return shapes | (_norm_shapes(f"{prefix}norm", config) if config.final_norm else {})


def _mtp_shapes(config: ModelConfig) -> Shapes:
    """Return the module that predicts further tokens: a product of two streams, and a layer."""
    shapes = _norm_shapes("mtp.embed_norm", config) | _norm_shapes("mtp.stream_norm", config)
    shapes |= _linear("mtp.merge", config.width, 2 * config.width, False)
    shapes |= _layer_shapes("mtp.layers.0", config.layers[-1], config)
    return shapes | _norm_shapes("mtp.norm", config)


def _layer_shapes(name: str, layer: Layer, config: ModelConfig) -> Shapes:
    d = config.width
    shapes = _norm_shapes(f"{name}.attn_norm", config)
    shapes |= _attention_shapes(f"{name}.attn", layer.attention, d)
    shapes |= _norm_shapes(f"{name}.attn_post_norm", config) if layer.post_norms else {}
    if layer.cross is not None:
        shapes |= _norm_shapes(f"{name}.cross_norm", config)
        shapes |= _attention_shapes(f"{name}.cross", layer.cross, d)
    shapes |= _norm_shapes(f"{name}.mlp_norm", config)
    shapes |= _mlp_shapes(f"{name}.mlp", layer.mlp, d)
    return shapes | (_norm_shapes(f"{name}.mlp_post_norm", config) if layer.post_norms else {})


def _linear(name: str, out_width: int, in_width: int, bias: bool) -> Shapes:
    weight: Shapes = {f"{name}.weight": (out_width, in_width)}
    return weight | ({f"{name}.bias": (out_width,)} if bias else {})


def _norm_shapes(name: str, config: ModelConfig) -> Shapes:
    gain: Shapes = {f"{name}.weight": (config.width,)}
    return gain | ({f"{name}.bias": (config.width,)} if config.norm.kind == "layer" else {})


def _attention_shapes(name: str, a: Attention, d: int) -> Shapes:
    if a.latent is not None:
        return _latent_shapes(name, a, a.latent, d)
    q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    shapes = _linear(f"{name}.q", q, d, a.qkv_bias) | _linear(f"{name}.k", kv, d, a.qkv_bias)
    shapes |= _linear(f"{name}.v", kv, d, a.qkv_bias)
    if a.qk_norm is not None:
        shapes |= {f"{name}.q_norm.weight": (a.head_dim,), f"{name}.k_norm.weight": (a.head_dim,)}
    return shapes | _linear(f"{name}.o", d, q, a.out_bias)


def _latent_shapes(name: str, a: Attention, latent: Latent, d: int) -> Shapes:
    n, r, rank = a.num_heads, latent.rank, latent.query_rank
    shapes = {} if rank else _linear(f"{name}.q", n * a.query_width, d, False)
    if rank:
        shapes |= _linear(f"{name}.q_down", rank, d, a.qkv_bias)
        shapes |= {f"{name}.q_norm.weight": (rank,)}
        shapes |= _linear(f"{name}.q_up", n * a.query_width, rank, False)
    shapes |= _linear(f"{name}.kv_down", a.head_dim, d, a.qkv_bias)
    shapes |= {f"{name}.kv_norm.weight": (r,)}
    shapes |= _linear(f"{name}.k_up", n * latent.nope_width, r, False)
    shapes |= _linear(f"{name}.v_up", n * latent.value_width, r, False)
    return shapes | _linear(f"{name}.o", d, n * latent.value_width, a.out_bias)


def _mlp_shapes(name: str, m: Mlp | Experts, d: int) -> Shapes:
    if isinstance(m, Experts):
        router: Shapes = {f"{name}.router.weight": (m.num_experts, d)}
        if m.routing is not None and m.routing.choice_bias:
            router |= {f"{name}.router.bias": (m.num_experts,)}
        each = _mlp_shapes(f"{name}.experts", m.expert, d)
        shared = {} if m.shared is None else _mlp_shapes(f"{name}.shared", m.shared, d)
        return router | {p: (m.num_experts, *shape) for p, shape in each.items()} | shared
    gate = _linear(f"{name}.gate", m.width, d, m.bias) if m.gated else {}
    return (
        gate
        | _linear(f"{name}.up", m.width, d, m.bias)
        | _linear(f"{name}.down", d, m.width, m.bias)
    )
