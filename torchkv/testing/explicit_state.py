"""The state behind given positions and visibility: what each row holds, and one step on it.

Buffers are the framework's, bookkeeping is numpy's. No state is changed by a step.

Letters: B rows, T new tokens, M = B*T, S slots, K key/value heads, H head width, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor as Array

from jaxkv.spec.errors import RequestError, RollbackError
from torchkv import caches
from torchkv.caches import Cache, Source
from torchkv.caches.cross import CrossSite, gather_site
from torchkv.model import Decoder
from torchkv.testing.explicit import ExplicitSite
from torchkv.testing.explicit_codes import Form, as_read, form_for
from torchkv.testing.plan import Plan

Forward = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class ExplicitState:
    """What each row holds: its token number p stands in slot p, at whatever position it was given.

    Attributes:
        length_B: int32, tokens held.
        position_BS: int32, the position of the token in each slot.
        keys: Of each layer, [B, S, K, H].
        values: Of each layer.
        held: Of each layer, [B, S]: which slots hold what they once held; a ring has evicted some.
        source: Of each layer, what its cross attention reads; none without an encoder.
        forms: Of each layer, what of it is read from codes; None for nothing.
    """

    length_B: np.ndarray
    position_BS: np.ndarray
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    held: tuple[np.ndarray, ...]
    source: Source
    forms: tuple[Form | None, ...]

    @property
    def capacity(self) -> int:
        """Tokens that a row can hold."""
        return self.position_BS.shape[1]


def empty(
    model: Decoder, *, batch: int, capacity: int, form: Form | None, source: Source = ()
) -> ExplicitState:
    """Return a state without tokens, beside what an encoder has left of its rows' texts.

    Args:
        model: Whose sizes.
        batch: Rows.
        capacity: Tokens that a row can hold.
        form: What layers without a window read from codes.
        source: From the encoder.
    """
    attentions = [layer.attention for layer in model.config.layers]
    heads = [(a.num_kv_heads, a.head_dim) for a in attentions]
    latents = [(1, a.latent.rank) if a.latent else None for a in attentions]
    values_of = [latent or plain for latent, plain in zip(latents, heads, strict=True)]
    keys, values = (
        tuple(model.embed.new_zeros(batch, capacity, *each) for each in shapes)
        for shapes in (heads, values_of)
    )
    position_BS = np.tile(np.arange(capacity, dtype=np.int32), (batch, 1))
    held = tuple(np.zeros((batch, capacity), np.bool_) for _ in heads)
    length_B, forms = np.zeros(batch, np.int32), tuple(form_for(a, form) for a in attentions)
    return ExplicitState(length_B, position_BS, keys, values, held, source, forms)


def from_cache(cache: Cache, model: Decoder, *, form: Form | None) -> ExplicitState:
    """Return the state of a cache of any layout."""
    length_B = to_numpy(cache.length_B)
    source = tuple(site for site in cache.sites if isinstance(site, CrossSite))
    state = empty(model, batch=len(length_B), capacity=cache.capacity, source=source, form=form)
    layers = [
        _by_token(caches.read(cache, i), capacity=cache.capacity) for i in model.config.self_sites
    ]
    keys, values, held = zip(*layers, strict=True)
    return dataclasses.replace(state, length_B=length_B, keys=keys, values=values, held=held)


def advance(
    state: ExplicitState, plan: Plan, model: Decoder, *, forward: Forward
) -> tuple[np.ndarray, ExplicitState]:
    """Return logits [B, T, V] of a planned step, and the next state.

    Args:
        state: Earlier tokens.
        plan: Where the new ones are written and stand, and what they read.
        model: For its positions.
        forward: The model's, on (ids [M, 1], cache, count [M]).
    """
    device = model.embed.device
    windows = [layer.attention.window for layer in model.config.layers]
    slot_BT = torch.tensor(plan.slot_BT, device=device)
    position_BS = torch.tensor(plan.position_BS, device=device)
    own = tuple(
        ExplicitSite(
            keys,
            values,
            slot_BT,
            torch.tensor(plan.seen(held, window=window), device=device),
            position_BS,
            form,
        )
        for keys, values, held, window, form in zip(
            state.keys, state.values, state.held, windows, state.forms, strict=True
        )
    )
    # A row's tokens, one after the other, share its source.
    pairs = zip(own, state.source, strict=True) if state.source else ((site,) for site in own)
    sites = tuple(site for pair in pairs for site in pair)
    position_M = torch.tensor(plan.position_BT.reshape(-1), device=device)
    cache = Cache(
        length_B=position_M,
        peak_B=torch.zeros_like(position_M),
        overflow_B=torch.zeros_like(position_M),
        shared=None,
        sites=sites,
        capacity=model.config.max_positions,
    )
    count_M = torch.tensor(plan.real_BT.reshape(-1).astype(np.int32), device=device)
    ids_M1 = torch.tensor(plan.ids_BT.reshape(-1, 1), device=device)
    logits_M1V, after = forward(ids_M1, cache, count_M)
    caches.check(after)
    return to_numpy(logits_M1V).reshape(*plan.ids_BT.shape, -1), ExplicitState(
        length_B=plan.length_B,
        position_BS=plan.position_BS,
        keys=tuple(after.sites[i].k_BSKH for i in model.config.self_sites),
        values=tuple(after.sites[i].v_BSKH for i in model.config.self_sites),
        held=tuple(held | plan.written_BS for held in state.held),
        source=state.source,
        forms=state.forms,
    )


def read(state: ExplicitState, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return one layer's keys, values, the position of each slot, and which slots are valid.

    Raises:
        RequestError: There is no such layer.
    """
    if not 0 <= layer < len(state.keys):
        raise RequestError(f"read: layer is {layer}, expected 0 to {len(state.keys) - 1}.")
    form, stored = state.forms[layer], (state.keys[layer], state.values[layer])
    if form is not None:
        stored = as_read(*stored, torch.tensor(state.length_B, device=stored[0].device), form)
    return to_numpy(stored[0]), to_numpy(stored[1]), state.position_BS, _valid(state, layer)


def write(
    state: ExplicitState, layer: int, k_BSKH: np.ndarray, v_BSKH: np.ndarray
) -> ExplicitState:
    """Return the state with one layer's keys and values replaced."""
    like = state.keys[layer]
    keys, values = [*state.keys], [*state.values]
    for arrays, new in ((keys, k_BSKH), (values, v_BSKH)):
        arrays[layer] = torch.tensor(new, dtype=like.dtype, device=like.device)
    return dataclasses.replace(state, keys=tuple(keys), values=tuple(values))


def rollback(state: ExplicitState, length: np.ndarray) -> ExplicitState:
    """Return the state with only the first length[b] tokens of each row.

    Raises:
        RollbackError: A length is negative or above the row's.
    """
    length_B = np.asarray(length, np.int32)
    for row, (wanted, have) in enumerate(zip(length_B, state.length_B, strict=True)):
        if not 0 <= wanted <= have:
            raise RollbackError(
                f"rollback: length[{row}] is {wanted}, expected 0 to {have}, what the row holds."
            )
    return dataclasses.replace(state, length_B=length_B)


def gather(state: ExplicitState, rows: np.ndarray) -> ExplicitState:
    """Return the state of the named rows.

    Raises:
        RequestError: A row is out of range.
    """
    rows_B, batch = np.asarray(rows, np.int32), len(state.length_B)
    if rows_B.size and not (rows_B.min() >= 0 and rows_B.max() < batch):
        raise RequestError(f"gather: rows are {rows_B.tolist()}, expected 0 to {batch - 1}.")
    return ExplicitState(
        state.length_B[rows_B],
        state.position_BS[rows_B],
        tuple(x[rows_B.tolist()] for x in state.keys),
        tuple(x[rows_B.tolist()] for x in state.values),
        tuple(x[rows_B] for x in state.held),
        tuple(
            gather_site(x, torch.tensor(rows_B, device=x.source_length_U.device), batch=batch)
            for x in state.source
        ),
        state.forms,
    )


def grow(state: ExplicitState, capacity: int) -> ExplicitState:
    """Return the state with room for more tokens."""
    more = capacity - state.capacity
    position_BS = np.tile(np.arange(capacity, dtype=np.int32), (len(state.length_B), 1))
    position_BS[:, : state.capacity] = state.position_BS
    return ExplicitState(
        state.length_B,
        position_BS,
        tuple(F.pad(x, (0, 0, 0, 0, 0, more)) for x in state.keys),
        tuple(F.pad(x, (0, 0, 0, 0, 0, more)) for x in state.values),
        tuple(np.pad(x, ((0, 0), (0, more))) for x in state.held),
        state.source,
        state.forms,
    )


def poison(state: ExplicitState) -> ExplicitState:
    """Return the state with NaN in every slot that holds no token."""
    keys, values = (
        tuple(
            x.masked_fill(
                torch.tensor(~_valid(state, i), device=x.device)[..., None, None], torch.nan
            )
            for i, x in enumerate(arrays)
        )
        for arrays in (state.keys, state.values)
    )
    return dataclasses.replace(state, keys=keys, values=values)


def _valid(state: ExplicitState, layer: int) -> np.ndarray:
    return state.held[layer] & (np.arange(state.capacity) < state.length_B[:, None])


def _by_token(
    stored: tuple[Array, Array, Array, Array], *, capacity: int
) -> tuple[Array, Array, np.ndarray]:
    k_BSKH, v_BSKH, position_BS, valid_BS = stored
    row_P, slot_P = valid_BS.nonzero(as_tuple=True)
    at = row_P, position_BS[row_P, slot_P].long()
    held_BS = valid_BS.new_zeros(len(k_BSKH), capacity)
    held_BS[at] = True
    moved = []
    for x_BSKH in (k_BSKH, v_BSKH):
        by_token = x_BSKH.new_zeros(len(x_BSKH), capacity, *x_BSKH.shape[2:])
        by_token[at] = x_BSKH[row_P, slot_P]
        moved.append(by_token)
    return moved[0], moved[1], to_numpy(held_BS)


def to_numpy(x: Array) -> np.ndarray:
    """Return a copy on the host; caches are written in place."""
    # numpy has no bfloat16; float32 holds it exactly.
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy().copy()
