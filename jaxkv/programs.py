"""The compiled forms of traced functions, and how often they have been traced."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

# XLA picks 256-bit vectors by default; on the measured CPUs the matrix products of a decode step
# gain from 512.
_CPU_OPTIONS = {"xla_cpu_prefer_vector_width": 512}


class Programs:
    """Jitted functions by what they compute and donate.

    Attributes:
        traces: How often any of them has been traced: one for each program.
    """

    def __init__(self) -> None:
        self.traces = 0
        self._jitted: dict[tuple[Any, tuple[str, ...]], Any] = {}

    def jitted(self, function: Callable[..., Any], *, donate: tuple[str, ...] = ()) -> Any:
        """Return the jitted form, for calling or for looking at what it compiles to.

        Args:
            function: Keyword-only parameters are static, as the house style has it.
            donate: Names of parameters whose buffers are reused, and must not be used again.
        """
        key = (function, donate)
        if key not in self._jitted:
            parameters = inspect.signature(function).parameters.values()
            self._jitted[key] = jax.jit(
                self._counted(function),
                static_argnames=[
                    each.name for each in parameters if each.kind is each.KEYWORD_ONLY
                ],
                donate_argnames=donate,
                compiler_options=_CPU_OPTIONS if jax.default_backend() == "cpu" else None,
            )
        return self._jitted[key]

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def traced(*arrays: Any, **static: Any) -> Any:
            self.traces += 1
            return function(*arrays, **static)

        return traced


PROGRAMS = Programs()


def keep(folder: Path | None, *, most_bytes: int) -> None:
    """Let JAX keep compiled programs in a folder, for later processes.

    Nothing changes if the user has told JAX where already, or if the folder cannot be made.

    Args:
        folder: None keeps none.
        most_bytes: What it may grow to; the programs used longest ago go first.
    """
    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue] JAX adds it at run time
    if folder is None or chosen:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # A start runs a dozen programs of milliseconds too, which JAX would compile each time.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # JAX limits the folder with this package only, and raises without it.
    if find_spec("filelock"):
        _mend(folder)
        jax.config.update("jax_compilation_cache_max_size", most_bytes)


def _mend(folder: Path) -> None:
    """Delete programs that an interrupted process did not write to their end.

    JAX writes a program first and its time of use last, never reads one anew that it failed to, and
    writes no other beside one without a time.
    """
    with suppress(ImportError, OSError), (folder / ".lockfile").open("a") as lock:
        import fcntl  # on Unix alone

        # The lock that JAX takes to write. Where another process has it, the next start mends.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for program in folder.glob("*-cache"):
            if not program.with_name(f"{program.name.removesuffix('-cache')}-atime").exists():
                program.unlink(missing_ok=True)
