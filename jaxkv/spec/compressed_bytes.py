"""Bytes of the layouts that keep less than every number: codes, scales, residual, sinks and rings.

Payload and total are told apart: 2 bits against 32 are 16 times less payload, but scales, zero
points and a residual in full precision stay.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from jaxkv.spec.compression import Groups, PerToken, Sinks, quantization, refuse_latent
from jaxkv.spec.config import Attention, ModelConfig

COMPRESSED = ("quantized", "sinks", "sinks_absolute")


@dataclass(frozen=True)
class Parts:
    """Where a cache's bytes go.

    Attributes:
        code_bytes: Codes.
        scale_bytes: Scales and zero points.
        exact_bytes: Keys and values as they are: a residual, sinks and recent tokens, or the ring
            of a layer with a window.
        coded_bytes: What the numbers with codes would take as they are.
    """

    code_bytes: int = 0
    scale_bytes: int = 0
    exact_bytes: int = 0
    coded_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All that is stored."""
        return self.code_bytes + self.scale_bytes + self.exact_bytes

    def __add__(self, other: "Parts") -> "Parts":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Parts(*(mine + theirs for mine, theirs in pairs))


def compressed_parts(
    config: ModelConfig,
    *,
    batch: int,
    tokens: int,
    itemsize: int,
    layout: str,
    slack: int = 0,
    options: Mapping[str, Any] | None = None,
) -> Parts:
    """Return the bytes of a model's keys and values in a compressed layout, to the byte.

    Args:
        config: The model's sizes; a layer with a window keeps its ring.
        batch: Rows.
        tokens: The capacity of each row.
        itemsize: Bytes of a number as it is, of a scale and of a zero point.
        layout: One of `COMPRESSED`.
        slack: Tokens that can be rolled back.
        options: As `caches.init` takes them.

    Raises:
        RequestError: An option is out of range.
        Unsupported: An attention is to latents.
    """
    total, given = Parts(), options or {}
    for layer in config.layers:
        refuse_latent(layer.attention, layout)
        width = layer.attention.head_dim
        form = quantization(width=width, **given) if layout == "quantized" else Sinks(**given)
        total += _layer(layer.attention, form, batch, tokens, itemsize, slack)
    return total


def _layer(
    a: Attention,
    form: Groups | PerToken | Sinks,
    batch: int,
    tokens: int,
    itemsize: int,
    slack: int,
) -> Parts:
    heads, width = batch * a.num_kv_heads, a.head_dim

    def exact(slots: int) -> int:
        return 2 * heads * width * slots * itemsize

    if a.window is not None:
        return Parts(exact_bytes=exact(min(a.window + slack, tokens)))
    if isinstance(form, Sinks):
        return Parts(exact_bytes=exact(min(form.sinks + form.window + slack, tokens)))
    if isinstance(form, PerToken):
        codes = 2 * heads * width * tokens
        return Parts(codes, 2 * heads * tokens * itemsize, 0, exact(tokens))
    form.check_width(width)
    slots = -(-tokens // form.residual_length) * form.residual_length
    numbers = heads * width * slots
    return Parts(
        code_bytes=2 * numbers // form.codes_a_byte,
        scale_bytes=2 * 2 * (numbers // form.group_size) * itemsize,
        exact_bytes=exact(form.residual_length + slack),
        coded_bytes=exact(slots),
    )
