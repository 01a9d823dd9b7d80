"""Settings that hold for the whole suite, made before any framework is imported."""

import os

os.environ["JAX_ENABLE_X64"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"

import gc
import sys
from collections import Counter
from pathlib import Path

import hypothesis
import pytest

from tests.annotations import check_sparingly
from tests.clock import Looks
from tests.xla_flags import CHEAP

DEEP = os.environ.get("JAXKV_DEEP") == "1"
OFFLINE = os.environ.get("JAXKV_OFFLINE") == "1"

# Programs are many and tiny: everything that is compiled is kept, between runs too.
CACHE = Path(__file__).parent.parent / ".cache" / "xla"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Deep runs and the real checkpoint's child processes compile as users do.
if not DEEP:
    os.environ.setdefault("XLA_FLAGS", " ".join(CHEAP))

# A property owes 200 examples; tests.tiny.shared_by divides them among its cells.
hypothesis.settings.register_profile(
    "suite",
    max_examples=5000 if DEEP else 200,
    deadline=None,
    derandomize=not DEEP,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("suite")

# Tracing makes millions of small objects, nearly all of which live on: looking for cycles among
# them at each 700 new ones took 5 % of the time.
gc.set_threshold(50_000)

# Every program that XLA compiled holds several memory maps, of which Linux allows a process 65,530;
# past that it dies. A file leaves some thousands (speculation/test_greedy.py 6,000). To let go
# of all takes some 10 seconds, and what is shared is traced again; but a process with 35,000 maps
# takes 6.5e9 bytes, and a machine of 16 GB runs two.
MAPS = Path("/proc/self/maps")
MOST_MAPS = 25_000

# Whole files go to processes, the longest first: else the last process ends long after the others.
LONGEST = (
    "wild/test_faults.py",
    "tool/test_tutorial.py",
    "tool/test_no_false_alarms.py",
    "quantized/test_model.py",
    "quantized/test_subject.py",
    "real/test_smollm2.py",
    "real/test_relations.py",
    "twins/test_families.py",
    "bench/test_gpu.py",
    "bench/test_benchmarks.py",
    "paged/test_operations.py",
)

_SKIPPED: list[str] = []


def pytest_collection_modifyitems(items):
    sizes = Counter(item.path for item in items)
    places = {Path(__file__).parent / name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (places.get(item.path, len(LONGEST)), -sizes[item.path]))


def pytest_collection_finish():
    # What was imported stays: no later search for cycles need look at it.
    gc.freeze()


def pytest_runtest_setup():
    if not DEEP:
        check_sparingly()


def pytest_runtest_logreport(report):
    if report.skipped and OFFLINE:
        _SKIPPED.append(report.nodeid)


def pytest_terminal_summary(terminalreporter):
    if _SKIPPED:
        terminalreporter.section("not run (JAXKV_OFFLINE=1: no real checkpoint)")
        for nodeid in _SKIPPED:
            terminalreporter.line(nodeid)


@pytest.fixture(scope="module", autouse=True)
def room_for_programs():
    """Let go of all compiled programs after a file that left too many."""
    yield
    if MAPS.exists() and "jax" in sys.modules and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def looks():
    """The clock of crosscheck's runs in this process: no verdict hangs on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Looks()
        patch.setattr("crosscheck.budget.now", clock)
        yield clock


@pytest.fixture(scope="session")
def smollm2():
    """The real checkpoint's file; without it a test fails, unless JAXKV_OFFLINE=1 lists it."""
    from jaxkv.spec.errors import SourceError
    from jaxkv.spec.source import open_source

    try:
        return open_source("smollm2")
    except SourceError as error:
        if OFFLINE:
            pytest.skip(str(error))
        pytest.fail(f"{error} Or set JAXKV_OFFLINE=1 to list the tests that need it.")
