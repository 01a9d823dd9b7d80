"""`python -m bench fragmentation`: its counts against numbers worked out by hand."""

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.fragmentation import measure, read_lengths
from jaxkv.spec.errors import RequestError

LENGTHS = Path(__file__).parents[2] / "bench" / "lengths"


def test_two_requests_at_once_are_counted_after_every_step():
    """Pages of 4. A: 3 tokens, then 4. B: 5 tokens, then 6, 7, which it holds at its end.

    Prefill: A 3, B 5: pages 1 + 2, tokens 8, both last pages partly filled.
    Step: A 4, B 6: pages 1 + 2, tokens 10, B's partly filled. A is done.
    Step: B 7: pages 2, tokens 7, B's partly filled. B is done.
    """
    found = measure([(3, 2), (5, 3)], page_size=4, rows=2, bytes_a_token=10)

    assert found.steps == 3
    assert found.tokens_mean == pytest.approx(25 / 3)
    assert found.pages_mean == pytest.approx(8 / 3)
    assert found.pages_peak == 3
    assert found.partial_mean == pytest.approx(4 / 3)
    assert found.slack_mean == pytest.approx((4 + 2 + 1) / 3)
    assert found.slack_share == pytest.approx(7 / 32)
    assert (found.capacity, found.reserved) == (7, 14)
    assert found.reserved_slack_mean == pytest.approx(14 - 25 / 3)
    assert found.peak_bytes == 3 * 4 * 10
    assert found.reserved_bytes == 14 * 10
    # Two rows of two columns, a count for each of five pages, two marks and one counter, int32.
    assert found.metadata_bytes == 4 * (4 + 5 + 2 + 1)


def test_a_request_waits_for_a_row_and_takes_the_pages_that_another_gave_back():
    """One row. A: 2, 3 tokens, done. B: 4 tokens, done at once, since it puts out one token."""
    found = measure([(2, 2), (4, 1)], page_size=2, rows=1)

    assert found.steps == 3
    assert found.tokens_mean == pytest.approx((2 + 3 + 4) / 3)
    assert found.pages_mean == pytest.approx((1 + 2 + 2) / 3)
    assert found.pages_peak == 2
    assert found.partial_mean == pytest.approx(1 / 3)
    assert found.slack_mean == pytest.approx(1 / 3)


def test_a_page_of_one_token_has_no_slack():
    found = measure([(3, 4), (9, 2), (1, 7)], page_size=1, rows=2)

    assert found.slack_mean == found.partial_mean == 0
    assert found.tokens_mean == found.pages_mean


def test_the_command_prints_what_it_counted_and_no_universal_number(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "lengths.json").write_text("[[3, 2], [5, 3]]")
    given = ["--lengths", str(tmp_path / "lengths.json"), "--rows", "2", "--page-sizes", "4", "7"]

    code = main(["fragmentation", *given, "--json", str(tmp_path / "out.jsonl")])

    assert code == 0
    printed = capsys.readouterr().out
    assert "21.88%" in printed
    assert "others find other numbers" in printed
    first, *lines = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first["environment"]["versions"]["jax"]
    peaks = {line["subject"]: line["median"] for line in lines if line["metric"] == "pages_peak"}
    assert list(peaks) == ["pages of 4", "pages of 7"]
    assert peaks["pages of 4"] == 3


@pytest.mark.parametrize("name", ["synthetic.json", "agent-steps.json"])
def test_the_lengths_that_come_along_can_be_read(name):
    lengths = read_lengths(LENGTHS / name)

    assert len(lengths) == 200
    assert len(set(lengths)) > 150


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds no list of [prompt, new] with an entry. Write one pair for each request."),
        ("[[3]]", "entry 0 of {path} is [3], expected [prompt, new], whole numbers of at least 1."),
        (
            "[[3, 2], [3, 0]]",
            "entry 1 of {path} is [3, 0], expected [prompt, new], whole numbers of at least 1.",
        ),
    ],
    ids=["empty", "no-pair", "no-token"],
)
def test_lengths_that_cannot_be_are_refused(tmp_path, text, message):
    path = tmp_path / "lengths.json"
    path.write_text(text)

    with pytest.raises(RequestError) as error:
        read_lengths(path)

    assert str(error.value).endswith(message.format(path=path))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"rows": 0}, "fragmentation: rows is 0, expected at least 1."),
        ({"page_size": 0}, "init: page_size is 0, expected at least 1."),
        (
            {"capacity": 6},
            "fragmentation: a request holds 7 tokens, capacity 6. Raise it by 1.",
        ),
    ],
    ids=["rows", "page-size", "capacity"],
)
def test_sizes_that_cannot_be_are_refused(sizes, message):
    with pytest.raises(RequestError) as error:
        measure([(5, 3)], **{"page_size": 4, "rows": 2, **sizes})

    assert str(error.value) == message
