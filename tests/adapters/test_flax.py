"""Flax modules behind the protocol: NNX by its cache variables, Linen by its collection."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from crosscheck.adapters import adapt
from crosscheck.errors import SubjectRaised
from crosscheck.subjects.guard import guarded
from tests.adapters.programs import apart, fed, texts

WIDTH, HEADS, TOKENS = 12, 3, 7


def nnx_attention(**hints):
    module = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=nnx.Rngs(0))
    return adapt(module, embed=True, amplify=0, **hints).cast("float64")


def linen_attention(**hints):
    module = linen.MultiHeadDotProductAttention(HEADS)
    return adapt(module, embed=WIDTH, amplify=0, **hints).cast("float64")


def right_nnx(**hints):
    return nnx_attention(step_options={"is_causal": False}, **hints)


BOTH = pytest.mark.parametrize("make", [right_nnx, linen_attention], ids=["nnx", "linen"])


@BOTH
def test_one_token_at_a_time_equals_one_forward(make):
    subject = make()
    ids = texts(subject, tokens=TOKENS)

    logits, state = fed(subject, ids, [1] * TOKENS)

    assert subject.info.dtype == "float64"
    assert apart(logits, subject.full(ids)) < 1e-12
    assert subject.kv(state, 0).position_BS[0, : TOKENS + 1].tolist() == [*range(TOKENS), -1]


@BOTH
def test_a_module_that_takes_one_token_declares_no_chunk(make):
    info = make().info

    assert "chunk" not in info.capabilities
    assert info.absent["chunk"].startswith("a step takes one token: ValueError")
    assert {"persistent", "capacity", "rollback", "gather", "kv", "kv_write"} <= info.capabilities
    with pytest.raises(SubjectRaised, match="raised ValueError"):
        guarded(make()).step(make().init(2, 8), np.zeros((2, 3), np.int32))


@BOTH
def test_states_stay_usable_and_rows_and_lengths_move(make):
    subject, rows = make(), np.array([1, 0, 1])
    ids = texts(subject, tokens=TOKENS)
    _, state = fed(subject, ids, [1] * 5)

    again = [subject.step(state, ids[:, 5:6])[0] for _ in range(2)]
    back, _ = subject.step(subject.rollback(state, [3, 3]), ids[:, 3:4])
    gathered, _ = subject.step(subject.gather(state, rows), ids[rows, 5:6])

    whole = subject.full(ids)
    assert (again[0] == again[1]).all()
    assert apart(back, whole[:, 3:4]) < 1e-12
    assert apart(gathered, whole[rows, 5:6]) < 1e-12


def test_causality_left_on_while_decoding_is_seen():
    subject = nnx_attention()
    ids = texts(subject, tokens=TOKENS)

    logits, _ = fed(subject, ids, [1] * TOKENS)

    assert apart(logits[:, :1], subject.full(ids)[:, :1]) < 1e-12
    assert apart(logits[:, 1:], subject.full(ids)[:, 1:]) > 0.1


class Table(nnx.Module):
    """Token ids to running sums; no cache."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 11, rngs=rngs)

    def __call__(self, ids):
        return jnp.cumsum(self.embed(ids), axis=1)


def test_a_module_without_a_cache_has_its_forward_only():
    subject = adapt(Table(nnx.Rngs(0)))

    assert subject.info.capabilities == {"f64", "f32"}
    assert subject.full(np.zeros((2, 3), np.int32)).shape == (2, 3, 11)


def test_nudged_weights_are_a_copy():
    subject = adapt(Table(nnx.Rngs(0)))
    ids = np.arange(6).reshape(2, 3)
    before = subject.full(ids)

    moved = subject.nudged(1e-2, 0).full(ids)

    assert (subject.full(ids) == before).all()
    assert 1e-4 < apart(moved, before) < 1e-1
