"""The page of a report: it says what the JSON says, asks for nothing, and draws the edges."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from crosscheck.check import check
from crosscheck.errors import CrosscheckError
from crosscheck.page import render, write_html
from crosscheck.page.plots import edges, error_lines, error_map, margin_strip
from crosscheck.page.svg import INK
from crosscheck.selftest import selftest
from tests.tool.user_model import Decoder

MEGABYTE = 2**20


@pytest.fixture(scope="module")
def data():
    report = check(
        Decoder("restarted"), relations="cache.partition,cache.full", dtypes=("float64",)
    )
    return json.loads(json.dumps(report.to_json()))


def failing_curve(data):
    return next(row["curve"] for row in data["rows"] if row["curve"] is not None)


def test_a_page_tells_every_row_with_its_verdict(data):
    text = render(data)

    for row in data["rows"]:
        assert row["relation"] in text
        assert f'class="verdict {row["verdict"]}"' in text
    assert "pos.reset" in text
    kills = [str(len(row["kills"]) or "") for row in data["rows"]]
    assert re.findall(r'data-name="planted faults seen">(.*?)<', text) == kills
    assert any(kills)


def test_a_page_is_self_contained_and_small(data):
    text = render(data)

    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "@import" not in text
    assert "<script" not in text
    assert len(text) < 3 * MEGABYTE


def test_a_page_can_be_read_with_a_keyboard(data):
    text = render(data)

    assert 'class="skip" href="#main"' in text
    # Whatever scrolls can be reached, and links lead somewhere.
    assert text.count('class="scroll" tabindex="0"') == text.count('class="scroll"')
    assert text.count('<figure tabindex="0">') == text.count("<figure") > 0
    for target in re.findall(r'<a [^>]*href="#([^"]+)"', text):
        assert f'id="{target}"' in text


def test_a_subject_cannot_write_into_the_page(data):
    assert "<b>injected" not in render({**data, "subject": "<b>injected"})


@pytest.mark.parametrize("draw", [error_map, error_lines, margin_strip])
def test_plots_are_svg_in_the_readers_ink(data, draw):
    svg = draw(failing_curve(data))

    ElementTree.fromstring(svg)
    assert "currentColor" in svg
    assert INK not in svg


def test_chunks_pages_windows_and_pads_are_edges(data):
    curve = {
        **failing_curve(data),
        "points": {"logits": [[0.0] * 12]},
        "chunks": [0, 5, 9],
        "meta": {"page_size": 4, "windows": [None, 6], "pads": [2, 0]},
    }

    assert edges(curve) == {"chunk": [5, 9], "page": [4, 8], "window": [6], "pad": [2]}


def test_what_is_not_finite_or_not_compared_can_be_drawn():
    curve = {
        "points": {"k.0": [[None, 0.0, "inf"]], "logits": [[1e-3, "inf", None]]},
        "chunks": [0, 1],
        "meta": {},
        "allowed": 1e-9,
        "margins": [[0.5, None, "nan"]],
    }

    assert all("<svg" in draw(curve) for draw in (error_map, error_lines, margin_strip))


def test_what_is_allowed_and_the_noise_are_lines_across(data):
    curve = {**failing_curve(data), "allowed": 1e-9, "noise": 0.0}
    quiet, noisy = error_lines(curve), error_lines({**curve, "noise": 1e-12})

    assert ">allowed<" in quiet
    assert ">noise of the uncached forward<" not in quiet
    assert ">noise of the uncached forward<" in noisy


def test_a_detection_matrix_has_a_page_of_its_own():
    matrix = selftest(Decoder(), relations="cache.partition", faults="pos.reset,mask.top_left")

    text = render(matrix.to_json())

    assert f"{matrix.killed} of {matrix.planted}" in text
    assert "pos.reset" in text


def test_a_page_that_cannot_be_written_says_where_it_should_have_gone(data, tmp_path):
    with pytest.raises(CrosscheckError, match=r"--html .*nowhere"):
        write_html(data, tmp_path / "nowhere" / "page.html")


@pytest.mark.parametrize("verdict", ["unsupported", "pass"])
def test_a_page_says_that_padding_was_not_checked(data, verdict):
    closed = data["rows"][0] | {"relation": "pad.left", "verdict": verdict, "reason": "no mask"}

    text = render(data | {"rows": [*data["rows"], closed]})

    assert ("Padding was not checked: no mask." in text) == (verdict == "unsupported")


def test_a_page_says_which_case_its_numbers_are_of_and_which_its_pictures(data):
    (row,) = (row for row in data["rows"] if row["curve"] is not None)
    curve = row["curve"]
    text = " ".join(render(data).split())

    assert curve["shrunk"]
    assert curve["smallest"][0] == row["comparison"]["names"][0]
    smallest, found = (" against ".join(curve[which]) for which in ("smallest", "words"))
    assert f"<dt>sides</dt><dd>{smallest} (the smallest case that fails)</dd>" in text
    assert f"<dt>as first found</dt><dd>{found}: the diagnosis and the pictures" in text
    assert f"<figcaption>Of the case as first found, {found}." in text
