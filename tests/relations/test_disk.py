"""A saved cache answers as before; a file of anything else is refused, and an old one survives."""

import dataclasses
import errno
import json
import os
import stat

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from jaxkv.spec.errors import RequestError, ShapeError, SourceError
from jaxkv.spec.identity import Identity
from tests.tiny import BATCH, CAPACITY, CELLS, feed, ids_of, make_subject, module

cells = pytest.mark.parametrize("cell", CELLS, ids=str)
one_a_twin = pytest.mark.parametrize(
    "cell", [cell for cell in CELLS if str(cell).endswith("llama-paged")], ids=str
)


def owner(cell) -> Identity:
    return Identity(cell.config, "7", "float64", cell.layout)


def filled(cell, length=17):
    """Return a subject, ids, a state that holds the first of them, and the texts of its rows."""
    subject, ids = cell.subject, ids_of(cell, 5)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [9, length - 9])
    return subject, ids, state, ids[:, :length].tolist()


def saved(cell, path):
    """Return what a load needs, after a save."""
    subject, _, state, texts = filled(cell)
    module(cell, "caches").save(state, path, identity=owner(cell), tokens=texts)
    return module(cell, "caches"), subject.init(BATCH, CAPACITY), texts


@cells
def test_a_loaded_cache_gives_the_same_logits(cell, tmp_path):
    caches, path = module(cell, "caches"), tmp_path / "c.safetensors"
    subject, ids, state, texts = filled(cell)
    caches.save(state, path, identity=owner(cell), tokens=texts)

    loaded = caches.load(path, subject.init(BATCH, CAPACITY), identity=owner(cell), tokens=texts)

    left, _ = subject.step(state, ids[:, 17:20])
    right, _ = subject.step(loaded, ids[:, 17:20])
    np.testing.assert_array_equal(left, right)


@one_a_twin
def test_a_cache_in_bfloat16_comes_back_bit_for_bit(cell, tmp_path):
    caches, path, half = module(cell, "caches"), tmp_path / "c.safetensors", "bfloat16"
    subject = make_subject(cell, half)
    ids = ids_of(cell, 5)
    _, state = feed(subject, subject.init(BATCH, CAPACITY), ids, [9, 8])
    identity = dataclasses.replace(owner(cell), dtype=half)
    caches.save(state, path, identity=identity, tokens=ids[:, :17].tolist())

    loaded = caches.load(path, subject.init(BATCH, CAPACITY), identity=identity)

    left, _ = subject.step(state, ids[:, 17:20])
    right, _ = subject.step(loaded, ids[:, 17:20])
    np.testing.assert_array_equal(left, right)
    form = caches.peek(path).form["arrays"].values()
    assert {dtype for dtype, _ in form} == {"bfloat16", "int32"}


@one_a_twin
def test_a_file_says_whose_it_is_and_nobody_else_may_read_it(cell, tmp_path):
    caches, _, texts = saved(cell, tmp_path / "c.safetensors")

    found = caches.peek(tmp_path / "c.safetensors")

    assert found.tokens == texts
    assert found.capacity == CAPACITY
    assert found.identity == json.loads(json.dumps(owner(cell).to_dict()))
    assert stat.S_IMODE(os.stat(tmp_path / "c.safetensors").st_mode) == 0o600


def changed(cell, field: str, value) -> Identity:
    if field in ("weights", "dtype", "layout", "adapter", "tenant"):
        return dataclasses.replace(owner(cell), **{field: value})
    data = cell.config.to_dict()
    if field == "rope":
        data["layers"][1]["attention"]["rope"]["theta"] = value
    else:
        data[field] = value
    return dataclasses.replace(owner(cell), config=type(cell.config).from_dict(data))


OTHER = [
    ("weights", "8", "weights is '7' in the file, '8' asked for"),
    ("dtype", "float32", "dtype is 'float64' in the file, 'float32' asked for"),
    ("layout", "window", "layout is 'paged' in the file, 'window' asked for"),
    ("adapter", "b", "adapter is '' in the file, 'b' asked for"),
    ("max_positions", 511, "config.max_positions is 512 in the file, 511 asked for"),
    (
        "rope",
        101.0,
        "config.layers[1].attention.rope.theta is 100.0 in the file, 101.0 asked for",
    ),
]


REMEDY = {
    "dtype": "Load the model in the file's dtype, or compute",
    "layout": "Ask for the file's layout, or compute",
    "adapter": "Ask for the file's adapter, or compute",
}


@one_a_twin
@pytest.mark.parametrize(("field", "value", "message"), OTHER, ids=[each[0] for each in OTHER])
def test_another_identity_is_refused_by_the_name_of_the_field(
    cell, field, value, message, tmp_path
):
    caches, like, texts = saved(cell, tmp_path / "c.safetensors")

    with pytest.raises(SourceError) as error:
        caches.load(
            tmp_path / "c.safetensors", like, identity=changed(cell, field, value), tokens=texts
        )

    assert str(error.value) == f"load: {message}. {REMEDY.get(field, 'Compute')} the cache anew."


@one_a_twin
def test_another_tenant_is_told_neither_whose_a_file_is_nor_anything_of_its_text(cell, tmp_path):
    path, own = tmp_path / "c.safetensors", dataclasses.replace(owner(cell), tenant="salt")
    subject, _, state, texts = filled(cell)
    caches = module(cell, "caches")
    caches.save(state, path, identity=own, tokens=texts)
    like, mallory = subject.init(BATCH, CAPACITY), dataclasses.replace(own, tenant="mallory")
    small, other = subject.init(BATCH, CAPACITY - 1), changed(cell, "dtype", "float32")
    other = dataclasses.replace(other, tenant="mallory")
    tries = {
        "peek": lambda: caches.peek(path, tenant="mallory"),
        "right text": lambda: caches.load(path, like, identity=mallory, tokens=texts),
        "wrong text": lambda: caches.load(path, like, identity=mallory, tokens=[[1]] * BATCH),
        "wrong form": lambda: caches.load(path, small, identity=mallory),
        "wrong dtype": lambda: caches.load(path, like, identity=other),
    }

    told = set()
    for attempt in tries.values():
        with pytest.raises(SourceError) as error:
            attempt()
        told.add(str(error.value).split(": ", 1)[1])

    assert told == {
        "tenant is 'mallory', expected the one that saved the file. Ask as the tenant that saved "
        "it, or compute the cache anew."
    }
    assert caches.peek(path, tenant="salt").tokens == texts


@cells
def test_another_text_or_form_is_refused(cell, tmp_path):
    path = tmp_path / "c.safetensors"
    caches, like, texts = saved(cell, path)
    other = [texts[0], [*texts[1][:3], texts[1][3] + 1, *texts[1][4:]], *texts[2:]]

    with pytest.raises(SourceError, match=r"load: tokens\[1\]\[3\] is \d+ in the file, \d+ asked"):
        caches.load(path, like, identity=owner(cell), tokens=other)
    with pytest.raises(ShapeError, match="capacity is 44 in the file, 43 in `like`"):
        caches.load(path, cell.subject.init(BATCH, CAPACITY - 1), identity=owner(cell))
    with pytest.raises(ShapeError, match=r"\[0\] is 4 in the file, 3 in `like`"):
        caches.load(path, cell.subject.init(BATCH - 1, CAPACITY), identity=owner(cell))


@one_a_twin
def test_another_dtype_is_named_before_the_hash_that_follows_from_it(cell, tmp_path):
    caches, like, _ = saved(cell, tmp_path / "c.safetensors")
    other = dataclasses.replace(owner(cell), weights="8", dtype="float32")

    with pytest.raises(SourceError, match="load: dtype is 'float64' in the file, 'float32' asked"):
        caches.load(tmp_path / "c.safetensors", like, identity=other)


@one_a_twin
def test_a_cache_without_an_encoder_has_no_source(cell, tmp_path):
    caches, like, texts = saved(cell, tmp_path / "c.safetensors")

    with pytest.raises(RequestError, match="load: encoder is given, but the cache holds nothing"):
        caches.load(tmp_path / "c.safetensors", like, identity=owner(cell), encoder=texts)


@one_a_twin
def test_texts_that_the_cache_does_not_hold_are_not_saved(cell, tmp_path):
    _, _, state, texts = filled(cell)

    with pytest.raises(ShapeError, match=r"save: tokens has rows of \[16, 17, 17, 17\]"):
        module(cell, "caches").save(
            state, tmp_path / "c", identity=owner(cell), tokens=[texts[0][:-1], *texts[1:]]
        )


@cells
def test_a_missing_or_truncated_file_is_refused(cell, tmp_path):
    path = tmp_path / "c.safetensors"
    caches, like, _ = saved(cell, path)
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(SourceError, match="damaged"):
        caches.load(path, like, identity=owner(cell))
    with pytest.raises(SourceError, match=r"load: .* does not exist"):
        caches.load(tmp_path / "none", like, identity=owner(cell))


@one_a_twin
def test_a_peek_speaks_for_itself_and_says_what_to_look_at(cell, tmp_path, monkeypatch):
    def forbidden(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    caches, path = module(cell, "caches"), tmp_path / "c.safetensors"
    told = []
    for wrong in (None, b"no file of arrays", forbidden):
        if wrong is forbidden:
            monkeypatch.setattr("safetensors.safe_open", forbidden)
        elif wrong is not None:
            path.write_bytes(wrong)
        with pytest.raises(SourceError) as error:
            caches.peek(path)
        told.append(str(error.value))

    assert [message.split(": ", 1)[0] for message in told] == ["peek"] * 3
    assert told[2].endswith("(Permission denied). Is it a file that you may read?")


def noted(path, **notes):
    """Write the file anew with other notes."""
    with safe_open(path, "numpy") as file:
        before = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 no mapping
    kept = {name: value for name, value in {**before, **notes}.items() if value is not None}
    save_file(arrays, path, metadata=kept)


FOREIGN = [
    ({"format": None, "version": None}, "format is 'none'"),
    ({"format": "onnx"}, "format is 'onnx'"),
    ({"version": "2"}, "version is 2, this program reads 3. Use the program that wrote it"),
    ({"tokens": "[[1"}, "notes are damaged"),
    ({"identity": None}, "notes are damaged"),
]


@one_a_twin
@pytest.mark.parametrize(("notes", "message"), FOREIGN, ids=[each[1][:14] for each in FOREIGN])
def test_a_file_of_something_else_or_of_a_later_version_is_refused(cell, notes, message, tmp_path):
    path = tmp_path / "c.safetensors"
    caches, like, _ = saved(cell, path)
    noted(path, **notes)

    for read in (caches.peek, lambda path: caches.load(path, like, identity=owner(cell))):
        with pytest.raises(SourceError) as error:
            read(path)

        name = "peek" if read is caches.peek else "load"
        assert str(error.value).startswith(f"{name}: the file's {message}")


@one_a_twin
def test_notes_that_disagree_with_the_arrays_are_refused(cell, tmp_path):
    path = tmp_path / "c.safetensors"
    caches, like, texts = saved(cell, path)
    noted(path, tokens=json.dumps([row[:-1] for row in texts]))

    with pytest.raises(ShapeError, match=r"load: tokens has rows of \[16, 16, 16, 16\]"):
        caches.load(path, like, identity=owner(cell))


@one_a_twin
def test_the_other_twins_file_is_refused_by_name(cell, tmp_path):
    path, other = tmp_path / "c.safetensors", "torchkv" if cell.twin == "jaxkv" else "jaxkv"
    saved(dataclasses.replace(cell, twin=other), path)
    caches = module(cell, "caches")

    with pytest.raises(SourceError) as error:
        caches.load(path, cell.subject.init(BATCH, CAPACITY), identity=owner(cell))

    assert f"format is '{other}-cache', expected '{cell.twin}-cache'" in str(error.value)


@one_a_twin
@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_the_old_file_survives_a_full_disk(cell, where, tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    caches, _, _ = saved(cell, path)
    before = path.read_bytes()
    _, _, state, texts = filled(cell)

    def full_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Full:
        """A file that takes some bytes and no more."""

        def __init__(self, handle, mode):
            self.file = open(handle, mode)  # noqa: SIM115 closed by its own exit

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            self.file.write(data[:100])
            full_disk()

    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr(os, "fdopen", Full)
        else:
            patch.setattr(os, where, full_disk)
        with pytest.raises(SourceError, match=r"cannot be written .No space left on device"):
            caches.save(state, path, identity=owner(cell), tokens=texts)

    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.safetensors"]


@one_a_twin
def test_a_place_that_is_none_is_refused(cell, tmp_path):
    _, _, state, texts = filled(cell)

    with pytest.raises(SourceError, match=r"cannot be written .No such file or directory"):
        module(cell, "caches").save(
            state, tmp_path / "none" / "c", identity=owner(cell), tokens=texts
        )
