"""What a transformers model can be asked, found out by asking it: a few tiny forward passes.

A probe decides which *conventions* a model has (where positions start, who counts them, whether a
prepared mask reaches the attention). Whether it answers rightly is the relations' business, so no
capability that the package promises is taken away because a result is wrong.
Letters: B rows, T tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import hf_cache, hf_facts, hf_masks, hf_variants, torch_capture
from crosscheck.errors import CrosscheckError

NEAR = 1e-3
TOKENS = 9


@dataclass(frozen=True)
class Facts:
    """What was found; see `SubjectInfo` for the fields of the same names."""

    vocab_size: int
    capabilities: frozenset[str]
    absent: Mapping[str, str]
    windows: tuple[int | None, ...]
    max_positions: int | None
    first_id: int
    variants: tuple[str, ...]
    num_layers: int = 0
    kv_heads: int | None = None
    offset: int = 0
    own_positions: bool = False
    placed_masks: bool = False
    gather: str = "reorder_cache"
    pad: int | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Findings:
    """Capabilities with what speaks against the others, while they are collected."""

    has: set[str] = field(default_factory=set)
    absent: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def say(self, names: str, against: str | None) -> None:
        """Declare capabilities, or note why they are not there."""
        for name in names.split():
            if against is None:
                self.has.add(name)
            else:
                self.absent[name] = against


class Probe:
    """Runs a subject that is still without its info on a few fixed tokens."""

    def __init__(self, subject: Any) -> None:
        config = hf_facts.text_config(subject.model)
        rng = np.random.default_rng(0)
        self.subject = subject
        self.caller = subject._call
        self.first = hf_facts.first_id(config)
        self.vocab = int(config.vocab_size)
        self.ids_BT = rng.integers(self.first, self.vocab, (2, TOKENS))

    def full(self, ids_BT: NDArray, **options: Any) -> NDArray:
        """Return uncached logits of one direct call."""
        return self.caller(ids_BT, **options)[0]

    def near(self, left: Callable[[], NDArray], right: NDArray) -> bool:
        """Return whether a call gives nearly these logits; a call that raises does not."""
        try:
            got = left()
        except Exception:
            return False
        return bool(np.abs(got - right).max() <= NEAR * np.abs(right).max())


def probe(subject: Any) -> Facts:
    """Return the facts of a model.

    Raises:
        CrosscheckError: The model can't be run on token ids at all.
    """
    run, found = Probe(subject), Findings()
    config = hf_facts.text_config(subject.model)
    try:
        plain = run.full(run.ids_BT)
    except Exception as error:
        raise CrosscheckError(
            f"adapt: {type(subject.model).__name__} raised on token ids: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:160]}."
        ) from None
    offset, own = _positions(run, found, plain, hf_facts.pad_id(config))
    cache = _cache(run, found)
    _padding(run, found, plain, offset, own)
    found.say("visible", hf_masks.why_not(run, cached="cache" in found.has))
    windows = hf_facts.windows(run.subject.model)
    layers, kv_heads = _kv(found, cache)
    variants = hf_variants.names(subject.model, windows)
    found.say("window", None if "window=N" in variants else "no sliding_window in the config")
    found.say("gqa", None if "gqa_as_mha" in variants else "no key/value weights of fewer heads")
    found.say("capture", None if torch_capture.blocks(subject.model) else "no blocks were found")
    found.say("f64 f32", None)
    return Facts(
        vocab_size=plain.shape[-1],
        capabilities=frozenset(found.has),
        absent=found.absent,
        windows=windows[:layers] if layers else windows,
        max_positions=hf_facts.max_positions(config),
        first_id=run.first,
        variants=variants,
        num_layers=layers,
        kv_heads=kv_heads,
        offset=offset,
        own_positions=own,
        placed_masks=run.caller.placed_masks,
        gather="reorder_cache" if cache is None else hf_cache.gather_verb(cache),
        pad=hf_facts.pad_id(config),
        notes=tuple(found.notes),
    )


def _positions(run: Probe, found: Findings, plain: NDArray, pad: int | None) -> tuple[int, bool]:
    """Return what is added to explicit positions, and whether the model counts its own."""
    if "position_ids" not in run.caller.keywords:
        found.say("positions rope", "its forward takes no position_ids")
        return 0, False
    ones = np.ones_like(run.ids_BT, bool)
    from_0 = np.broadcast_to(np.arange(TOKENS), run.ids_BT.shape)

    def placed(offset: int) -> NDArray:
        run.caller.offset = offset
        return run.full(run.ids_BT, position_BT=from_0, real_BS=ones)

    starts = [0, *([] if pad is None else [pad + 1])]
    offset = next((s for s in starts if run.near(lambda s=s: placed(s), plain)), 0)
    run.caller.offset = offset
    if offset:
        found.notes.append(f"explicit positions start at {offset} (pad_token_id + 1)")
    deaf = run.near(lambda: run.full(run.ids_BT, position_BT=from_0 * 2, real_BS=ones), plain)
    found.say("positions", "position_ids change nothing" if deaf else None)
    against = "position_ids change nothing" if deaf else hf_facts.not_rope(run.subject.model)
    found.say("rope", against)
    if offset == 0 or pad is None:
        return offset, False
    # Such a family counts the ids that are not padding; its own count is what a user relies on.
    ids_BT = np.concatenate([np.full((2, 2), pad), run.ids_BT], 1)
    real_BS = np.concatenate([np.zeros((2, 2), bool), ones], 1)
    own = run.near(lambda: run.full(ids_BT, real_BS=real_BS)[:, 2:], plain)
    if own:
        found.notes.append("it counts positions itself, from which ids are padding")
    return offset, own


def _cache(run: Probe, found: Findings) -> Any:
    """Return a cache that holds tokens; None where there is none."""
    subject = run.subject
    make = subject._make
    try:
        state = subject.init(2, TOKENS + 3)
        _, cache = run.caller(run.ids_BT, cache=state.cache, use_cache=True)
    except Exception as error:
        found.say("cache", f"a cached forward raised {type(error).__name__}: {error}")
        return None
    if cache is None:
        found.say("cache", "its forward returns no cache")
        return None
    if run.caller.cache_keyword not in run.caller.keywords and not hf_cache.reported_length(cache):
        found.say("cache", "its forward names no cache, and fills none that it is given")
        return None
    found.say("cache chunk fork", None)
    fixed = "init's capacity is ignored: the cache grows"
    found.say("capacity", None if hf_cache.has_capacity(make) else fixed)
    found.say("rollback", None if hasattr(cache, "crop") else "the cache has no crop")
    found.say("gather", None if hasattr(cache, "reorder_cache") else "the cache can't reorder rows")
    found.say("persistent", "the cache is changed in place")
    found.notes.append(f"cache: {type(cache).__name__}" + ("" if make else ", made by the model"))
    return cache


def _kv(found: Findings, cache: Any) -> tuple[int, int | None]:
    """Return how many layers hold keys and values, and the heads of the first."""
    try:
        layers = [la for la in hf_cache.kv_layers(cache) if hf_cache.stored(la, "keys") is not None]
    except Exception:
        layers = []
    if not layers or len(layers) != len(hf_cache.kv_layers(cache)):
        found.say("kv kv_write", "the cache keeps no keys and values by layer")
        return 0, None
    found.say("kv", None)
    codes = any(map(hf_cache.is_quantized, layers))
    against = "the cache holds codes" if codes else None
    against = "the cache is a tuple" if isinstance(cache, tuple) else against
    found.say("kv_write", against)
    return len(layers), int(hf_cache.stored(layers[0], "keys").shape[1])


def _padding(run: Probe, found: Findings, plain: NDArray, offset: int, own: bool) -> None:
    if "attention_mask" not in run.caller.keywords:
        found.say("left_pad right_pad count", "its forward takes no attention_mask")
        return
    found.say("left_pad right_pad", None)
    if "cache" not in found.has:
        found.say("count", "it has no cache")
        return
    # transformers promises padding on the left only; padding between real tokens of a row is
    # masked by slot, which windows and slot-wise biases count.
    gap = run.near(lambda: _after_gap(run, own), plain[:, 4:])
    found.say("count", None if gap else "padding between real tokens of a row is not invisible")


def _after_gap(run: Probe, own: bool) -> NDArray:
    """Return the logits of the tokens after two that are not real, which follow four that are."""
    pad = hf_facts.pad_id(hf_facts.text_config(run.subject.model))
    filler = np.full((2, 2), run.first if pad is None else pad)
    head_BT = np.concatenate([run.ids_BT[:, :4], filler], 1)
    real_BS = np.ones((2, TOKENS + 2), bool)
    real_BS[:, 4:6] = False
    position_BT = np.array([[0, 1, 2, 3, 3, 3], [0, 1, 2, 3, 3, 3]])
    at = (lambda p: None) if own else (lambda p: p)
    cache = run.subject.init(2, TOKENS + 3).cache
    known = {"cache": cache, "use_cache": True}
    _, cache = run.caller(head_BT, real_BS=real_BS[:, :6], position_BT=at(position_BT), **known)
    later_BT = np.broadcast_to(np.arange(4, TOKENS), (2, TOKENS - 4))
    known["cache"] = cache
    return run.caller(run.ids_BT[:, 4:], real_BS=real_BS, position_BT=at(later_BT), **known)[0]
