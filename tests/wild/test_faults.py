"""Real faults in released packages: found, localized and named, without being told anything.

The models are tests/wild/models.py's; `CLEAN` are families in which nothing may be found, and
`LIKE_THEM` more of the same kinds, when deep. All run with the same options.
"""

from functools import cache

import numpy as np
import pytest

from crosscheck.check import check
from crosscheck.diagnosis.diagnose import diagnose
from crosscheck.programs.case import Append, Case
from crosscheck.subjects.sources import load_subject
from tests.tiny import DEEP

OPTIONS = {"relations": "core", "budget_seconds": 600.0, "dtypes": ("float64",)}

# factory -> relation that breaks, first kind of its diagnosis, layer and earliest position (None
# where the package's own numbers leave it open).
FAULTS = {
    "flax_attention": ("cache.partition", "mask.top_left", None, 1),
    "bamba": ("cache.partition", "pos.reset", None, None),
    "moshi": ("cache.partition", "window.cache_only", 0, 5),
    "gpt_neo_static": ("cache.capacity", "capacity.as_length", None, 1),
    "mistral_static": ("cache.rollback", "rollback.evicted", None, None),
    "roberta": ("pad.left", "pos.pad_shift", 0, None),
    "llama_eager": ("pad.left", "mask.empty_row_nan", None, None),
    "mistral_small_static": ("cache.capacity", "capacity.shrinks_window", None, None),
    "sdpa_is_causal": ("cache.partition", "mask.top_left", 0, 1),
}
# Each has something that those before it have not: learned positions, rotary ones, experts, norms
# after blocks, a window, part of the channels turned, offset positions, one key for all queries,
# parallel blocks, pairs beside each other.
CLEAN = (
    "gpt2",
    "llama",
    "mixtral",
    "gemma2",
    "gemma3_text",
    "phi",
    "opt",
    "falcon",
    "cohere",
    "glm",
)
LIKE_THEM = (
    "qwen2",
    "qwen3",
    "mistral",
    "gemma",
    "phi3",
    "gpt_neox",
    "olmo2",
    "starcoder2",
    "stablelm",
    "granite",
)


@cache
def report_of(source):
    """Run the tool as its command line does."""
    return check(load_subject(source), **OPTIONS)


def row_of(report, name):
    (row,) = (row for row in report.rows if row.name == name and row.axis == "self")
    return row


@pytest.mark.parametrize("name", FAULTS)
def test_a_real_fault_is_found_localized_and_named(name):
    relation, kind, layer, position = FAULTS[name]

    report = report_of(f"tests.wild.models:{name}")

    row = row_of(report, relation)
    assert (report.verdict, row.verdict) == ("fail", "fail")
    assert row.diagnosis[0].fault.startswith(kind), row.diagnosis
    assert row.divergence is not None
    assert layer is None or row.divergence.layer == layer
    assert position is None or row.divergence.position == position


@pytest.mark.parametrize("name", ["dory", "sdpa_is_causal"])
def test_a_documented_difference_is_reported_with_the_packages_sentence(name):
    """Class D: a difference, never called a fault of the package."""
    row = row_of(report_of(f"tests.wild.models:{name}"), "cache.partition")

    assert row.verdict == "fail"
    assert row.documented is not None
    assert row.documented[0].endswith(".")


@pytest.mark.parametrize("name", ["mamba", "recurrent_gemma"])
def test_a_state_that_a_step_of_several_tokens_loses_is_named(name):
    subject = load_subject(f"tests.wild.models:{name}")
    ids = np.random.default_rng(0).integers(3, 97, (2, 10)).astype(np.int32)

    found = [
        diagnose(subject, None, "cache.partition", Case(ids, tuple(map(Append, sizes)), seed=0))
        for sizes in ((6, 4), (6, 1, 1, 1, 1))
    ]

    assert found[0][0].fault == "state.dropped"
    assert "a step of one token" in found[0][0].evidence
    assert found[1] == ()


@pytest.mark.parametrize("family", (*CLEAN, *LIKE_THEM) if DEEP else CLEAN)
def test_a_clean_family_raises_no_alarm(family):
    report = report_of(f"hf-tiny:{family}")

    alarms = {row.name: row.reason for row in report.rows if row.verdict in ("fail", "error")}
    assert alarms == {}
    assert report.verdict == "pass"
