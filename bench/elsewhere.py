"""jaxkv of another git revision as a subject: `--against REV`, interleaved with today's.

It runs in a process of its own, from a checkout of that revision; a call's time holds one line of
JSON each way, some tenths of a millisecond, which cancel in a step's time.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.runner import Rows, Run
from bench.worker import Worker
from jaxkv.spec.errors import SourceError

WORKER = Path(__file__).with_name("elsewhere_worker.py")
ROOT = WORKER.parent.parent
PACKAGES = ("jaxkv", "torchkv")


class RevisionRunner:
    """A twin as of a git revision; `close` ends its process and removes its checkout."""

    model = None

    def __init__(self, revision: str, *, model: str = "smollm2", twin: str = "jaxkv"):
        self.name = f"{twin}@{revision}"
        self._resources = ExitStack()
        try:
            folder = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            self.folder = folder
            check_out(revision, Path(folder))
            self._worker = self._start(Path(folder), model, twin)
            found = self._worker.hear()["folder"]
            if Path(found) != Path(folder).resolve():
                raise SourceError(
                    f"--against: {twin} was imported from {found}, expected {folder}. Run it in an "
                    "environment where the package does not come first on the path."
                )
        except BaseException:
            self.close()
            raise

    def prepare(self, prompts: Rows, budget: int, *, capacity: int | None = None) -> Run:
        """Return the call that continues the prompts; a given capacity is allocated here."""
        request = {"prompts": [list(row) for row in prompts], "budget": budget}
        if capacity is not None:
            self._worker.ask({"do": "allocate", "capacity": capacity, **request})
        return lambda: self._worker.ask({"do": "continue", **request})["new_tokens"]

    def close(self) -> None:
        """End the process and remove the checkout."""
        self._resources.close()

    def _start(self, folder: Path, model: str, twin: str) -> Worker:
        # -P: the worker's own folder must not come before the other revision's packages.
        worker = Worker(
            self.name,
            [sys.executable, "-P", str(WORKER), model, twin],
            env={**os.environ, "PYTHONPATH": str(folder)},
            cwd=str(folder),
            advice=(
                "A revision that cannot run this benchmark's model, or has another interface, "
                "cannot be compared."
            ),
        )
        self._resources.callback(worker.close)
        return worker


def check_out(revision: str, folder: Path) -> None:
    """Write the packages as of a revision into an empty folder.

    Raises:
        SourceError: There is no such revision, or no repository.
    """
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", revision, *PACKAGES],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        said = archive.stderr.decode(errors="replace").strip()
        raise SourceError(
            f"--against: {revision!r} is no revision with {' and '.join(PACKAGES)} in the "
            f"repository of {ROOT.name}: {said}. List them with git log --oneline."
        )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
