"""torchkv's compiled step: what it computes, when it runs, and how a missing compiler is told."""

import json

import pytest

from bench import compiled
from bench.cases import Case
from tests.children import output_of

# A process of its own: the suite checks the shapes of every call, which nothing can compile. The
# program is traced as a whole and run operator by operator, since generated code takes a minute.
PROGRAM = """
import json, sys

import torch
from bench.gpu_shapes import random_checkpoint
from bench.runners import TwinRunner
from torchkv.compiled import compiled_steps
from torchkv.generation import generate

model = TwinRunner("torchkv", random_checkpoint("tiny"), dtype="float64").model
traced = torch._dynamo.utils.counters["stats"]
found = {}
for name, prompts, options in (
    ("level", [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], {}),
    ("longer", [[3] * 140], {}),
    ("ragged", [[3, 1], [9, 2, 6]], {}),
    ("paged", [[3, 1, 4]], {"layout": "paged"}),
):
    options = {"max_new_tokens": 9, "logprobs": True, **options}
    eager = generate(model, prompts, **options)
    before = traced["unique_graphs"]
    with compiled_steps("eager"):
        inside = generate(model, prompts, **options)
    gap = max(abs(a - b) for x, y in zip(eager.logprobs, inside.logprobs) for a, b in zip(x, y))
    alike = eager.new_tokens == inside.new_tokens
    found[name] = [alike, float(gap), traced["unique_graphs"] - before]
before = traced["unique_graphs"]
generate(model, [[3, 1, 4, 1, 5, 9]], max_new_tokens=3)
found["outside"] = traced["unique_graphs"] - before
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    return json.loads(output_of("-c", PROGRAM).splitlines()[-1])


@pytest.mark.parametrize("name", ["level", "longer"])
def test_rows_of_one_length_run_as_one_program_for_each_batch_and_window(found, name):
    alike, gap, graphs = found[name]

    assert alike
    assert gap < 1e-6  # log-probabilities are told in float32
    assert graphs == 1


@pytest.mark.parametrize("name", ["ragged", "paged"])
def test_what_cannot_be_compiled_runs_as_outside(found, name):
    alike, gap, graphs = found[name]

    assert (alike, gap, graphs) == (True, 0.0, 0)


def test_outside_of_it_nothing_is_compiled(found):
    assert found["outside"] == 0


@pytest.mark.parametrize(
    ("environment", "there", "why"),
    [
        ({}, {"clang++"}, None),
        ({}, set(), "none of g++, clang++, cl is there"),
        ({"CXX": "other"}, {"g++"}, "none of other is there"),
    ],
    ids=["there", "none", "named"],
)
def test_without_a_compiler_the_subject_is_a_row_that_says_so(monkeypatch, environment, there, why):
    monkeypatch.delenv("CXX", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(compiled.shutil, "which", lambda name: name if name in there else None)
    case = Case("b1", batch=1, prompt=2, new=2)

    rows = compiled.refused("decode", case, "step", asked=True)

    assert [row.note.endswith(why) for row in rows] == [True] * (why is not None)
    assert all(row.median is None and row.subject == compiled.NAME for row in rows)
    assert compiled.refused("decode", case, "step", asked=False) == []


def test_the_window_that_a_step_reads_holds_its_longest_text():
    runner = compiled.CompiledRunner(type("Eager", (), {"model": None}))

    read = [
        runner.slots_read(Case("c", batch=1, prompt=prompt, new=new, capacity=capacity))
        for prompt, new, capacity in (
            (16, 33, None),
            (120, 9, None),
            (120, 10, None),
            (120, 10, 130),
        )
    ]

    assert read == [128, 128, 256, 130]
