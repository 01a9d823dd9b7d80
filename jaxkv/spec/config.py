"""A decoder described once, as data: frozen when constructed, complete, unknown keys refused.

Letters of the sizes: D width, N query heads, K key/value heads, H head width, F feed-forward width,
V vocabulary, W window.
"""

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from jaxkv.spec.errors import ConfigError

P = TypeVar("P", bound="_Part")
Activation = Literal["silu", "gelu", "gelu_tanh"]


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


def _whole(owner: str, **values: int) -> None:
    for name, value in values.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(
            whole and value >= 1,
            f"{owner}: {name} is {value!r}, expected a whole number of at least 1.",
        )


def check_keys(owner: str, given: set[str], known: set[str]) -> None:
    """Refuse keys that nobody reads.

    Raises:
        ConfigError: A key is unknown (the nearest known name is offered).
    """
    for key in sorted(given - known):
        near = difflib.get_close_matches(key, sorted(known), n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(known))}."
        raise ConfigError(f"{owner}: unknown key {key!r}. {hint}")


class _Part:
    """Construction from plain data, shared by all parts of a config."""

    @classmethod
    def from_dict(cls: type[P], data: dict[str, Any]) -> P:
        """Return the part that plain data (as of `dataclasses.asdict`) describes.

        Raises:
            ConfigError: A key is unknown or missing, or a value is out of range.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType] every part is a dataclass
        check_keys(cls.__name__, set(data), set(fields))
        for name, field in fields.items():
            if name not in data and field.default is dataclasses.MISSING:
                raise ConfigError(f"{cls.__name__}: key {name!r} is missing. Add it.")
        return cls(**{name: _revive(name, value) for name, value in data.items()})


@dataclass(frozen=True)
class Llama3Scaling(_Part):
    """Slower rotary pairs, as Llama 3.1 stretches a context.

    A pair that turns at least high_freq_factor times within the original positions keeps its speed,
    one that turns at most low_freq_factor times gets 1 / factor of it, and between the two it is
    blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int

    def __post_init__(self) -> None:
        _whole("Llama3Scaling", original_max_positions=self.original_max_positions)
        low, high = self.low_freq_factor, self.high_freq_factor
        _require(self.factor >= 1, f"Llama3Scaling: factor is {self.factor}, expected at least 1.")
        _require(
            0 < low < high,
            f"Llama3Scaling: low_freq_factor is {low}, expected above 0 and below "
            f"high_freq_factor {high}.",
        )


@dataclass(frozen=True)
class Rope(_Part):
    """Rotary positions: the first 2R channels turn in pairs (i, i + R).

    A pair turns by position * theta^(-i/R), more slowly with a scaling.
    """

    theta: float
    rotary_dim: int
    scaling: Llama3Scaling | None = None

    def __post_init__(self) -> None:
        _whole("Rope", rotary_dim=self.rotary_dim)
        _require(self.theta > 0, f"Rope: theta is {self.theta}, expected above 0.")
        _require(
            self.rotary_dim % 2 == 0,
            f"Rope: rotary_dim {self.rotary_dim} must be even, channels turn in pairs.",
        )


@dataclass(frozen=True)
class Attention(_Part):
    """One attention: N query heads share K key/value heads of width H.

    Window None means all earlier tokens.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    rope: Rope | None
    qkv_bias: bool
    out_bias: bool
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        n, k = self.num_heads, self.num_kv_heads
        _whole("Attention", num_heads=n, num_kv_heads=k, head_dim=self.head_dim)
        _require(n % k == 0, f"Attention: num_heads {n} must be a multiple of num_kv_heads {k}.")
        if self.window is not None:
            _whole("Attention", window=self.window)
        if self.rope is not None:
            r, h = self.rope.rotary_dim, self.head_dim
            _require(r <= h, f"Attention: rope.rotary_dim {r} exceeds head_dim {h}.")
        if self.soft_cap is not None:
            _require(
                self.soft_cap > 0,
                f"Attention: soft_cap is {self.soft_cap}, expected above 0, or None for off.",
            )

    @property
    def groups(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Mlp(_Part):
    """One feed-forward: down(act(up x)), or down(act(gate x) * up x) when gated.

    "gelu" is the exact one, "gelu_tanh" its approximation by a tanh (GPT-2's).
    """

    width: int
    activation: Activation
    gated: bool
    bias: bool

    def __post_init__(self) -> None:
        _whole("Mlp", width=self.width)
        known = ("silu", "gelu", "gelu_tanh")
        _require(
            self.activation in known,
            f"Mlp: activation is {self.activation!r}, expected one of {known}.",
        )


@dataclass(frozen=True)
class Layer(_Part):
    """One pre-norm block: x + attention(norm x), then x + mlp(norm x)."""

    attention: Attention
    mlp: Mlp


@dataclass(frozen=True)
class Norm(_Part):
    """Which norm, and its epsilon; the layer norm has a bias, the root-mean-square norm none."""

    kind: Literal["rms", "layer"]
    eps: float

    def __post_init__(self) -> None:
        _require(
            self.kind in ("rms", "layer"),
            f"Norm: kind is {self.kind!r}, expected 'rms' or 'layer'.",
        )
        _require(self.eps > 0, f"Norm: eps is {self.eps}, expected above 0.")


@dataclass(frozen=True)
class ModelConfig(_Part):
    """A causal decoder, part by part; layers may differ in their attention and feed-forward."""

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

    def __post_init__(self) -> None:
        _whole(
            "ModelConfig",
            vocab_size=self.vocab_size,
            width=self.width,
            max_positions=self.max_positions,
        )
        _require(len(self.layers) >= 1, "ModelConfig: layers is empty, expected at least 1 layer.")
        rate = self.dropout_rate
        _require(
            0.0 <= rate < 1.0,
            f"ModelConfig: dropout_rate is {rate}, expected at least 0 and below 1.",
        )
        _require(
            not (self.tied_head and self.head_bias),
            "ModelConfig: a tied head has no bias; set head_bias=False.",
        )

    @property
    def num_layers(self) -> int:
        """Number of blocks, L."""
        return len(self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data (dicts, lists, numbers) from which `from_dict` rebuilds this config."""
        return dataclasses.asdict(self) | {
            "layers": [dataclasses.asdict(layer) for layer in self.layers]
        }


_PARTS: dict[str, type[_Part]] = {
    "attention": Attention,
    "mlp": Mlp,
    "norm": Norm,
    "rope": Rope,
    "scaling": Llama3Scaling,
}


def _revive(name: str, value: Any) -> Any:
    if name in _PARTS and isinstance(value, dict):
        return _PARTS[name].from_dict(value)
    if name == "layers":
        return tuple(
            Layer.from_dict(layer) if isinstance(layer, dict) else layer for layer in value
        )
    return value


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return every weight's canonical name and shape, in the order of the forward pass.

    Matrices are (out, in), as the field's checkpoints hold them; how a twin stores them is its own
    business. A tied head has no entry: it is `embed.weight`.
    """
    d, v = config.width, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (v, d)}
    if config.learned_positions:
        shapes["position.weight"] = (config.max_positions, d)
    for i, layer in enumerate(config.layers):
        shapes |= _norm_shapes(f"layers.{i}.attn_norm", config)
        shapes |= _attention_shapes(f"layers.{i}.attn", layer.attention, d)
        shapes |= _norm_shapes(f"layers.{i}.mlp_norm", config)
        shapes |= _mlp_shapes(f"layers.{i}.mlp", layer.mlp, d)
    shapes |= _norm_shapes("norm", config)
    if not config.tied_head:
        shapes |= _linear("head", v, d, config.head_bias)
    return shapes


def _linear(name: str, out_width: int, in_width: int, bias: bool) -> dict[str, tuple[int, ...]]:
    weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (out_width, in_width)}
    return weight | ({f"{name}.bias": (out_width,)} if bias else {})


def _norm_shapes(name: str, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    gain: dict[str, tuple[int, ...]] = {f"{name}.weight": (config.width,)}
    return gain | ({f"{name}.bias": (config.width,)} if config.norm.kind == "layer" else {})


def _attention_shapes(name: str, a: Attention, d: int) -> dict[str, tuple[int, ...]]:
    q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    shapes = _linear(f"{name}.q", q, d, a.qkv_bias) | _linear(f"{name}.k", kv, d, a.qkv_bias)
    return shapes | _linear(f"{name}.v", kv, d, a.qkv_bias) | _linear(f"{name}.o", d, q, a.out_bias)


def _mlp_shapes(name: str, m: Mlp, d: int) -> dict[str, tuple[int, ...]]:
    gate = _linear(f"{name}.gate", m.width, d, m.bias) if m.gated else {}
    return (
        gate
        | _linear(f"{name}.up", m.width, d, m.bias)
        | _linear(f"{name}.down", d, m.width, m.bias)
    )
