"""Programs in processes of their own, which compute and compile as a user's would."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SUITE_ONLY = ("JAX_ENABLE_X64", "XLA_FLAGS")
# Only so that a hang ends: no test asks how fast a machine is.
HANGS_AFTER = 900.0


def environment() -> dict[str, str]:
    """Return this process's environment without what only the suite sets."""
    return {name: value for name, value in os.environ.items() if name not in SUITE_ONLY}


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Return the ended process of `python arguments`, in the repository's root."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER,
        check=False,
    )


def output_of(*arguments: str) -> str:
    """Return what `python arguments` printed; it must succeed."""
    done = run_python(*arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
