"""What a cache owes beside an encoder: its result is stored once, whatever the decoder does.

On the tiny subjects t5 and bart in float64, whose weights are random.
"""

import importlib
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from crosscheck import assert_agree, semantic
from jaxkv.spec.errors import CapacityError, RequestError, ShapeError, SourceError, Unsupported
from jaxkv.spec.identity import Identity
from jaxkv.spec.memory import (
    bookkeeping_bytes,
    model_cache_bytes,
    page_table_bytes,
    source_bytes,
)
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny_families import tiny_family
from tests.tiny import TWINS, Cell, new_subject

CELLS = [Cell(twin, name, "contiguous") for twin in TWINS for name in ("t5", "bart")]
cells = pytest.mark.parametrize("cell", CELLS, ids=str)
IDS = np.random.default_rng(0).integers(0, 97, (4, 9))
EXACT = semantic(rtol=1e-10)


@cache
def subject_of(cell: Cell) -> Any:
    config = tiny_family(cell.model)
    from_arrays = importlib.import_module(f"{cell.twin}.weights").from_arrays
    return new_subject(from_arrays(config, random_arrays(config, 7), dtype="float64"), cell)


def verbs_of(cell: Cell) -> Any:
    return importlib.import_module(f"{cell.twin}.caches")


def ints(cell: Cell, values: Any) -> Any:
    """Return an int32 array of the twin."""
    if cell.twin == "jaxkv":
        return importlib.import_module("jax.numpy").asarray(values, "int32")
    torch = importlib.import_module("torch")
    return torch.tensor(np.asarray(values), dtype=torch.int32)


def source_of(cell: Cell, encoder: np.ndarray) -> Any:
    """Return what the encoder leaves of texts padded with -1."""
    encode = importlib.import_module(f"{cell.twin}.encoder").encode
    model = subject_of(cell).model
    params = importlib.import_module(f"{cell.twin}.model").params_of(model)
    count_B = ints(cell, (encoder >= 0).sum(axis=1))
    return encode(params, ints(cell, np.maximum(encoder, 0)), count_B, config=model.config)


def empty(cell: Cell, batch: int, **options: Any) -> Any:
    subject = subject_of(cell)
    sizes = {"batch": batch, "capacity": 24, "dtype": "float64", "source_capacity": 16}
    return verbs_of(cell).init(subject.model.config, **(sizes | options))


def padded(encoder: np.ndarray, width: int) -> np.ndarray:
    return np.pad(encoder, ((0, 0), (0, width - encoder.shape[1])), constant_values=-1)


def crosses(state: Any) -> list[Any]:
    """Return the sites of the cross attentions."""
    return [site for site in state.sites if hasattr(site, "source_length_U")]


@cells
def test_the_result_does_not_depend_on_how_far_a_source_was_padded(cell):
    """KV-75: 5 real tokens padded to 5, 8 and 16, and beside a longer text."""
    subject = subject_of(cell)
    five = np.random.default_rng(1).integers(0, 97, (1, 5))
    eight = np.random.default_rng(2).integers(0, 97, (1, 8))
    right = subject.full(IDS[:1], encoder=five)

    for width in (8, 16):
        state = subject.init(1, 24, encoder=padded(five, width))
        first, state = subject.step(state, IDS[:1, :8])
        second, _ = subject.step(state, IDS[:1, 8:])
        assert_agree(np.concatenate([first, second], 1), right, EXACT, name=f"padded to {width}")
    mixed = subject.full(IDS[:2], encoder=np.concatenate([padded(five, 8), eight]))
    assert_agree(mixed[:1], right, EXACT, name="beside a longer text")


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_hash_of_the_weights_covers_the_encoder_in_both_twins(name):
    left, right = (subject_of(Cell(twin, name, "contiguous")) for twin in TWINS)
    arrays = random_arrays(tiny_family(name), 7)
    arrays["encoder.layers.0.attn.q.weight"] += 2**-10
    from_arrays = importlib.import_module("torchkv.weights").from_arrays
    other = from_arrays(tiny_family(name), arrays, dtype="float64")

    changed = new_subject(other, Cell("torchkv", name, "contiguous")).info.weights_hash

    assert left.info.weights_hash == right.info.weights_hash != changed


@cells
def test_nan_behind_a_source_reaches_no_output(cell):
    subject = subject_of(cell)
    encoder = subject.encoder_inputs(4, 0)
    state = subject.init(4, 24, encoder=padded(encoder, 9))
    right, _ = subject.step(subject.fork(state), IDS)

    poisoned = subject.poison(state)
    keys = verbs_of(cell).read(poisoned, 1)[0]
    out, _ = subject.step(poisoned, IDS)

    assert np.isnan(np.asarray(keys)).any()
    assert_agree(out, right, EXACT, name="logits")


@cells
def test_gather_takes_each_rows_source_along(cell):
    subject = subject_of(cell)
    encoder, rows = subject.encoder_inputs(4, 0), np.array([2, 0, 0, 3])
    state = subject.init(4, 24, encoder=encoder)
    _, state = subject.step(state, IDS[:, :1])

    out, _ = subject.step(subject.gather(state, rows), IDS[rows][:, 1:])

    right = subject.full(IDS[rows], encoder=encoder[rows])
    assert_agree(out, right[:, 1:], EXACT, name="logits")


@cells
def test_rows_that_share_a_source_answer_as_with_copies_of_it(cell):
    verbs, subject = verbs_of(cell), subject_of(cell)
    encoder = subject.encoder_inputs(2, 0)
    state = verbs.fill(empty(cell, 4, beams=2), source_of(cell, encoder))

    first, state = subject.step(state, IDS[:, :1])
    rows = [1, 1, 2, 3]
    again = verbs.gather(state, ints(cell, rows))
    kept = zip(crosses(state), crosses(again), strict=True)
    second, _ = subject.step(again, IDS[rows][:, 1:])

    right = subject.full(IDS[rows], encoder=np.repeat(encoder, 2, axis=0))
    assert_agree(second, right[:, 1:], EXACT, name="logits")
    assert first.shape == (4, 1, 97)
    # A beam's reordering moves nothing of the source: the very same site.
    assert all(old is new for old, new in kept)


@cells
def test_a_row_that_would_leave_its_source_is_refused(cell):
    verbs = verbs_of(cell)
    state = empty(cell, 4, beams=2)

    with pytest.raises(RequestError) as error:
        verbs.gather(state, ints(cell, [0, 2, 2, 3]))
    with pytest.raises(ShapeError, match="2 rows share each source"):
        verbs.gather(state, ints(cell, [0, 1]))

    assert str(error.value) == (
        "gather: rows_B[1] is 2, a row of another source than row 1's. Rows that share a source "
        "(beams) stay with it; make the cache with beams=1."
    )


def test_a_row_that_would_leave_its_source_under_jit_is_marked():
    import jax

    cell = CELLS[0]

    moved = jax.jit(verbs_of(cell).gather)(empty(cell, 4, beams=2), ints(cell, [1, 2, 2, 3]))

    assert moved.overflow_B.tolist() == [0, 1, 0, 0]


@cells
def test_a_rollback_leaves_the_source(cell):
    subject = subject_of(cell)
    encoder = subject.encoder_inputs(4, 0)
    state = subject.init(4, 24, encoder=encoder)
    _, state = subject.step(state, IDS[:, ::-1].copy())

    out, _ = subject.step(subject.rollback(state, np.zeros(4, int)), IDS)

    assert_agree(out, subject.full(IDS, encoder=encoder), EXACT, name="logits")


@cells
def test_a_reset_forgets_the_source(cell):
    """Nothing of an earlier request is left for the next: an empty source gives zeros."""
    verbs, subject = verbs_of(cell), subject_of(cell)
    encoder = subject.encoder_inputs(4, 0)
    state = subject.init(4, 24, encoder=encoder)
    mask = np.array([True, False, True, False])

    some = verbs.reset(state, ints(cell, mask) > 0)
    none = verbs.reset(state)
    out, _ = subject.step(none, IDS)

    lengths = (encoder >= 0).sum(axis=1)
    for site in crosses(some):
        np.testing.assert_array_equal(np.asarray(site.source_length_U), lengths * ~mask)
    fresh, _ = subject.step(empty(cell, 4), IDS)
    assert_agree(out, fresh, EXACT, name="logits")


def saved(cell, path):
    """Return what a load needs, its sources' texts and their padded array, after a save."""
    subject = subject_of(cell)
    encoder = subject.encoder_inputs(4, 0)
    sources = [[int(token) for token in row if token >= 0] for row in encoder]
    _, state = subject.step(subject.init(4, 24, encoder=encoder), IDS[:, :8])
    identity = Identity(subject.model.config, "7", "float64", "contiguous")
    given = {"identity": identity, "tokens": IDS[:, :8].tolist()}
    verbs_of(cell).save(state, path, **given, encoder=sources)
    return subject.init(4, 24, encoder=np.zeros_like(encoder)), given, sources, encoder


@cells
def test_a_saved_cache_holds_its_source(cell, tmp_path):
    like, given, sources, encoder = saved(cell, tmp_path / "cache")

    back = verbs_of(cell).load(tmp_path / "cache", like, **given, encoder=sources)
    out, _ = subject_of(cell).step(back, IDS[:, 8:])

    right = subject_of(cell).full(IDS, encoder=encoder)
    assert_agree(out, right[:, 8:], EXACT, name="logits")
    assert verbs_of(cell).peek(tmp_path / "cache").encoder == sources


@cells
def test_a_saved_cache_of_another_source_is_refused(cell, tmp_path):
    """KV-76, in a file: the tokens of the decoder are the same, the encoder has read another."""
    like, given, sources, _ = saved(cell, tmp_path / "cache")
    other = [*sources[:2], [sources[2][0] + 1, *sources[2][1:]], sources[3]]

    with pytest.raises(SourceError, match=r"load: encoder\[2\]\[0\] is \d+ in the file, \d+ asked"):
        verbs_of(cell).load(tmp_path / "cache", like, **given, encoder=other)
    with pytest.raises(RequestError, match="load: encoder is None, but the cache holds what an"):
        verbs_of(cell).load(tmp_path / "cache", like, **given)


@cells
def test_a_cache_is_not_saved_without_the_texts_of_its_sources(cell, tmp_path):
    like, given, sources, _ = saved(cell, tmp_path / "cache")
    back = verbs_of(cell).load(tmp_path / "cache", like, **given, encoder=sources)

    with pytest.raises(RequestError, match="save: encoder is None, but the cache holds what an"):
        verbs_of(cell).save(back, tmp_path / "cache", **given)
    with pytest.raises(ShapeError, match=r"save: encoder has rows of \[.*\], the cache's sources"):
        verbs_of(cell).save(back, tmp_path / "cache", **given, encoder=sources[:3])


@pytest.mark.parametrize("cell", [CELLS[0], CELLS[2]], ids=str)
def test_no_prefix_is_shared_beside_an_encoder(cell):
    """KV-76: two sources with the same first tokens of the decoder had shared its entries."""
    config = tiny_family(cell.model)

    with pytest.raises(Unsupported, match="PrefixStore: the model has an encoder, so equal tokens"):
        verbs_of(cell).PrefixStore(config, dtype="float64", capacity=24, pool_pages=9)


@pytest.mark.parametrize(
    "paged", [{}, {"page_size": 7}, {"page_size": 7, "pool_pages": 5}], ids=str
)
@pytest.mark.parametrize("beams", [1, 2])
@cells
def test_bytes_are_those_of_the_arrays_and_of_the_prediction(cell, beams, paged):
    """The source stands beside the pages, in none of them."""
    config = subject_of(cell).model.config
    layout = "paged" if paged else "contiguous"
    state = empty(cell, 4, beams=beams, layout=layout, **paged)

    predicted = model_cache_bytes(config, batch=4, tokens=24, itemsize=8, layout=layout, **paged)
    predicted += bookkeeping_bytes(4)
    predicted += page_table_bytes(batch=4, tokens=24, **paged) if paged else 0
    predicted += source_bytes(config, batch=4 // beams, tokens=16, itemsize=8)

    assert verbs_of(cell).nbytes(state) == predicted


@cells
def test_what_does_not_fit_is_refused_in_words(cell):
    verbs, subject = verbs_of(cell), subject_of(cell)
    wide = source_of(cell, np.zeros((4, 17), int))
    few = source_of(cell, np.zeros((2, 5), int))
    llama = subject_of(CELLS[0]).model.config

    with pytest.raises(ShapeError) as error:
        verbs.fill(empty(cell, 4), wide)
    assert str(error.value) == (
        "fill: source has 17 slots, the cache 16 for it. Make the cache with source_capacity=17."
    )
    with pytest.raises(ShapeError, match="fill: source has texts 2, the cache 4"):
        verbs.fill(empty(cell, 4), few)
    with pytest.raises(ShapeError, match="fill: source has 1 layers, the cache 2 cross"):
        verbs.fill(empty(cell, 4), few[:1])
    with pytest.raises(RequestError, match="beams is 3, expected a divisor of batch 4"):
        empty(cell, 4, beams=3)
    with pytest.raises(CapacityError, match="source_capacity is 0, expected 1 to"):
        empty(cell, 4, source_capacity=0)
    alone = replace(
        llama,
        encoder=None,
        layers=tuple(replace(layer, cross=None) for layer in llama.layers),
    )
    with pytest.raises(RequestError, match="source_capacity is 5 and beams 1, expected neither"):
        verbs.init(alone, batch=1, capacity=4, dtype="float64", source_capacity=5)
    assert subject.info.capabilities >= {"cross", "kv"}


@cells
def test_a_cross_attention_takes_no_keys_and_no_positions(cell):
    verbs = verbs_of(cell)
    config = subject_of(cell).model.config
    a = config.layers[0].cross
    state, step = verbs.begin(empty(cell, 4), ints(cell, [1] * 4), T=1)
    q = ints(cell, np.zeros((4, 1, a.num_heads, a.head_dim))) * 1.0
    q = q.astype("float64") if cell.twin == "jaxkv" else q.double()
    rule = verbs.Rule(scale=1.0, causal=False)

    with pytest.raises(Unsupported, match="k_BTKH or v_BTKH is given, expected None"):
        verbs.attend(state.sites[1], step, q, q, q, rule=rule)
    with pytest.raises(Unsupported, match="rule has causal=True and window=None"):
        verbs.attend(state.sites[1], step, q, None, None, rule=verbs.Rule(scale=1.0))
    with pytest.raises(Unsupported, match="rotate, bias or expand is given"):
        verbs.attend(state.sites[1], step, q, None, None, rule=rule, rotate=lambda x, at: x)
    with pytest.raises(ShapeError, match=r"q_BTNH has \(B, N, H\) \(4, "):
        verbs.attend(state.sites[1], step, q[..., :-1], None, None, rule=rule)
    out, site = verbs.attend(state.sites[1], step, q, None, None, rule=rule)
    assert not np.asarray(out).any()
    assert site is state.sites[1]
