"""A subject in a process of its own: requests and answers are lines of JSON through its pipes."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from jaxkv.spec.errors import SourceError


class Worker:
    """A running process that answers each line of JSON with one; `close` ends it.

    Args:
        name: For messages: whose process it is.
        command: What to run. It says one line by itself when it is ready.
        env: Its environment; None for this process's.
        cwd: Its folder.
        advice: What a user can do if it ends instead of answering.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        advice: str = "",
    ):
        self.name, self._advice, self._resources = name, advice, ExitStack()
        try:
            self._process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=cwd,
            )
        except OSError as error:
            raise SourceError(
                f"{name}: {command[0]} cannot be run, {error.strerror}. {advice}"
            ) from None
        self._resources.callback(_end, self._process)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            SourceError: The process has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            SourceError: The process has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._resources.close()

    def _ended(self) -> SourceError:
        return SourceError(
            f"{self.name}: its process ended with {self._process.wait()} instead of an answer. "
            f"What it said stands above. {self._advice}"
        )


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.close()
        process.wait(timeout=10)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        process.kill()
        process.wait()
    process.stdout.close()
