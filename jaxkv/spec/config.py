"""A decoder described once, as data: frozen when constructed, complete, unknown keys refused.

Letters of the sizes: D width, N query heads, K key/value heads, H head width, F feed-forward width,
V vocabulary, W window, Z experts.
What an attention to a latent has more stands in `latent`, feed-forwards in `feed_forward`.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from jaxkv.spec.feed_forward import Activation, Experts, Mlp, Routing
from jaxkv.spec.latent import Latent
from jaxkv.spec.part import Part, part_of, require, require_above, require_whole
from jaxkv.spec.scaling import (
    DynamicScaling,
    Llama3Scaling,
    LongScaling,
    Scaling,
    YarnScaling,
    scaling_from_dict,
)

__all__ = [
    "Activation",
    "Attention",
    "Experts",
    "Latent",
    "Layer",
    "Llama3Scaling",
    "Mlp",
    "ModelConfig",
    "Norm",
    "Rope",
    "Routing",
    "YarnScaling",
    "weight_shapes",
]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Rope(Part):
    """Rotary positions: the first 2R channels turn in pairs (i, i + R).

    A pair turns by position * theta^(-i/R), more slowly with a scaling. Interleaved pairs are
    (2i, 2i + 1). Where a latent is attended to, the last 2R channels turn.
    """

    theta: float
    rotary_dim: int
    scaling: Scaling | None = None
    interleaved: bool = False

    def __post_init__(self) -> None:
        require_whole("Rope", rotary_dim=self.rotary_dim)
        require(self.theta > 0, f"Rope: theta is {self.theta}, expected above 0.")
        require(
            self.rotary_dim % 2 == 0,
            f"Rope: rotary_dim {self.rotary_dim} must be even, channels turn in pairs.",
        )
        require(
            self.rotary_dim > 2 or not isinstance(self.scaling, DynamicScaling),
            "Rope: rotary_dim is 2, expected at least 4 for a dynamic scaling.",
        )
        if isinstance(self.scaling, LongScaling):
            given = len(self.scaling.long_factors)
            require(
                2 * given == self.rotary_dim,
                f"Rope: scaling has {given} factors, expected {self.rotary_dim // 2} "
                f"(half of rotary_dim {self.rotary_dim}).",
            )

    @property
    def follows_length(self) -> bool:
        """Whether a pair's speed depends on how many tokens its row holds."""
        return self.scaling is not None and self.scaling.follows_length

    @classmethod
    def _revive(cls, name: str, value: Any) -> Any:
        return scaling_from_dict(value) if name == "scaling" and isinstance(value, dict) else value


@dataclass(frozen=True)
class Norm(Part):
    """Which norm, and its epsilon; the layer norm has a bias, the root-mean-square norm none.

    With plus_one, the gain is 1 + weight.
    """

    kind: Literal["rms", "layer"]
    eps: float
    plus_one: bool = False

    def __post_init__(self) -> None:
        require(
            self.kind in ("rms", "layer"),
            f"Norm: kind is {self.kind!r}, expected 'rms' or 'layer'.",
        )
        require(self.eps > 0, f"Norm: eps is {self.eps}, expected above 0.")
        require(
            self.kind == "rms" or not self.plus_one,
            "Norm: plus_one is for kind 'rms', the layer norm's gain is its weight.",
        )


@dataclass(frozen=True)
class Attention(Part):
    """One attention: N query heads share K key/value heads of width H.

    Window None means all earlier tokens. Scores are q.k / score_width^(1/2), None means H. With a
    qk_norm, queries and keys are normed over each head's channels, before they turn. With a latent,
    K is 1 and H what a cache keeps of a token; score_width None then means the width of a query.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    rope: Rope | None
    qkv_bias: bool
    out_bias: bool
    soft_cap: float | None = None
    score_width: float | None = None
    qk_norm: Norm | None = None
    latent: Latent | None = None

    def __post_init__(self) -> None:
        n, k = self.num_heads, self.num_kv_heads
        require_whole("Attention", num_heads=n, num_kv_heads=k, head_dim=self.head_dim)
        require(n % k == 0, f"Attention: num_heads {n} must be a multiple of num_kv_heads {k}.")
        if self.window is not None:
            require_whole("Attention", window=self.window)
        if self.rope is not None:
            r, h = self.rope.rotary_dim, self.head_dim
            require(r <= h, f"Attention: rope.rotary_dim {r} exceeds head_dim {h}.")
        _require_soft_cap("Attention", soft_cap=self.soft_cap)
        if self.score_width is not None:
            require_above("Attention", 0, score_width=self.score_width)
        require(
            self.qk_norm is None or self.qk_norm.kind == "rms",
            "Attention: qk_norm is a layer norm, expected kind 'rms' (it has no bias).",
        )
        if self.latent is not None:
            self._check_latent(self.latent)

    def _check_latent(self, latent: Latent) -> None:
        require(
            self.rope is not None and self.qk_norm is None,
            "Attention: with a latent, expected a rope for the shared key, and no qk_norm.",
        )
        kept = latent.rank + (self.rope.rotary_dim if self.rope else 0)
        require(
            (self.num_kv_heads, self.head_dim) == (1, kept),
            f"Attention: num_kv_heads {self.num_kv_heads} and head_dim {self.head_dim}, expected 1 "
            f"and {kept} (the latent's rank and the rotary channels).",
        )

    @property
    def query_width(self) -> int:
        """Channels of one query head as projected: H, or those made of a latent and the rotary."""
        if self.latent is None or self.rope is None:
            return self.head_dim
        return self.latent.nope_width + self.rope.rotary_dim

    @property
    def value_width(self) -> int:
        """Channels of one head's value as it reaches the output projection."""
        return self.head_dim if self.latent is None else self.latent.value_width

    @property
    def stored_value_width(self) -> int:
        """Channels that a cache keeps of values, beside the keys: none of a latent's."""
        return self.head_dim if self.latent is None else 0

    @property
    def groups(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def _revive(cls, name: str, value: Any) -> Any:
        return part_of({"rope": Rope, "qk_norm": Norm, "latent": Latent}, name, value)


@dataclass(frozen=True)
class Layer(Part):
    """One block: x + attention(norm x), then x + mlp(norm x).

    Parallel: x + attention(norm x) + mlp(other norm of the same x). With post_norms, what attention
    and mlp give is normed before it is added.
    """

    attention: Attention
    mlp: Mlp | Experts
    parallel: bool = False
    post_norms: bool = False

    @classmethod
    def _revive(cls, name: str, value: Any) -> Any:
        if name == "mlp" and isinstance(value, dict) and "num_experts" in value:
            return Experts.from_dict(value)
        return part_of({"attention": Attention, "mlp": Mlp}, name, value)


@dataclass(frozen=True)
class ModelConfig(Part):
    """A causal decoder, part by part; layers may differ in their attention and feed-forward.

    With scaled_embedding, what the embedding gives is multiplied by D^(1/2), rounded to the model's
    dtype. With a logit_soft_cap c, logits are c * tanh(logit / c). draft_layers says how many more
    layers a checkpoint may hold to predict further tokens; they are no part of this decoder.
    """

    family: str
    vocab_size: int
    width: int
    max_positions: int
    layers: tuple[Layer, ...]
    norm: Norm
    learned_positions: bool
    tied_head: bool
    head_bias: bool
    dropout_rate: float = 0.0
    scaled_embedding: bool = False
    logit_soft_cap: float | None = None
    draft_layers: int = 0

    def __post_init__(self) -> None:
        require_whole(
            "ModelConfig",
            vocab_size=self.vocab_size,
            width=self.width,
            max_positions=self.max_positions,
        )
        require(len(self.layers) >= 1, "ModelConfig: layers is empty, expected at least 1 layer.")
        rate = self.dropout_rate
        require(
            0.0 <= rate < 1.0,
            f"ModelConfig: dropout_rate is {rate}, expected at least 0 and below 1.",
        )
        require(
            not (self.tied_head and self.head_bias),
            "ModelConfig: a tied head has no bias; set head_bias=False.",
        )
        _require_soft_cap("ModelConfig", logit_soft_cap=self.logit_soft_cap)
        if self.draft_layers != 0:
            require_whole("ModelConfig", draft_layers=self.draft_layers)

    @property
    def num_layers(self) -> int:
        """Number of blocks, L."""
        return len(self.layers)

    @property
    def follows_length(self) -> bool:
        """Whether a text's result depends on its steps, as rotary speeds follow the length."""
        ropes = [layer.attention.rope for layer in self.layers]
        return any(rope is not None and rope.follows_length for rope in ropes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data (dicts, lists, numbers) from which `from_dict` rebuilds this config."""
        return dataclasses.asdict(self) | {
            "layers": [dataclasses.asdict(layer) for layer in self.layers]
        }

    @classmethod
    def _revive(cls, name: str, value: Any) -> Any:
        if name == "layers":
            return tuple(
                Layer.from_dict(layer) if isinstance(layer, dict) else layer for layer in value
            )
        return part_of({"norm": Norm}, name, value)


def _require_soft_cap(owner: str, **caps: float | None) -> None:
    for name, cap in caps.items():
        require(
            cap is None or cap > 0, f"{owner}: {name} is {cap}, expected above 0, or None for off."
        )


def weight_shapes(config: ModelConfig) -> Shapes:
    """Return every weight's canonical name and shape, in the order of the forward pass.

    Matrices are (out, in), as the field's checkpoints hold them; those of experts stand one after
    the other, (Z, out, in). How a twin stores them is its own business. A tied head has no entry:
    it is `embed.weight`.
    """
    d, v = config.width, config.vocab_size
    shapes: Shapes = {"embed.weight": (v, d)}
    if config.learned_positions:
        shapes["position.weight"] = (config.max_positions, d)
    for i, layer in enumerate(config.layers):
        name = f"layers.{i}"
        shapes |= _norm_shapes(f"{name}.attn_norm", config)
        shapes |= _attention_shapes(f"{name}.attn", layer.attention, d)
        shapes |= _norm_shapes(f"{name}.attn_post_norm", config) if layer.post_norms else {}
        shapes |= _norm_shapes(f"{name}.mlp_norm", config)
        shapes |= _mlp_shapes(f"{name}.mlp", layer.mlp, d)
        shapes |= _norm_shapes(f"{name}.mlp_post_norm", config) if layer.post_norms else {}
    shapes |= _norm_shapes("norm", config)
    if not config.tied_head:
        shapes |= _linear("head", v, d, config.head_bias)
    return shapes


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
