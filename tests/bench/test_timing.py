"""Numbers of a benchmark under a clock of the test's own: nothing here waits or measures."""

import pytest

from bench.cases import Case
from bench.prefill import rates
from bench.rows import Row
from bench.timing import Spread, first_and_steady, interleaved, seconds, tokens_per_second


class Clock:
    """A clock that stands still until a call moves it on."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Compiled:
    """A call that takes 200 ms the first time, for its compilation, and 20 ms of work always."""

    def __init__(self, clock):
        self.clock, self.calls = clock, 0

    def __call__(self):
        self.clock.now += 0.020 + (0.200 if self.calls == 0 else 0)
        self.calls += 1


def test_compilation_stands_apart_from_the_steady_time():
    """KV-79: the first call of 220 ms is no measure of the 20 ms of work after it."""
    clock = Clock()

    first, steady = first_and_steady(Compiled(clock), repeats=5, clock=clock)

    assert first == pytest.approx(0.220)
    assert (steady.median, steady.high) == (pytest.approx(0.020), pytest.approx(0.020))


def test_warm_up_rounds_do_not_count():
    clock = Clock()
    call = Compiled(clock)

    found = interleaved({"it": lambda: seconds(call, clock=clock)}, repeats=3)

    assert found["it"].high == pytest.approx(0.020)


def test_without_a_warm_up_the_compilation_shows():
    clock = Clock()
    call = Compiled(clock)

    found = interleaved({"it": lambda: seconds(call, clock=clock)}, repeats=3, warmups=0)

    assert found["it"].high == pytest.approx(0.220)


def test_subjects_are_measured_in_turn():
    order = []
    measures = {name: lambda name=name: order.append(name) or 1.0 for name in "ab"}

    interleaved(measures, repeats=2, warmups=1)

    assert order == ["a", "b"] * 3


def test_prefill_throughput_counts_tokens_and_not_prompts():
    """KV-78: two prompts of 100 tokens in half a second are 400 tokens a second."""
    assert tokens_per_second(batch=2, tokens=100, seconds=0.5) == 400


def test_the_page_of_prefill_counts_all_rows_tokens():
    case = Case("b2-p100", batch=2, prompt=100, new=1)
    timed = Row("prefill", case.name, "it", "ttft_ms", "ms", 500.0, 400.0, 800.0, ratio=2.0)

    (rate,) = rates(case, [timed])

    assert (rate.median, rate.low, rate.high) == (400.0, 250.0, 500.0)
    assert (rate.metric, rate.unit, rate.ratio) == ("prompt_tokens_per_second", "1/s", 2.0)


def test_a_spread_is_median_and_extremes():
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
