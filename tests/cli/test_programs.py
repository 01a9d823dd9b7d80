"""Compiled programs outlive a run of the command line, where and as long as its user wants."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from jaxkv import programs
from jaxkv.cli import main
from jaxkv.spec import command_programs
from tests.children import ROOT, environment

WORDS = ["generate", "reference", "--prompt", "3 1 4", "--max-new-tokens", "1"]


def settings(monkeypatch, own):
    """Return what JAX is told in place of its settings, where the user's own folder stands."""
    found = {}
    told = SimpleNamespace(jax_compilation_cache_dir=own, update=found.__setitem__)
    monkeypatch.setattr(jax, "config", told)
    return found


def start(folder):
    chosen = {"JAXKV_PROGRAMS": str(folder), "JAX_COMPILATION_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, "-m", "jaxkv", *WORDS],
        cwd=ROOT,
        env=environment() | chosen,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_start_leaves_its_programs_where_it_was_told_until_they_are_cleared(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv(command_programs.VARIABLE, str(tmp_path))
    (tmp_path / "letter.txt").write_text("no program")

    start(tmp_path)
    left = list(tmp_path.glob("jit_prefill-*-cache"))
    main(["programs"])
    main(["programs", "--clear"])

    before, after = capsys.readouterr().out.splitlines()
    assert len(left) == 1
    assert before.startswith(f"{tmp_path}: ")
    assert after == f"{before} deleted"
    assert [each.name for each in tmp_path.iterdir()] == ["letter.txt"]


def test_they_are_kept_under_the_home_folder_unless_the_user_says_otherwise(monkeypatch, capsys):
    monkeypatch.setenv("HOME", "/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(command_programs.VARIABLE, raising=False)

    plain = command_programs.folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    moved = command_programs.folder()
    monkeypatch.setenv(command_programs.VARIABLE, "off")
    main(["programs", "--clear"])

    assert plain == Path("/somebody/.cache/jaxkv/programs")
    assert moved == Path("/caches/jaxkv/programs")
    assert command_programs.folder() is None
    assert "JAXKV_PROGRAMS is 'off'" in capsys.readouterr().out


def test_jax_is_told_the_folder_and_how_large_it_may_grow(tmp_path, monkeypatch):
    told = settings(monkeypatch, None)

    programs.keep(tmp_path / "new", most_bytes=1000)

    assert (tmp_path / "new").is_dir()
    assert told == {
        "jax_compilation_cache_dir": str(tmp_path / "new"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_compilation_cache_max_size": 1000,
    }


@pytest.mark.parametrize("case", ["off", "the user's own", "a file is there"])
def test_jax_is_told_nothing(case, tmp_path, monkeypatch):
    told = settings(monkeypatch, "elsewhere" if case == "the user's own" else None)
    (tmp_path / "taken").write_text("")
    folder = tmp_path / "taken" if case == "a file is there" else tmp_path

    programs.keep(None if case == "off" else folder / "new", most_bytes=1000)

    assert told == {}


def test_a_program_that_an_interrupt_cut_off_is_deleted_and_whole_ones_stay(tmp_path, monkeypatch):
    """JAX writes the time of use last; a program without one would stop all later writing."""
    settings(monkeypatch, None)
    for name in ("whole-cache", "whole-atime", "cut-cache", "letter.txt"):
        (tmp_path / name).write_bytes(b"12345678")

    programs.keep(tmp_path, most_bytes=1000)

    left = {each.name for each in tmp_path.iterdir()} - {".lockfile"}
    assert left == {"whole-cache", "whole-atime", "letter.txt"}
