"""The process of a command line, and how it ends once its user interrupts it.

Python hears of a signal between two of its own steps: a compilation runs to its end first, and its
threads crash an interpreter that ends beside them. So an interrupted process unwinds if it can, in
a time of grace in which files are closed, and leaves at once in any case.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

# As a shell has it: 128 and the number of the signal.
INTERRUPTED = 130
GRACE_SECONDS = 2.0
_SHOW_CURSOR = "\x1b[?25h"


def run(program: str, load: Callable[[], Callable[[], int]]) -> NoReturn:
    """Leave the process with the exit code of a command.

    Args:
        program: For messages.
        load: Imports the command and returns it: an interrupt may come before it is there.
    """
    heard, caught = threading.Event(), threading.Event()
    _listen(program, heard, caught)
    code = INTERRUPTED
    try:
        code = load()()
    except BaseException:
        # An import may have made another error of it.
        if not heard.is_set():
            raise
        say_interrupted(program)
    if code == INTERRUPTED:
        caught.set()
        _leave()
    raise SystemExit(code)


def say_interrupted(program: str) -> None:
    """Print that there was an interrupt, on stderr."""
    print(f"{program}: interrupted.", file=sys.stderr)


def _listen(program: str, heard: threading.Event, caught: threading.Event) -> None:
    """Have a thread that hears of an interrupt at once, whatever the main one is doing."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # behind nohup, or in the background of a shell, there is none
    listening, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, lambda *_: _raise(heard))

    def wait() -> None:
        with told, listening:
            if not listening.recv(1):
                return
            # Whoever swallows the interrupt shall not print it either.
            sys.unraisablehook = lambda _: None
            if not caught.wait(GRACE_SECONDS):
                say_interrupted(program)
                _leave()

    threading.Thread(target=wait, daemon=True).start()


def _raise(heard: threading.Event) -> None:
    heard.set()
    raise KeyboardInterrupt


def _leave() -> NoReturn:
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        sys.stdout.flush()
        # A bar hides it.
        sys.stderr.write(_SHOW_CURSOR if sys.stderr.isatty() else "")
        sys.stderr.flush()
    os._exit(INTERRUPTED)
