"""How a command ends where its user, its reader or its machine wants it to."""

import importlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxkv.spec import command_endings, command_generate
from jaxkv.spec.command_endings import ended
from tests.children import ROOT, environment
from tests.tiny import TWINS

ARGUMENTS = ["generate", "reference", "--prompt", "3 1 4", "--max-new-tokens", "2"]
twins = pytest.mark.parametrize("twin", TWINS)

# What runs a command as a terminal does: whoever starts tests in the background may have them, and
# so their children, ignore interrupts.
HEARING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
COMMAND = (
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], None, '__main__')"
)
# A module of the framework that interrupts its own import, as a user's Ctrl-C would.
EARLY = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
# What holds the process for longer than the time of grace, and hears of no signal.
DEAF = """
import os, signal
from jaxkv.spec import command_process
command_process.GRACE_SECONDS = 0.2
def deaf():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [])
    os.kill(os.getpid(), signal.SIGINT)
def load():
    return work
def work():
    try:
        deaf()
        while True:
            pass
    except KeyboardInterrupt:
        while True:
            pass
command_process.run("jaxkv", load)
"""


@pytest.fixture
def hearing():
    """This process hears interrupts, wherever it was started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def child(program, *arguments, folder=ROOT):
    return subprocess.run(
        [sys.executable, "-c", HEARING + program, *arguments],
        cwd=folder,
        env=environment() | {"PYTHONPATH": f"{folder}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@twins
def test_an_interrupt_while_the_framework_is_imported_is_one_line(twin, tmp_path):
    name = {"jaxkv": "jax", "torchkv": "torch"}[twin]
    (tmp_path / f"{name}.py").write_text(EARLY)

    done = child(COMMAND, twin, *ARGUMENTS, folder=tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{twin}: interrupted.\n")


def test_an_interrupt_that_nobody_hears_of_ends_the_process_after_a_time_of_grace():
    """As in a compilation, or where a library swallows it."""
    done = child(DEAF)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "jaxkv: interrupted.\n")


@twins
def test_an_interrupt_during_the_work_is_one_line(twin, hearing, monkeypatch, capsys):
    def interrupted(name, **options):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(command_generate, "open_source", interrupted)

    code = importlib.import_module(f"{twin}.cli").main(ARGUMENTS)

    assert (code, *capsys.readouterr()) == (130, "", f"{twin}: interrupted.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    ("twin", "words"), [("jaxkv", ("info", "reference")), ("torchkv", ("--help",))], ids=TWINS
)
def test_output_that_finds_no_room_is_one_line(twin, words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", twin, *words],
            cwd=ROOT,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 2
    assert done.stderr == f"{twin}: the output cannot be written (No space left on device).\n"


MEMORY = {
    "jax": (
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 19200 bytes."),
        "19200 bytes were asked for at once.",
    ),
    "torch": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12 bytes."),
        "12 bytes were asked for at once.",
    ),
    "cuda": (
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
        "2.00 GiB were asked for at once.",
    ),
    "numpy": (MemoryError(), "it was asked for more than there is."),
}


@pytest.mark.parametrize("case", MEMORY)
def test_too_little_memory_is_one_line_with_what_was_asked_for(case, capsys):
    error, told = MEMORY[case]

    def work():
        raise error

    code = ended("jaxkv", work, str)

    assert code == command_endings.WRONG
    assert capsys.readouterr().err.startswith(f"jaxkv: the memory does not suffice: {told} Ask")


def test_another_error_keeps_its_traceback():
    def work():
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        ended("jaxkv", work, str)
