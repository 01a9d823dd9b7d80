"""docs/crosscheck.md says what the registries hold, and its programs run."""

import re
import sys
import types
from pathlib import Path

import pytest

from crosscheck.check import check
from crosscheck.cli import main, parser
from crosscheck.exits import MEANING
from crosscheck.pytest_plugin import PROFILES
from crosscheck.relations import RELATIONS
from crosscheck.tables import adapter_rows, fault_rows, markdown, relation_rows
from tests.tool.checking import row_of
from tests.tool.user_model import Decoder

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "crosscheck.md").read_text("utf-8")
TABLES = {"relations": relation_rows, "faults": fault_rows}


def marked(name, page=PAGE):
    """Return what stands in the page between a mark and its end."""
    found = re.search(rf"<!-- {name} -->\n(.*?)(?:<!-- end -->|\Z)", page, re.DOTALL)
    assert found, name
    return found[1]


def program(name, page=PAGE):
    return re.search(r"```python\n(.*?)```", marked(name, page), re.DOTALL)[1]


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_the_registries(name):
    """Write them anew with `python -m crosscheck list relations --markdown`."""
    assert marked(name) == markdown(TABLES[name]())


def test_the_adapter_of_the_page_is_short_and_makes_a_subject(monkeypatch):
    class Model:
        def __init__(self):
            self.decoder = Decoder()

        def forward(self, ids):
            return self.decoder.full(ids)

        def new_cache(self, batch, capacity):
            return Cache(self.decoder.init(batch, capacity))

        def forward_cached(self, cache, ids):
            logits, state = self.decoder.step(cache.state, ids)
            return logits, Cache(state)

    class Cache:
        def __init__(self, state):
            self.state = state

        def reordered(self, rows):
            return Cache(Decoder().gather(self.state, rows))

    package = types.ModuleType("my_package")
    package.load = Model
    monkeypatch.setitem(sys.modules, "my_package", package)
    text, names = program("adapter"), {}

    exec(text, names)
    subject = names["make"]()

    assert len([line for line in text.splitlines() if line.strip()]) <= 15
    assert {"cache", "chunk", "gather"} <= subject.info.capabilities
    report = check(subject, relations="cache.full,cache.fork_gather", budget_seconds=20)
    assert report.verdict == "pass"


@pytest.mark.parametrize("asks", [True, False], ids=["refusal asked for", "not asked"])
def test_an_adapter_in_fifteen_lines_asks_whether_it_was_refused(monkeypatch, asks):
    """docs/adapters.md: a no is right, and one that nobody asks for makes the model wrong."""

    class Cache:
        def __init__(self, state):
            self.state = state

        def crop(self, length):
            return length == self.state[0].shape[1]

    class Model:
        def new_cache(self, batch):
            return Cache(Decoder().init(batch))

        def forward(self, ids, use_cache):
            if not use_cache:
                return Decoder().full(ids)
            logits, self.cache.state = Decoder().step(self.cache.state, ids)
            return logits

    package = types.ModuleType("my_package")
    package.load = Model
    monkeypatch.setitem(sys.modules, "my_package", package)
    page, names = (DOCS / "adapters.md").read_text("utf-8"), {}
    adapter, verb = program("adapter", page), program("verb", page)
    verb = verb if asks else verb.replace("if not cache.crop", "if None is cache.crop")

    exec(adapter.replace("persistent", "rollback=rollback, persistent") + verb, names)
    report = check(names["make"](), relations="cache.partition,cache.rollback", budget_seconds=20)

    assert len([line for line in adapter.splitlines() if line.strip()]) <= 15
    assert row_of(report, "cache.partition").verdict in ("pass", "blind")
    assert (row_of(report, "cache.rollback").verdict == "fail") != asks


def test_the_page_of_adapters_names_every_adapter():
    page = (DOCS / "adapters.md").read_text("utf-8")

    for name in ("litgpt", "x-transformers", "keras-hub", "torchtune", "mlx-lm", "ONNX", "Linen"):
        assert name in page
        assert any(name in words for row in adapter_rows() for words in row.values())


def test_the_relation_of_the_page_sees_the_fault_that_it_names():
    names = {}
    try:
        exec(program("relation"), names)
        right = check(Decoder(), relations="my.two_halves", budget_seconds=20)
        wrong = check(Decoder("restarted"), relations="my.two_halves", budget_seconds=20)
    finally:
        RELATIONS.pop("my.two_halves", None)

    assert (right.verdict, wrong.verdict) == ("pass", "fail")
    assert right.rows[0].kills == ("pos.reset",)


def test_the_options_of_the_page_exist():
    usage = re.search(r"crosscheck run SUBJECT.*?\n\n", PAGE, re.DOTALL)[0]
    options = set(re.findall(r"--[a-z-]+", usage.split("crosscheck localize")[0]))
    known = vars(parser().parse_args(["run", "a.py:b"]))

    assert len(options) >= 8
    assert {option[2:].replace("-", "_") for option in options} <= known.keys()


def test_every_command_of_the_page_exists():
    named = set(re.findall(r"^    crosscheck (\w+)", PAGE, re.MULTILINE))

    assert named == {"run", "localize", "diagnose", "selftest", "replay", "calibrate", "list"}


def test_every_exit_code_stands_in_the_page():
    codes = set(re.findall(r"\| (\d) \|$", PAGE, re.MULTILINE))

    assert codes == {str(code) for code in MEANING}


def test_the_profiles_of_the_page_are_those_of_the_plugin():
    line = re.search(r"Profiles: (.*?)\. Blind", PAGE, re.DOTALL)[1]

    assert re.findall(r"`(\w+)`", line) == list(PROFILES)


def test_what_a_model_may_come_from_stands_in_the_page():
    forms = [row["subject"] for row in adapter_rows() if ":" in row["subject"]]

    assert len(forms) >= 4
    assert all(form.split(":")[0].split("?")[0] in PAGE for form in forms)


def test_list_prints_the_tables_in_markdown(capsys):
    assert main(["list", "faults", "--markdown"]) == 0

    assert capsys.readouterr().out == markdown(fault_rows())


def test_a_bar_in_a_cell_does_not_break_a_table():
    assert markdown([{"a": "|x|"}]) == "| a |\n|---|\n| \\|x\\| |\n"
