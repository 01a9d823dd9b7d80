"""Each benchmark's own arithmetic, and that it runs to its end on a tiny model."""

import argparse
import json

import pytest
import torch

from bench import memory, parts, scores, small, startup, sweep
from bench.__main__ import main
from bench.cases import Case
from bench.floors import step_bytes, step_floor
from bench.room import out_of_memory
from bench.timing import Spread
from jaxkv.spec.errors import CapacityError
from jaxkv.spec.source import open_source

CONFIG = open_source("reference").config
# 2 layers, 3 heads of width 8, keys and values, float32.
BYTES_OF_A_TOKEN = 2 * 3 * 8 * 2 * 4


class Stub:
    """A subject that answers, or fails as it is told."""

    def __init__(self, name, error=None):
        self.name, self.error = name, error

    def prepare(self, prompts, budget, *, capacity=None):
        def run():
            if self.error:
                raise self.error
            return [[1] * budget for _ in prompts]

        return run


@pytest.fixture
def prompts(monkeypatch):
    monkeypatch.setattr(sweep, "prompts_of", lambda case: [[1] * case.prompt] * case.batch)


def test_a_step_moves_the_weights_and_the_used_keys_and_values():
    alone = step_bytes(CONFIG, batch=1, used=0)

    assert step_bytes(CONFIG, batch=3, used=10) - alone == 3 * 10 * BYTES_OF_A_TOKEN
    used = alone // BYTES_OF_A_TOKEN
    assert step_floor(CONFIG, 4.0, batch=1, used=used) == pytest.approx(8.0, rel=0.01)


def test_a_case_beyond_the_free_memory_is_not_started_and_says_so(prompts):
    fit, rows = sweep.fitting(
        Case("b1", batch=1, prompt=2, new=2), [Stub("it")], needed=2 * 10**9, free=10**9
    )

    assert fit == []
    assert rows[0].note == "not run: needs 2.0 GB at least, 1.0 GB are free"
    assert rows[0].median is None


@pytest.mark.parametrize(
    "error",
    [MemoryError("no room"), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes")],
    ids=["python", "jax"],
)
def test_a_subject_that_runs_out_of_memory_is_a_row_and_the_others_go_on(prompts, error):
    fit, rows = sweep.fitting(
        Case("b1", batch=1, prompt=2, new=2),
        [Stub("large", error), Stub("small")],
        needed=0,
        free=1,
    )

    assert [runner.name for runner in fit] == ["small"]
    assert [(row.subject, row.note[:14]) for row in rows] == [("large", "out of memory:")]


def test_a_case_that_a_subject_refuses_is_a_row_that_says_unsupported(prompts):
    fit, rows = sweep.fitting(
        Case("b1", batch=1, prompt=2, new=2),
        [Stub("short", CapacityError("plan: too long")), Stub("other")],
        needed=0,
        free=1,
    )

    assert [runner.name for runner in fit] == ["other"]
    assert [(row.subject, row.note) for row in rows] == [("short", "unsupported: plan: too long")]


def test_another_error_is_not_taken_for_a_lack_of_memory():
    def fail():
        raise RuntimeError("a fault of our own")

    with pytest.raises(RuntimeError, match="a fault of our own"):
        out_of_memory(fail)


def test_the_slope_of_a_power_law_is_its_exponent():
    found = scores.slope([1, 2, 4, 8], [3, 12, 48, 192])

    assert found.value == pytest.approx(2)
    assert found.high - found.low < 1e-6


def test_the_interval_of_a_slope_grows_with_the_scatter():
    even, scattered = (
        scores.slope([1, 2, 4, 8], values) for values in ([1, 2, 4, 8], [1, 3, 3, 9])
    )

    assert scattered.high - scattered.low > even.high - even.low + 0.1


def test_counts_are_those_of_a_slow_count():
    # 8 of prompt, then 4 tokens fed one by one: who sees whom, counted by hand.
    fed = [8 + i for i in range(1, 5)]

    counted = {name: count(5) for name, count in scores.COUNTS.items()}

    assert counted["scores, cached"] == sum(fed)
    assert counted["scores, uncached, full squares"] == sum(n * n for n in fed)
    assert counted["scores, uncached, causal pairs"] == sum(n * (n + 1) // 2 for n in fed)
    assert counted["scores, prompt alone"] == 8 * 9 // 2
    assert (counted["positions, cached"], counted["positions, uncached"]) == (4, sum(fed))


def test_scores_runs_to_its_page(tmp_path, capsys):
    path = tmp_path / "scores.html"

    assert main(["scores", "--quick", "--html", str(path), "--json", str(tmp_path / "s")]) == 0

    assert "none of another" in capsys.readouterr().out.replace("\n", " ")
    assert path.read_text().count("<svg") == 3


def test_a_probe_that_fails_is_a_row_with_its_last_words():
    options = argparse.Namespace(model="no-such-model", batch=1, tokens=4)

    told = memory.probe("torchkv", "contiguous", options)

    assert isinstance(told, str)
    assert "no-such-model" in told


def test_predicted_and_allocated_bytes_are_equal(tmp_path):
    path = tmp_path / "memory"
    arguments = ["--model", "reference", "--batch", "2", "--tokens", "24", "--quick"]

    assert main(["memory", *arguments, "--json", str(path)]) == 0

    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    numbers = {(row["subject"], row["metric"]): row["median"] for row in rows}
    assert numbers["jaxkv-contiguous", "allocated"] == 2 * 24 * BYTES_OF_A_TOKEN + 24
    assert numbers["jaxkv-paged", "predicted"] == numbers["jaxkv-paged", "allocated"]


def test_host_overhead_is_what_a_call_takes_beyond_its_program():
    found = {name: Spread(ms, ms, ms) for name, ms in (("jaxkv", 6.0), ("program", 5.0))}

    assert small.overhead("a case", found).median == pytest.approx(0.2)


def test_shares_of_a_profile_are_all_of_the_call():
    x = torch.ones(64, 64)

    shares = parts.torch_shares(lambda: torch.softmax(x @ x, -1) + x)

    assert sum(shares.values()) == pytest.approx(1)
    assert all(shares[name] > 0 for name in ("products", "attention", "other operators"))
    assert "% products" in parts.words(shares)


def test_a_start_tells_its_stages(tmp_path):
    found = startup.start("torchkv", "reference", str(tmp_path))

    assert not isinstance(found, str)
    assert set(found) == {"imports", "reading", "first_call", "second_call", "total"}
    assert sum(found.values()) - found["total"] < found["total"]


@pytest.mark.parametrize(("model", "told"), [("reference", ["command"]), ("no-such-model", None)])
def test_a_whole_command_is_timed_or_tells_why_it_failed(model, told, tmp_path):
    found = startup.with_command("torchkv", model, str(tmp_path), {})

    assert list(found) == told if told else model in found
