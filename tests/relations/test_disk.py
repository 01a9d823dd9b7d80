"""A saved cache answers as before; a file of anything else is refused, and an old one survives."""

import numpy as np
import pytest

from jaxkv.spec.errors import ShapeError, SourceError
from tests.tiny import BATCH, CAPACITY, CELLS, feed, ids_of, module

cells = pytest.mark.parametrize("cell", CELLS, ids=str)


def filled(cell):
    subject, ids = cell.subject, ids_of(cell, 5)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [9, 8])
    return subject, ids, state


@cells
def test_a_loaded_cache_gives_the_same_logits(cell, tmp_path):
    caches = module(cell, "caches")
    subject, ids, state = filled(cell)
    caches.save(state, tmp_path / "c.safetensors", identity="tiny, seed 7")

    loaded = caches.load(
        tmp_path / "c.safetensors", subject.init(BATCH, CAPACITY), identity="tiny, seed 7"
    )

    left, _ = subject.step(state, ids[:, 17:20])
    right, _ = subject.step(loaded, ids[:, 17:20])
    np.testing.assert_array_equal(left, right)


@cells
def test_another_identity_or_form_is_refused(cell, tmp_path):
    caches = module(cell, "caches")
    subject, _, state = filled(cell)
    path = tmp_path / "c.safetensors"
    caches.save(state, path, identity="a")

    with pytest.raises(SourceError, match="belongs to 'a', asked for 'b'"):
        caches.load(path, subject.init(BATCH, CAPACITY), identity="b")
    with pytest.raises(ShapeError, match="capacity is 44 in the file, 43 in `like`"):
        caches.load(path, subject.init(BATCH, CAPACITY - 1), identity="a")


@cells
def test_a_missing_or_damaged_file_is_refused(cell, tmp_path):
    caches = module(cell, "caches")
    subject, _, state = filled(cell)
    path = tmp_path / "c.safetensors"
    caches.save(state, path)
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(SourceError, match="damaged"):
        caches.load(path, subject.init(BATCH, CAPACITY))
    with pytest.raises(SourceError, match="does not exist"):
        caches.load(tmp_path / "none", subject.init(BATCH, CAPACITY))


@cells
def test_the_old_file_survives_a_save_that_fails(cell, tmp_path, monkeypatch):
    import os

    caches = module(cell, "caches")
    _, _, state = filled(cell)
    path = tmp_path / "c.safetensors"
    caches.save(state, path)
    before = path.read_bytes()

    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        caches.save(state, path, identity="new")

    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.safetensors"]
