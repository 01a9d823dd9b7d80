"""How a command line's work ends: exit codes, and one line for what went wrong."""

import errno
import os
import re
import sys
from collections.abc import Callable

from jaxkv.spec.command_process import INTERRUPTED, say_interrupted
from jaxkv.spec.errors import JaxkvError

WRONG = 2
# As a shell has it: 128 and the number of the signal.
READER_LEFT = 141
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
# JAX's, PyTorch's on a CPU and on CUDA, as of the versions in constraints.txt.
_NO_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|can't allocate memory|out of memory", re.IGNORECASE)
_ASKED = re.compile(r"(?:allocat\w+|allocate) ([\d.]+ ?(?:bytes|[KMGT]i?B))")


def ended(program: str, work: Callable[[], None], reword: Callable[[str], str]) -> int:
    """Return the exit code of a command: 0, or another after one line for an error of ours.

    2 for wrong input, for too little memory and for output that cannot be written; 130 if its user
    interrupted it; 141, in silence, if nobody reads the output any more. Other errors pass through.

    Args:
        program: For messages.
        work: The command.
        reword: Says what a message says in the words of a command line.
    """
    try:
        try:
            work()
        finally:
            sys.stdout.flush()
    except JaxkvError as error:
        return _refuse(program, reword(str(error)))
    except BrokenPipeError:
        _close_output()
        return READER_LEFT
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        _close_output()
        return _refuse(program, f"the output cannot be written ({error.strerror}).")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not _NO_MEMORY.search(str(error)):
            raise
        return _refuse(program, _too_little(str(error)))
    except KeyboardInterrupt:
        say_interrupted(program)
        return INTERRUPTED
    return 0


def _refuse(program: str, message: str) -> int:
    print(f"{program}: {message}", file=sys.stderr)
    return WRONG


def _close_output() -> None:
    # Python would complain once more when it flushes at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _too_little(message: str) -> str:
    asked = _ASKED.search(message)
    size = f"{asked[1]} were asked for at once" if asked else "it was asked for more than there is"
    return (
        f"the memory does not suffice: {size}. Ask for fewer or shorter texts, or for a smaller "
        "cache."
    )
