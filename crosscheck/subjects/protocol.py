"""The protocol of a subject: everything is numpy at the boundary, the state is opaque.

Only `info` and `full` are owed; each other method comes with the capability that names it, and a
relation runs only where its capabilities are declared.
Letters: B rows, T tokens of this call, S tokens (slots) held, K key/value heads, H head width, V
vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

from numpy.typing import NDArray

CAPABILITIES: Mapping[str, str] = {
    "cache": "init and step: later tokens reuse the state of earlier ones",
    "chunk": "a step takes more than one token after the first step",
    "capacity": "init's capacity is a fixed room; past it a step raises",
    "persistent": "a state that was stepped on still answers as before",
    "rollback": "rollback(state, length)",
    "gather": "gather(state, rows)",
    "fork": "fork(state): a second state that lives on by itself",
    "grow": "grow(state, capacity)",
    "count": "count= in full and step: how many of the T tokens of each row are real",
    "left_pad": "mask= in full and step, with tokens that are not real before those that are",
    "right_pad": "mask= or count=, with tokens that are not real after those that are",
    "positions": "positions= in full and step",
    "visible": "visible= in full and step: which tokens each token may read",
    "rope": "positions enter by rotation or distance only, so that a common shift changes nothing",
    "window": "a variant 'window=N' (another window with the same weights)",
    "kv": "kv(state, layer)",
    "kv_write": "with_kv(state, layer, kv)",
    "capture": "capture(ids, points)",
    "f64": "cast('float64')",
    "f32": "cast('float32')",
    "batch_invariant": "a row's bits do not depend on its neighbours",
    "paged": "permute_pages(state, seed) and a variant 'page_size=N'",
    "prefix": "prefix_store() -> an object whose step reuses cached prefixes",
    "speculate": "speculate(ids, new, draft, k): greedy ids with drafts and rollback",
    "quant": "quant_bound(): eps of its quantized cache, and a variant 'exact'",
    "quant_invariant": "full is the function of its quantized cache, one for every cut of a text",
    "cross": "encoder= in full and init: cross-attention inputs",
    "gqa": "a variant 'gqa_as_mha' with its kv heads repeated",
    "mla": "a variant 'mla_naive'",
    "layouts": "variants 'layout_*'",
    "jit": "variants 'jit' and 'eager'",
}


@dataclass(frozen=True)
class Documented:
    """A difference that the package documents: the report prints it beside the difference."""

    sentence: str
    source: str


@dataclass(frozen=True)
class SubjectInfo:
    """What the tester may know about a subject.

    Attributes:
        name: For reports.
        framework: "jax", "torch", "numpy", ...
        dtype: Of weights and cache, as numpy names it ("bfloat16" too).
        vocab_size: V; ids are drawn from range(first_id, V).
        num_layers: Attentions that hold a cache; 0 when unknown.
        capabilities: Names from `CAPABILITIES`.
        kv_heads: K, of the first layer; None when unknown.
        windows: Of each layer, None for a layer that sees everything; () when unknown.
        max_positions: The longest text; None without a limit.
        first_id: The smallest id that is an ordinary token (padding ids stand below).
        weights_hash: Of the weights, where the subject can tell.
        notes: Sentences for the report (weights amplified, eager attention chosen, ...).
        absent: capability -> why it is not declared; the report prints it where a relation is
            skipped.
        documented: relation name -> what the package says about a difference there.
        variants: Names that `variant` takes.
        steady: The longest text whose result does not depend on the steps that feed it; None for
            any. Rotary speeds that follow the length of a row set one.
    """

    name: str
    framework: str
    dtype: str
    vocab_size: int
    num_layers: int = 0
    capabilities: frozenset[str] = frozenset()
    kv_heads: int | None = None
    windows: tuple[int | None, ...] = ()
    max_positions: int | None = None
    first_id: int = 0
    weights_hash: str | None = None
    notes: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    documented: Mapping[str, Documented] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    steady: int | None = None


@dataclass(frozen=True)
class KV:
    """One layer's cache as stored: keys as they lie there, values, positions, which are valid."""

    keys_BSKH: NDArray
    values_BSKH: NDArray
    position_BS: NDArray
    valid_BS: NDArray


class Subject(Protocol):
    """A decoder behind numpy arrays. Masks and counts mean the same in every method.

    count: int [B], the first count[b] of the T tokens of row b are real (others are padding).
    mask: bool [B, T], which of this call's tokens are real; what is not real enters no attention,
        no position and no length, whatever its id.
    positions: int [B, T], where the tokens stand, instead of counting the real ones from 0.
    visible: bool [B, T, S], which of the S tokens fed so far (this call's included, in the order
        they were fed) each token may read, instead of the causal rule (and window).
    Logits at tokens that are not real are unspecified.
    """

    @property
    def info(self) -> Any:
        """Return a `SubjectInfo`, or any object with some of its attributes (see `describe`)."""
        ...

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return logits [B, T, V] of whole texts, without any cache.

        Options by capability: count, mask, positions, visible, encoder.
        """
        ...

    def init(self, batch: int, capacity: int | None, **options: Any) -> Any:
        """Return an empty state with room for capacity tokens a row; None: as much as needed."""
        ...

    def step(self, state: Any, ids: NDArray, **options: Any) -> tuple[NDArray, Any]:
        """Return logits [B, T, V] of the next tokens, and the next state.

        The old state may be used again only with "persistent".
        """
        ...

    def length(self, state: Any) -> NDArray:
        """Return int [B]: how many tokens each row holds."""
        ...

    def rollback(self, state: Any, length: NDArray) -> Any:
        """Return the state with only the first length[b] tokens of each row."""
        ...

    def gather(self, state: Any, rows: Sequence[int] | NDArray) -> Any:
        """Return the state whose row i is the old row rows[i]; rows may repeat or be left out."""
        ...

    def fork(self, state: Any) -> Any:
        """Return a second state that lives on by itself."""
        ...

    def kv(self, state: Any, layer: int) -> KV:
        """Return what one layer holds."""
        ...

    def with_kv(self, state: Any, layer: int, kv: KV) -> Any:
        """Return the state with one layer's keys and values replaced."""
        ...

    def capture(self, ids: NDArray, points: Sequence[str] | None = None) -> dict[str, NDArray]:
        """Return intermediate results [B, T, ...] of `full` by name, in the forward's order."""
        ...

    def capture_step(
        self,
        state: Any,
        ids: NDArray,
        points: Sequence[str] | None = None,
        *,
        given: Mapping[str, NDArray] | None = None,
        **options: Any,
    ) -> tuple[dict[str, NDArray], Any]:
        """Return intermediate results [B, T, ...] of a step by name, and the next state.

        Optional beside "capture": it lets `localize` run one operation alone. given: point ->
        [B, T, ...], what the step goes on with from there instead of its own result.
        """
        ...

    def cast(self, dtype: str) -> "Subject":
        """Return the same function in another dtype; "float64" gives the oracle."""
        ...

    def variant(self, name: str) -> "Subject":
        """Return the same function in another form."""
        ...


def window_of(info: SubjectInfo, layer: int) -> int | None:
    """Return the window of a layer of the cache, of a subject that says its windows.

    A decoder in loops holds each of its layers once a loop.
    """
    return info.windows[layer % len(info.windows)]


def steady(info: SubjectInfo) -> SubjectInfo:
    """Return the info of a subject that is fed no text whose result depends on its steps."""
    if info.steady is None:
        return info
    return replace(info, max_positions=min(info.steady, info.max_positions or info.steady))


def describe(subject: Any) -> SubjectInfo:
    """Return the subject's info in full, with defaults for what it leaves unsaid.

    Raises:
        CrosscheckError: A required attribute is missing, or a capability is unknown.
    """
    from crosscheck.errors import CrosscheckError

    info = subject.info
    if not isinstance(info, SubjectInfo):
        known = {
            f.name: getattr(info, f.name) for f in fields(SubjectInfo) if hasattr(info, f.name)
        }
        missing = sorted({"name", "framework", "dtype", "vocab_size"} - known.keys())
        if missing:
            raise CrosscheckError(f"describe: the subject's info lacks {', '.join(missing)}.")
        told = known.get("documented", {})
        known["documented"] = {
            name: each if isinstance(each, Documented) else Documented(*each)
            for name, each in told.items()
        }
        info = SubjectInfo(**known)
    unknown = sorted(info.capabilities - CAPABILITIES.keys())
    if unknown:
        raise CrosscheckError(
            f"describe: capability {unknown[0]!r} of {info.name} is unknown, expected one of "
            f"{', '.join(CAPABILITIES)}."
        )
    return info
