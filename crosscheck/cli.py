"""The command `crosscheck`."""

import os
import sys
import tempfile
from collections.abc import Sequence
from typing import NoReturn

from crosscheck import budget
from crosscheck.commands import (
    calibrate,
    diagnose,
    listing,
    localize,
    replay,
    run,
    selftest,
)
from crosscheck.commands.opening import check_places
from crosscheck.commands.options import Parser
from crosscheck.errors import CrosscheckError, SubjectError
from crosscheck.exits import MEANING, RAISED, USAGE
from crosscheck.subjects.worker import has_left_calls_behind, leave

COMMANDS = (run, localize, diagnose, selftest, replay, calibrate, listing)
PROGRAM = "crosscheck"
# As a shell has them: 128 and the number of the signal.
INTERRUPTED, READER_LEFT = 130, 141
# "terminate called without an active exception", seen after a whole report (mlx 0.32.4).
ABORTING = frozenset({"mlx.core"})


def command() -> NoReturn:
    """Leave the process with the exit code of `main`.

    At once where a call of the subject never answered: Python's own end would cut its thread off
    inside a framework, which aborts the process and loses the code. At once too where a framework
    was met whose own threads now and then abort that end.
    """
    code = main()
    if has_left_calls_behind() or ABORTING & sys.modules.keys():
        leave(code)
    raise SystemExit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of `crosscheck ...`; wrong usage is one line on stderr."""
    options = parser().read(argv)
    options.began = budget.now()
    if "hypothesis" not in sys.modules:
        # It keeps what it learns in a folder, which would be the user's.
        home = os.path.join(tempfile.gettempdir(), "crosscheck-hypothesis")
        os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", home)
    # A factory's file may import what lies beside the user, as `python file.py` would.
    sys.path.insert(0, os.getcwd())
    try:
        check_places(options)
        code = options.run(options)
        sys.stdout.flush()
        return code
    except SubjectError as error:
        return _refuse(str(error), RAISED)
    except CrosscheckError as error:
        return _refuse(str(error), USAGE)
    except BrokenPipeError:
        # Whoever read the output has gone: nothing is left to say, and Python's own flush at the
        # end must not say it.
        _silence()
        return READER_LEFT
    except OSError as error:
        # Only a full disk under stdout gets here: files have words of their own.
        _silence()
        return _refuse(f"the output can't be written: {error.strerror}.", USAGE)
    except KeyboardInterrupt:
        return _refuse("interrupted.", INTERRUPTED)


def _silence() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(message: str, code: int) -> int:
    print(f"{PROGRAM}: {' '.join(message.split())}", file=sys.stderr)
    return code


def parser() -> Parser:
    """Return the parser of the command line."""
    codes = "; ".join(f"{code} {words}" for code, words in MEANING.items())
    top = Parser(
        PROGRAM,
        description="Find, localize and name faults of a decoder's KV cache.",
        epilog=f"Exit codes: {codes}.",
    )
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser)
    for each in COMMANDS:
        each.add(commands)
    return top


if __name__ == "__main__":
    command()
