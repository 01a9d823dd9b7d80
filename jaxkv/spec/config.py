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
from jaxkv.spec.relative import Relative, check_relatives
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
    "Encoder",
    "Experts",
    "Latent",
    "Layer",
    "Llama3Scaling",
    "Mlp",
    "ModelConfig",
    "Norm",
    "Relative",
    "Rope",
    "Routing",
    "YarnScaling",
]


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
    K is 1 and H what a cache keeps of a token; score_width None then means the width of a query. A
    relative bias is added to the scores. Not causal means that later tokens are seen too.
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
    relative: Relative | None = None
    causal: bool = True

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
        parts = {"rope": Rope, "qk_norm": Norm, "latent": Latent, "relative": Relative}
        return part_of(parts, name, value)


@dataclass(frozen=True)
class Layer(Part):
    """One block: x + attention(norm x), then x + mlp(norm x).

    Parallel: x + attention(norm x) + mlp(other norm of the same x). With post_norms, what attention
    and mlp give is normed before it is added. With norm_after, each norm stands behind the sum
    instead of before the sub-layer: norm(x + attention(x)). Cross is a second attention between the
    two, whose keys and values are the encoder's.
    """

    attention: Attention
    mlp: Mlp | Experts
    parallel: bool = False
    post_norms: bool = False
    norm_after: bool = False
    cross: Attention | None = None

    def __post_init__(self) -> None:
        alone = not (self.parallel or self.post_norms)
        require(
            alone or not self.norm_after,
            "Layer: norm_after is for layers that are neither parallel nor have post_norms.",
        )
        require(
            alone or self.cross is None,
            "Layer: cross is for layers that are neither parallel nor have post_norms.",
        )
        if self.cross is not None:
            _check_cross(self.cross)

    @classmethod
    def _revive(cls, name: str, value: Any) -> Any:
        if name == "mlp" and isinstance(value, dict) and "num_experts" in value:
            return Experts.from_dict(value)
        parts = {"attention": Attention, "cross": Attention, "mlp": Mlp}
        return part_of(parts, name, value)


@dataclass(frozen=True)
class Encoder(Part):
    """What reads the text that a decoder attends to: layers in which every token sees all.

    Embedding, norms and learned positions are of the kinds that the decoder has; the table of
    tokens is the same one.

    Attributes:
        layers: Without a cross attention.
        max_positions: Of the text read.
        start_ids: What a decoder's text starts with where the caller gives none.
    """

    layers: tuple[Layer, ...]
    max_positions: int
    start_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        require_whole("Encoder", max_positions=self.max_positions)
        require(len(self.layers) >= 1, "Encoder: layers is empty, expected at least 1 layer.")
        for i, layer in enumerate(self.layers):
            require(
                layer.cross is None and not layer.attention.causal,
                f"Encoder: layers[{i}] is causal or has a cross attention, expected neither.",
            )
        check_relatives("Encoder", [layer.attention for layer in self.layers])

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return len(self.layers)

    @classmethod
    def _revive(cls, name: str, value: Any) -> Any:
        return (
            _layers_of(value)
            if name == "layers"
            else tuple(value)
            if name == "start_ids"
            else value
        )


@dataclass(frozen=True)
class ModelConfig(Part):
    """A causal decoder, part by part; layers may differ in their attention and feed-forward.

    With scaled_embedding, what the embedding gives is multiplied by D^(1/2), rounded to the model's
    dtype; with embed_norm, it is normed after the positions are added. A token's row in the table
    of learned positions is its position plus position_offset. With scaled_head, what enters the
    head is multiplied by D^(-1/2). With a logit_soft_cap c, logits are c * tanh(logit / c).
    draft_layers says how many more layers a checkpoint may hold to predict further tokens; they are
    no part of this decoder but with has_mtp, which makes the one of them a module to draft with.
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
    embed_norm: bool = False
    position_offset: int = 0
    final_norm: bool = True
    scaled_head: bool = False
    encoder: Encoder | None = None
    has_mtp: bool = False

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
        _require_soft_cap("ModelConfig", logit_soft_cap=self.logit_soft_cap)
        if self.draft_layers != 0:
            require_whole("ModelConfig", draft_layers=self.draft_layers)
        require(
            self.draft_layers == 1 or not self.has_mtp,
            f"ModelConfig: has_mtp is True, draft_layers {self.draft_layers}, expected 1: the "
            "module that predicts one token further is one layer.",
        )
        _check_stacks(self)

    @property
    def num_layers(self) -> int:
        """Number of blocks, L."""
        return len(self.layers)

    @property
    def self_sites(self) -> tuple[int, ...]:
        """The number of each layer's own attention among a cache's sites, one per attention."""
        apart = 1 if self.encoder is None else 2
        return tuple(range(0, apart * self.num_layers, apart))

    @property
    def num_sites(self) -> int:
        """Number of attentions: a layer's own, and its cross attention."""
        return self.num_layers * (1 if self.encoder is None else 2)

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
            return _layers_of(value)
        return part_of({"norm": Norm, "encoder": Encoder}, name, value)


def _layers_of(values: Any) -> tuple[Layer, ...]:
    return tuple(Layer.from_dict(layer) if isinstance(layer, dict) else layer for layer in values)


def _check_cross(cross: Attention) -> None:
    for name in ("window", "rope", "qk_norm", "relative"):
        require(getattr(cross, name) is None, f"Layer: cross has a {name}, expected None.")
    require(not cross.causal, "Layer: cross is causal, expected causal=False.")


def _check_stacks(config: ModelConfig) -> None:
    for i, layer in enumerate(config.layers):
        require(layer.attention.causal, f"ModelConfig: layers[{i}].attention is not causal.")
        require(
            (layer.cross is None) == (config.encoder is None),
            f"ModelConfig: layers[{i}] has {'no ' if layer.cross is None else 'a '}cross "
            f"attention, the config {'no' if config.encoder is None else 'an'} encoder. "
            "Give all layers one and the config an encoder, or neither.",
        )
    check_relatives("ModelConfig", [layer.attention for layer in config.layers])
    require(
        isinstance(config.position_offset, int) and config.position_offset >= 0,
        f"ModelConfig: position_offset is {config.position_offset!r}, expected at least 0.",
    )
    for id_ in config.encoder.start_ids if config.encoder else ():
        require(
            0 <= id_ < config.vocab_size,
            f"ModelConfig: encoder.start_ids holds {id_}, expected 0 to {config.vocab_size - 1}.",
        )


def _require_soft_cap(owner: str, **caps: float | None) -> None:
    for name, cap in caps.items():
        require(
            cap is None or cap > 0, f"{owner}: {name} is {cap}, expected above 0, or None for off."
        )
