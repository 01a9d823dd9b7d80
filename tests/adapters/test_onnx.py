"""An ONNX session as a subject: a double with ONNX Runtime's calls, in numpy.

ONNX Runtime itself runs in tests/wild.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from crosscheck.adapters.onnx import adapt_onnx
from crosscheck.errors import CrosscheckError, Refused
from crosscheck.subjects import describe
from crosscheck.subjects.sources import load_subject
from tests.tool.checking import quick, row_of
from tests.tool.user_model import VOCAB, WIDTH, Decoder

MODEL = Decoder()
PAST = ["batch", 1, "past", WIDTH]
INPUTS = {
    "input_ids": ["batch", "tokens"],
    "attention_mask": ["batch", "total"],
    "position_ids": ["batch", "tokens"],
    "past_key_values.0.key": PAST,
    "past_key_values.0.value": PAST,
}
OUTPUTS = ("logits", "present.0.key", "present.0.value")


class Session:
    """The decoder of tests/tool as a graph; `fault` says what is wrong with it."""

    def __init__(self, fault=None, without=()):
        self.fault = fault
        self.inputs = {name: shape for name, shape in INPUTS.items() if name not in without}

    def get_inputs(self):
        kinds = {"past": "tensor(double)"}
        return [
            SimpleNamespace(name=n, shape=s, type=kinds.get(n[:4], "tensor(int64)"))
            for n, s in self.inputs.items()
        ]

    def get_outputs(self):
        return [SimpleNamespace(name=name) for name in OUTPUTS]

    def run(self, wanted, feed):
        assert set(feed) == set(self.inputs)
        past = [feed[f"past_key_values.0.{part}"][:, 0] for part in ("key", "value")]
        held, positions = past[0].shape[1], feed.get("position_ids")
        if positions is None:
            positions = np.arange(held, held + feed["input_ids"].shape[1])
        if self.fault == "restarted":
            positions = np.arange(feed["input_ids"].shape[1])
        logits, (keys, values, _) = MODEL.step((*past, None), feed["input_ids"], positions)
        if self.fault == "slides":
            keys, values = keys[:, -3:], values[:, -3:]
        if self.fault == "stale" and held:
            keys, values = (np.concatenate([x, 0 * x[:, :1]], 1) for x in past)
        return [logits, keys[:, None], values[:, None]]


def subject(fault=None, without=("attention_mask",)):
    return adapt_onnx(Session(fault, without), max_positions=48)


def test_what_a_graph_takes_is_declared_and_what_not_has_a_reason():
    info = describe(subject())

    assert {"cache", "chunk", "rollback", "gather", "kv", "positions", "f64"} <= info.capabilities
    assert "left_pad" not in info.capabilities
    assert "position_ids" in info.absent["left_pad"]
    assert (info.num_layers, info.kv_heads, info.vocab_size) == (1, 1, VOCAB)


@pytest.mark.parametrize(
    ("relation", "fault", "without"),
    [
        ("cache.partition", "restarted", ("attention_mask",)),
        ("cache.partition", "stale", ("attention_mask",)),
        ("pad.left", "mask ignored", ()),
    ],
)
def test_what_a_graph_does_wrong_is_found(relation, fault, without):
    report = quick(subject(fault, without), relation)

    assert row_of(report, relation).verdict == "fail"


@pytest.mark.parametrize("relation", ["cache.partition", "cache.rollback", "cache.fork_gather"])
def test_without_the_mistake_nothing_is(relation):
    # One layer is too few for some planted faults to show: blind, but no alarm.
    assert row_of(quick(subject(), relation), relation).verdict in ("pass", "blind")


def test_a_past_that_slides_is_not_cut_as_if_it_held_everything():
    mine, ids = subject("slides"), np.arange(10, dtype=np.int32).reshape(2, 5)
    _, state = mine.step(mine.init(2, None), ids)

    with pytest.raises(Refused, match=r"rollback: the past holds 3 slots for 5 tokens fed\."):
        mine.rollback(state, np.array([4, 4]))


def test_a_graph_that_is_not_understood_is_refused_with_its_names():
    with pytest.raises(CrosscheckError, match=r"inputs are input_ids.*docs/adapters\.md"):
        adapt_onnx(Session(without=("past_key_values.0.value",)))


def test_a_file_without_the_package_or_that_is_not_there_says_so():
    with pytest.raises(CrosscheckError, match=r"^onnx:nowhere\.onnx: "):
        load_subject("onnx:nowhere.onnx")
