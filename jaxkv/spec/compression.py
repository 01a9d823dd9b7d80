"""What of keys and values a compressed layout keeps, as checked numbers: the options of `init`.

Letters: H head width.
"""

from dataclasses import dataclass
from typing import Any, Literal

from jaxkv.spec.config import Attention
from jaxkv.spec.errors import RequestError, Unsupported

Order = Literal["chunk_invariant", "kivi"]
ORDERS: tuple[Order, ...] = ("chunk_invariant", "kivi")
QUANTIZED_OPTIONS = ("bits", "group_size", "residual_length", "order")
SINK_OPTIONS = ("sinks", "window")
BITS = (2, 4, 8, "fp8")
# Numbers of a group, and tokens as they are, where nothing is said.
LARGEST = 32


@dataclass(frozen=True)
class Groups:
    """KIVI's scheme: codes of `bits` bits with a scale and a zero point a group.

    Attributes:
        bits: 2 or 4.
        group_size: Tokens of a key channel, or channels of a token's values, that share a scale.
        residual_length: How many of the last tokens stay as they are.
        order: "chunk_invariant": a query reads what is stored once its own token is; "kivi": it
            reads what was stored before its step, and the step's own tokens as they are.
    """

    bits: int
    group_size: int
    residual_length: int
    order: Order = "chunk_invariant"

    def __post_init__(self) -> None:
        _require_whole("group_size", self.group_size, "Use 32.")
        _require_whole(
            "residual_length",
            self.residual_length,
            "Use 32, or bits=8, which keeps no residual.",
        )
        if self.group_size % self.codes_a_byte:
            raise RequestError(
                f"init: group_size is {self.group_size}, expected a multiple of "
                f"{self.codes_a_byte}, the codes of {self.bits} bits in a byte. Use "
                f"{_up(self.group_size, self.codes_a_byte)}."
            )
        if self.residual_length % self.group_size:
            raise RequestError(
                f"init: residual_length is {self.residual_length}, expected a multiple of "
                f"group_size {self.group_size}: whole groups leave it. Use "
                f"{_up(self.residual_length, self.group_size)}."
            )
        if self.order not in ORDERS:
            raise RequestError(
                f"init: order is {self.order!r}, expected one of {', '.join(ORDERS)}. "
                f"Use {ORDERS[0]!r}."
            )

    @property
    def codes_a_byte(self) -> int:
        """How many codes share a byte."""
        return 8 // self.bits

    def check_width(self, width: int) -> None:
        """Refuse a head that is no whole number of groups.

        Raises:
            RequestError: H is no multiple of the group size.
        """
        if width % self.group_size:
            fitting = [
                size
                for size in range(self.codes_a_byte, width + 1, self.codes_a_byte)
                if width % size == 0
            ]
            advice = (
                f"Use group_size={fitting[-1]}."
                if fitting
                else f"No group of whole bytes divides it with bits={self.bits}. Use bits=8."
            )
            raise RequestError(
                f"init: group_size is {self.group_size}, expected a divisor of the head width "
                f"{width}. {advice}"
            )


@dataclass(frozen=True)
class PerToken:
    """One code of 8 bits a number and one scale a token and head, without a zero point.

    Attributes:
        kind: "int8" or "fp8" (4 bits of exponent, 3 of mantissa, no infinity).
    """

    kind: Literal["int8", "fp8"]


@dataclass(frozen=True)
class Sinks:
    """Which tokens StreamingLLM keeps.

    Attributes:
        sinks: The first tokens of the text, kept for good.
        window: The last ones, the query's own among them.
    """

    sinks: int = 4
    window: int = 1020

    def __post_init__(self) -> None:
        if self.sinks == 0:
            raise RequestError(
                "init: sinks is 0, expected at least 1. Without sinks there is no such layout: "
                "use 4."
            )
        _require_whole("sinks", self.sinks, "Use 4.")
        _require_whole("window", self.window, "Use 1020.")

    def check_room(self, capacity: int) -> None:
        """Refuse sinks that leave no room for a recent token.

        Raises:
            RequestError: They do not.
        """
        if self.sinks >= capacity:
            raise RequestError(
                f"init: sinks is {self.sinks}, expected at most {capacity - 1} (capacity "
                f"{capacity} with room for one recent token). Raise capacity or lower sinks."
            )


def quantization(*, width: int, bits: int | str = 4, **options: Any) -> Groups | PerToken:
    """Return the checked scheme of a quantized cache.

    Groups are by default the largest of at most 32 that divide the head, and the residual 32 tokens
    or as many more as make whole groups.

    Args:
        width: Of a head.
        bits: 2 or 4 (groups with scale and zero point), 8 (int8) or "fp8" (a scale a token).
        **options: `group_size`, `residual_length` and `order`, of the schemes with groups.

    Raises:
        RequestError: There are no such bits, or an option does not go with them.
    """
    if isinstance(bits, bool) or bits not in BITS:
        offered = ", ".join(map(str, BITS))
        raise RequestError(f"init: bits is {bits!r}, expected one of {offered}. Use 8.")
    if bits in (8, "fp8"):
        for name, value in options.items():
            raise RequestError(
                f"init: {name} is {value!r}, but bits is {bits!r}, whose tokens are quantized one "
                "by one as they come. Leave it out, or use bits=4."
            )
        return PerToken("int8" if bits == 8 else "fp8")
    each = 8 // int(bits)
    fitting = [size for size in range(each, LARGEST + 1, each) if width % size == 0]
    size = options.pop("group_size", max(fitting, default=LARGEST))
    residual = options.pop("residual_length", None)
    if residual is None:
        # What is no number is refused by its own name.
        residual = _up(LARGEST, size) if isinstance(size, int) and size > 0 else LARGEST
    return Groups(int(bits), size, residual, **options)


def refuse_latent(attention: Attention, layout: str) -> None:
    """Refuse an attention to latents, whose one key a token holds its values.

    Raises:
        Unsupported: It is one.
    """
    if attention.latent is not None:
        raise Unsupported(
            f"init: layout {layout!r} keeps the keys and values of heads, but the attention is to "
            "latents, which are neither. Use layout='contiguous' or 'paged'."
        )


def _require_whole(name: str, value: Any, advice: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(
            f"init: {name} is {value!r}, expected a whole number of at least 1. {advice}"
        )


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
