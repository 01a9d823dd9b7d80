"""Run calls with a time-out that really returns: on a daemon thread that can be left behind."""

import atexit
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from crosscheck.errors import BudgetEnded, TimedOut


class Worker:
    """One daemon thread that runs calls in order; after a time-out it is never used again."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.hung: str | None = None
        self._error: type[TimedOut] = TimedOut
        _WORKERS.add(self)

    def run(
        self, call: Callable[[], Any], seconds: float, what: str, *, of_budget: bool = False
    ) -> Any:
        """Return what the call returns, or raise what it raises.

        Args:
            call: What to run.
            seconds: How long to wait.
            what: What errors call it.
            of_budget: Whether these seconds are what is left of a budget, and so no proof of a
                hang.

        Raises:
            TimedOut: It took longer than so many seconds, or an earlier call did; `BudgetEnded`
                where that was the budget's end.
        """
        if self.hung is not None:
            raise self._error(f"{what}: not called, {self.hung} never answered.")
        if threading.current_thread() is self._thread:
            return call()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="crosscheck", daemon=True)
            self._thread.start()
        answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._jobs.put((call, answer))
        try:
            fine, value = answer.get(timeout=max(seconds, 0.001))
        except queue.Empty:
            self.hung, self._error = what, BudgetEnded if of_budget else TimedOut
            rest = " that were left" if of_budget else ""
            raise self._error(f"{what}: no answer within {seconds:.3g} seconds{rest}.") from None
        except BaseException:
            # Interrupted: whoever leaves the process must know that the call is still running.
            self.hung = what
            raise
        if fine:
            return value
        raise value

    @property
    def is_left_behind(self) -> bool:
        """Whether a call that was given up is still running."""
        return self.hung is not None and self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """End the thread, unless it hangs: one that is cut off inside a framework would abort."""
        if self._thread is not None and self.hung is None:
            self._jobs.put(None)
            self._thread.join(timeout=5)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            call, answer = job
            try:
                found = True, call()
            except BaseException as error:
                found = False, error
            # Before whoever waits goes on: a worker must not keep a model alive.
            del call, job
            answer.put(found)
            del answer, found
            if self.hung is not None:
                return


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


def has_left_calls_behind() -> bool:
    """Return whether any call that was given up is still running."""
    return any(worker.is_left_behind for worker in list(_WORKERS))


def leave(code: int) -> NoReturn:
    """Leave the process at once, what was printed flushed first."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@atexit.register
def _stop_all() -> None:
    for worker in list(_WORKERS):
        worker.stop()
