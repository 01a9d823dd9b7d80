"""The accelerator's benchmark runs to its end on a processor, so that it works on a first try."""

import argparse
import json
from dataclasses import replace

import numpy as np
import pytest

from bench import gpu, gpu_probe
from bench.__main__ import main
from bench.gpu_shapes import SHAPES, random_checkpoint
from bench.rows import Row, with_ratios

SMALL = ["--shape", "tiny", "--batches", "1", "--contexts", "8", "--new", "4", "--quick"]


def test_it_runs_to_its_end_and_says_what_it_could_not_measure(tmp_path, capsys):
    path = tmp_path / "rows"
    subjects = ["--subjects", "jaxkv", "torchkv", "transformers-static"]
    layouts = ["--layouts", "paged"]

    assert (
        main(["gpu", *SMALL, *subjects, *layouts, "--dtypes", "bfloat16", "--json", str(path)]) == 0
    )

    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    timed = {(row["subject"], row["metric"]) for row in rows if row["median"] is not None}
    for subject in subjects[1:]:
        assert {(subject, "ttft_ms"), (subject, "decode_ms_per_step")} <= timed
    paged = [row["subject"] for row in rows if row["case"] == "bfloat16-b1-p8-paged"]
    assert {*paged} == {"jaxkv", "torchkv"}
    (memory,) = {row["note"] for row in rows if row["metric"] == "peak_above_baseline"}
    assert memory == "the backend keeps no statistics of its memory"
    assert "this ran on a processor" in " ".join(capsys.readouterr().out.split())


def test_a_subject_with_other_logits_is_not_timed(monkeypatch, tmp_path):
    right = np.array([[1.0, 2.0]])
    answers = {"torchkv": right * 1.5}
    monkeypatch.setattr(gpu, "_logits", lambda subject, *_: (answers.get(subject, right), "cpu"))
    monkeypatch.setattr(gpu, "run_probe", lambda *_: [])
    path = tmp_path / "rows"
    asked = ["--subjects", "jaxkv", "torchkv", "--dtypes", "bfloat16"]

    assert main(["gpu", *SMALL, *asked, "--json", str(path)]) == 1

    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [(row["subject"], row["note"][:10]) for row in rows if "note" in row] == [
        ("torchkv", "not timed:")
    ]


def test_no_time_left_is_a_row_and_no_error():
    assert gpu.run_probe("jaxkv", "float32", "tiny", {}, 0.0) == "not run: the time for all is over"


def test_a_process_that_fails_leaves_its_last_words():
    told = gpu.run_probe("no-such-subject", "float32", "no-such-shape", {}, 60.0)

    assert "no-such-shape" in told


def test_every_subject_gets_the_same_weights():
    first, second = (random_checkpoint("tiny").weights for _ in range(2))

    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_case_out_of_memory_is_two_rows_with_the_reason(monkeypatch):
    class Runner:
        model = type("Model", (), {"config": SHAPES["tiny"]})

        def prepare(self, prompts, budget, **layout):
            def run():
                raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")

            return run

    device = gpu_probe.Device("torchkv")
    found = gpu_probe.measure(
        Runner(), device, "case", 1, 4, {"new": 2, "repeats": 1, "layouts": []}
    )

    assert [(each["metric"], each["values"]) for each in found] == [
        ("ttft_ms", []),
        ("decode_ms_per_step", []),
    ]
    assert all(each["note"].startswith("out of memory") for each in found)


def test_the_floor_of_a_batch_counts_its_keys_and_values():
    row = Row("gpu", "bfloat16-b1-p8", "jaxkv", "decode_ms_per_step", "ms", 2.0, 2.0, 2.0)
    wide = replace(row, case="bfloat16-b32-p8")
    read = replace(row, case="bfloat16-b1", metric="weight_read_ms", median=1.0)

    one, many, _ = gpu.with_floors([row, wide, read], SHAPES["tiny"], new=4)

    assert 0.5 < one.floor_share < many.floor_share


def test_each_context_of_jax_is_a_process_and_only_the_twins_have_layouts():
    options = argparse.Namespace(
        batches=(1, 32), contexts=(8, 16), layouts=("paged",), dtypes=("bfloat16", "float32")
    )

    asked = {
        name: [(each["batch"], each["contexts"], each["layouts"]) for each in found]
        for name in ("jaxkv", "torchkv", "transformers-static")
        if (found := gpu.asked_of(name, "bfloat16", options))
    }

    paged = (1, [16], ["paged"])
    assert asked["jaxkv"] == [*((b, [c], []) for b in (1, 32) for c in (8, 16)), paged]
    assert asked["torchkv"] == [(1, [8, 16], []), (32, [8, 16], []), paged]
    assert asked["transformers-static"] == [(1, [8, 16], []), (32, [8, 16], [])]
    assert paged not in gpu.asked_of("jaxkv", "float32", options)


def test_ratios_are_against_the_baseline_of_the_same_case():
    rows = [
        Row("gpu", case, subject, "ttft_ms", "ms", median, median, median)
        for case, subject, median in (("a", "base", 6.0), ("a", "it", 2.0), ("b", "it", 1.0))
    ]

    assert [row.ratio for row in with_ratios(rows, baseline="base")] == [1.0, 3.0, None]


@pytest.mark.parametrize("name", ["jaxkv", "torchkv"])
def test_the_probe_names_its_device(name):
    assert "cpu" in gpu_probe.Device(name).name.lower()
