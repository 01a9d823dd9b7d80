"""docs/findings.md: each script shows what the page says, alone, beside a control that is right."""

import math
import re
import runpy
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.wild.hunt import TABLE

HERE = Path(__file__).parent / "findings"
PAGE = (Path(__file__).parents[2] / "docs" / "findings.md").read_text("utf-8")
SCRIPTS = sorted(HERE.glob("*.py"))
PINS = re.compile(r"^pins: (.*)$", re.MULTILINE)
# What other packages and releases show is run by `make test-wild`, in their environments.
ELSEWHERE = ("keras", "litgpt", "x-transformers", "optimum")


def pins(script):
    return PINS.search(script.read_text("utf-8"))[1]


def shows(printed):
    """Return the error that a script calls wrong, and those of its controls."""
    wrong, *right = re.findall(r": ([\d.]+e[+-]\d+|nan|inf)", printed)
    return float(wrong), [float(each) for each in right]


@pytest.fixture
def gradients():
    """A script switches gradients off for its whole process."""
    import torch

    yield
    torch.set_grad_enabled(True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "script",
    [each for each in SCRIPTS if not any(name in pins(each) for name in ELSEWHERE)],
    ids=lambda script: script.stem,
)
def test_a_script_shows_what_is_wrong_beside_what_is_right(script, capsys, gradients):
    name, release = pins(script).split()[0].split("==")
    assert release == version(name)

    runpy.run_path(str(script))

    wrong, right = shows(capsys.readouterr().out)
    assert math.isnan(wrong) or wrong > 1e-3
    assert all(each < 1e-4 for each in right)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_short_and_stands_in_the_page(script):
    assert len(script.read_text("utf-8").splitlines()) < 40
    assert f"| `{script.stem}` |" in PAGE


def test_the_page_names_no_script_that_is_not_there():
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))

    assert named == {script.stem for script in SCRIPTS}


def test_every_line_of_the_hunt_says_what_was_run_and_what_it_showed():
    head, *lines = (line.split("\t") for line in TABLE.read_text("utf-8").splitlines())

    assert len(head) == 5
    for release, family, cache, dtype, shown in lines:
        assert re.fullmatch(r"[\w-]+ [\d.]+", release)
        assert all((family, cache, dtype))
        cell = r"[\w.]+=(agrees|error|inconclusive|(fail|documented)\([^ ]+\))"
        assert shown.startswith("not run: ") or re.fullmatch(rf"{cell}( {cell})*", shown)


def test_a_script_that_shows_nothing_is_seen():
    assert shows("wrong: 1.1e+00, first 6; with position_ids: 2.0e-07") == (1.1, [2e-07])
    assert math.isnan(shows("wrong: nan; in float32: 1.0e-07")[0])
