"""docs/own-decoder.md: both programs run, print what the page says, and agree."""

import re

import pytest

from tests.children import ROOT, output_of

PAGE = (ROOT / "docs" / "own-decoder.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
PROGRAMS = [text for language, text in BLOCKS if language == "python"]
PRINTED = [text for language, text in BLOCKS if not language]


@pytest.mark.parametrize("number", [0, 1], ids=["jaxkv", "torchkv"])
def test_a_program_of_the_page_prints_what_it_says(number):
    assert output_of("-c", PROGRAMS[number]) == PRINTED[number]


@pytest.mark.parametrize("program", PROGRAMS, ids=["jaxkv", "torchkv"])
def test_a_decoder_of_ones_own_takes_about_sixty_lines(program):
    assert len([line for line in program.splitlines() if line.strip()]) <= 65


def test_both_twins_and_layouts_print_the_same_ids():
    ids = [line.split("]]")[0] for text in PRINTED for line in text.splitlines()]

    assert len(ids) == 4
    assert len(set(ids)) == 1
