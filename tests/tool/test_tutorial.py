"""docs/tutorial.md and docs/ci.md, block by block, from the built wheel in a fresh environment."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from crosscheck.exits import MEANING

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
# The page promises verdicts, not minutes: other tests share the machine.
PATIENCE = " --budget 600s"
NEXT_STEP = re.compile(r"Look for |crosscheck replay |Raise --budget|Use |Give |Run ")


def blocks(page):
    return BLOCK.findall((ROOT / "docs" / page).read_text("utf-8"))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The page's first block: a wheel, and an environment that has only what the wheel needs."""
    folder = tmp_path_factory.mktemp("fresh")
    build, create, install = blocks("tutorial.md")[0][1].splitlines()
    done(build.replace("path/to/jaxkv", str(ROOT)), folder)
    done(create, folder)
    # The dependencies, which are not this test's subject, are the project's environment's.
    paths = sysconfig.get_paths(vars={"base": str(folder / "fresh")}, scheme="venv")
    (Path(paths["purelib"]) / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    done(install, folder, PIP_NO_DEPS="1")
    where = done("fresh/bin/python -c 'import crosscheck; print(crosscheck.__file__)'", folder)
    assert where.stdout.startswith(str(folder))
    return folder


def run(command, folder, **settings):
    path = f"{folder / 'fresh' / 'bin'}{os.pathsep}{Path(sys.executable).parent}"
    known = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")}
    known |= {"PATH": f"{path}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"} | settings
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=known, capture_output=True, text=True, timeout=900
    )


def done(command, folder, **settings):
    result = run(command, folder, **settings)
    assert result.returncode == 0, result.stderr
    return result


def follow(page, folder, start=0):
    """Do what the page says; return what each command printed, with what the page shows of it."""
    shown = []
    for language, text in blocks(page)[start:]:
        if language in ("python", "text"):
            write(text, folder)
        elif language == "diff":
            change(text, folder)
        elif language == "sh":
            command = text.strip()
            command += PATIENCE if " run " in command and "echo" not in command else ""
            command = command.replace("--save failures;", f"--save failures{PATIENCE};")
            result = run(command, folder)
            shown.append((command, result.stdout + result.stderr, []))
        else:
            shown[-1][2].extend(text.splitlines())
    return shown


def write(text, folder):
    """Write a file whose name stands in the first line; a second part takes `make`'s place."""
    head, _, body = text.partition("\n")
    name, _, instead = head.removeprefix("# ").partition(", instead of ")
    path = folder / name
    if instead:
        body = path.read_text("utf-8").partition(f"def {instead}(")[0] + body
    path.write_text(body, "utf-8")


def change(text, folder):
    name, *lines = text.splitlines()
    old, new = ("\n".join(x[1:] for x in lines if x[0] == sign) for sign in "-+")
    before = (folder / name).read_text("utf-8")
    assert before.count(old) == 1
    (folder / name).write_text(before.replace(old, new), "utf-8")


def missing(printed, lines):
    """Return the lines that the page shows and the command did not print, in this order."""
    rest, left = squeezed(printed), []
    for line in lines:
        _, found, after = rest.partition(squeezed(line))
        rest = after if found else rest
        left += [] if found else [line]
    return left


def squeezed(text):
    return " ".join(text.split())


@pytest.fixture(scope="module")
def tutorial(fresh):
    return follow("tutorial.md", fresh, start=1)


def test_every_block_of_the_tutorial_does_what_stands_below_it(tutorial):
    wrong = [(c, missing(out, lines), out) for c, out, lines in tutorial if missing(out, lines)]

    assert len(tutorial) == 8
    assert wrong == []


def test_every_failure_on_the_way_says_what_to_do_next(tutorial):
    failures = [out for _, out, _ in tutorial if "DISAGREE" in out]

    assert len(failures) == 4
    for out in failures:
        for part in out.split("DISAGREE ")[1:]:
            assert NEXT_STEP.search(part), part


def test_the_programs_of_the_tutorial_are_about_sixty_lines():
    programs = [text for language, text in blocks("tutorial.md") if language == "python"]

    assert all(len([x for x in text.splitlines() if x.strip()]) <= 60 for text in programs)


def test_every_block_of_the_ci_page_does_what_stands_below_it(fresh, tutorial):
    folder = fresh / "ci"
    folder.mkdir()
    (folder / "fresh").symlink_to(fresh / "fresh")
    write(next(text for language, text in blocks("tutorial.md") if language == "python"), folder)

    steps = follow("ci.md", folder)

    wrong = [(c, missing(out, lines), out) for c, out, lines in steps if missing(out, lines)]
    assert wrong == []


def test_the_exit_codes_of_the_ci_page_are_those_of_the_command():
    page = (ROOT / "docs" / "ci.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d) \| (.*?) \|", page, re.MULTILINE)

    assert {int(code): words for code, words in rows} == MEANING


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        ("run decoder.py:mke", "it offers"),
        ("run decoder.py", "expected hf:DIR"),
        ("run nowhere.py:make", "does not exist"),
        ("run decoder.py:make --relations cache.partitoin", "Did you mean 'cache.partition'?"),
    ],
    ids=["factory", "colon", "file", "relation"],
)
def test_a_mistyped_command_says_what_was_expected(fresh, tutorial, arguments, step):
    result = run(f"crosscheck {arguments}", fresh)

    assert result.returncode == 2
    assert step in result.stderr


def test_a_page_that_promises_too_much_is_seen():
    assert missing("cache.full pass\ncache.partition fail", ["cache.full  pass"]) == []
    assert missing("cache.full pass", ["cache.full pass", "PASS"]) == ["PASS"]
    assert missing("b a", ["a", "b"]) == ["b"]


def test_the_wheel_holds_the_pages_templates(fresh):
    """What is no Python file is easily left out of a wheel."""
    (wheel,) = (fresh / "dist").glob("*.whl")
    shutil.unpack_archive(wheel, fresh / "unpacked", "zip")
    names = {path.name for path in (ROOT / "crosscheck" / "page").glob("*.jinja")}

    assert names
    assert names <= {path.name for path in (fresh / "unpacked/crosscheck/page").iterdir()}
