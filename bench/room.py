"""Memory: what is free, what a process took at most, and how frameworks say that it is used up."""

import resource
import sys
from collections.abc import Callable
from pathlib import Path

# The words of JAX's and torch's allocators, which raise RuntimeErrors.
WORDS = ("RESOURCE_EXHAUSTED", "out of memory", "can't allocate memory", "not enough memory")


def available_bytes() -> int:
    """Return the bytes that a process can still take without pushing others out.

    Where the system does not tell, a number that refuses nothing.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return sys.maxsize
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kilobytes["MemAvailable"] * 1024


def peak_bytes(children: bool = False) -> int:
    """Return the largest resident size so far: of this process, or of its largest child."""
    who = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def out_of_memory(call: Callable[[], object]) -> str | None:
    """Run a call and return None, or how it ran out of memory; other errors are passed on."""
    try:
        call()
    except MemoryError as error:
        return f"out of memory: {error}"
    except RuntimeError as error:
        if not any(word in str(error) for word in WORDS):
            raise
        return f"out of memory: {str(error).splitlines()[0][:120]}"
    return None
