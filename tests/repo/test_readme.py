"""README's programs run in a process of their own and print what README says."""

import re

import pytest

from tests.children import ROOT, output_of

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
PROGRAMS = [text for language, text in BLOCKS if language == "python"]


def run(program: str) -> str:
    return output_of("-c", program)


def test_the_first_program_prints_what_readme_says():
    printed = BLOCKS[1][1]

    assert run(PROGRAMS[0]) == printed


def test_the_first_program_has_twelve_lines_and_stands_on_the_first_screen():
    lines = [line for line in PROGRAMS[0].splitlines() if line.strip()]

    assert len(lines) <= 12
    assert README.splitlines().index("```python") < 15


def test_the_second_program_keeps_the_old_cache():
    assert run(PROGRAMS[1]) == "[3] [5] [3]\n"


@pytest.mark.parametrize("command", ["jaxkv", "torchkv"])
def test_the_options_that_readme_names_exist(command):
    from jaxkv.spec.command import parser

    text = re.search(r"Both commands take (.*?)\. Models", README, re.DOTALL)
    options = re.findall(r"--[a-z-]+", text.group(1))
    known = parser(command).parse_args(
        ["generate", "m", "--prompt", "p", "--dtype", "float64", "--capacity", "3", "--no-cache"]
    )

    assert len(options) >= 4
    assert {option[2:].replace("-", "_") for option in options} <= set(vars(known))


def test_the_memory_page_shows_what_the_command_prints(capsys):
    from jaxkv.cli import main

    assert main(["memory", "--examples"]) == 0

    page = (ROOT / "docs" / "memory.md").read_text()
    assert capsys.readouterr().out in page
