"""jaxkv of another revision answers as today's, from its own files, and is refused if it cannot."""

from contextlib import closing
from pathlib import Path

import pytest

from bench import elsewhere, elsewhere_worker
from bench.__main__ import main
from bench.elsewhere import RevisionRunner
from jaxkv.spec.errors import SourceError
from jaxkv.spec.source import open_source
from torchkv.weights import from_arrays

PROMPTS = [[3, 1, 4, 1], [5, 9, 2, 6]]


def test_the_revision_of_today_gives_the_ids_of_today_from_files_of_its_own():
    checkpoint = open_source("reference")
    model = from_arrays(checkpoint.config, checkpoint.weights)
    today = elsewhere_worker.Served("torchkv", model)
    request = {"do": "continue", "prompts": PROMPTS, "budget": 5}

    with closing(RevisionRunner("HEAD", model="reference", twin="torchkv")) as runner:
        own = runner.prepare(PROMPTS, 5)()
        on_a_cache = runner.prepare(PROMPTS, 5, capacity=64)()
        after_it = runner.prepare(PROMPTS, 5)()

    assert own == on_a_cache == after_it == today.answer(request)["new_tokens"]


def test_a_process_that_ends_is_told_with_its_exit_code(monkeypatch):
    monkeypatch.setattr(elsewhere, "check_out", lambda revision, folder: None)

    with pytest.raises(SourceError, match=r"(?s)torchkv@HEAD.*(expected|ended)"):
        RevisionRunner("HEAD", model="no-such-model", twin="torchkv")


def test_packages_of_another_folder_are_not_taken_for_the_revision(monkeypatch):
    # An empty checkout: python then finds the packages that are installed, today's.
    monkeypatch.setattr(elsewhere, "check_out", lambda revision, folder: None)

    with pytest.raises(SourceError, match="was imported from"):
        RevisionRunner("HEAD", model="reference", twin="torchkv")


def test_a_checkout_is_removed_in_the_end():
    runner = RevisionRunner("HEAD", model="reference", twin="torchkv")
    folder = Path(runner.folder)
    assert (folder / "torchkv" / "model.py").exists()

    runner.close()

    assert not folder.exists()


def test_an_unknown_revision_is_refused_by_name_and_with_exit_code_2(capsys):
    assert main(["decode", "--quick", "--against", "no-such-revision"]) == 2

    told = capsys.readouterr().err
    assert "'no-such-revision'" in told
    assert "git log" in told
