"""What a measurement was made on: it stands in every result file and below every table."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "torch", "transformers", "numpy")
FLAGS = (
    "XLA_FLAGS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "JAX_PLATFORMS",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)
ROOT = Path(__file__).parent.parent


def environment(*, precision: str = "float32") -> dict[str, Any]:
    """Return the machine, the versions and the settings of this run, as plain data for JSON.

    Args:
        precision: Of the weights and the cache that are measured.
    """
    return {
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cores(),
        "threads": threads(),
        "devices": devices(),
        "driver": _driver(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "precision": precision,
        "flags": {name: os.environ[name] for name in FLAGS if name in os.environ},
        "commit": commit(),
    }


def words(found: dict[str, Any]) -> str:
    """Return an environment as the two lines below a table."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    flags = ", ".join(f"{name}={value}" for name, value in found["flags"].items()) or "none"
    driver = found.get("driver", "none")
    devices = [*found["devices"], *[f"driver {driver}"] * (driver != "none")]
    return (
        f"{found['processor']}, {found['cores']} cores, threads {found['threads']}, "
        f"{found['precision']}, devices {', '.join(devices)}; flags {flags}; "
        f"commit {found['commit']}.\nPython {found['python']}, {versions}."
    )


def processor() -> str:
    """Return the processor's name, or the architecture where the system does not tell.

    A virtual machine's often lacks the generation ("AMD EPYC"), which family and model tell.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    # The first of several processors, which stands last here.
    told = {name.strip(): value.strip() for name, value in reversed([*pairs])}
    if "model name" not in told:
        return platform.machine()
    which = [told[name] for name in ("cpu family", "model") if name in told]
    return f"{told['model name']} (family {' model '.join(which)})" if which else told["model name"]


def threads() -> str:
    """Return how many threads torch uses, if it is loaded; XLA on CPUs takes one a core."""
    torch = sys.modules.get("torch")
    return "XLA one a core" + (f", torch {torch.get_num_threads()}" if torch else "")


def devices() -> list[str]:
    """Return the accelerators and processors of the frameworks that are loaded."""
    found = []
    if jax := sys.modules.get("jax"):
        found += [f"jax {device.platform}:{device.device_kind}" for device in jax.devices()]
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        found.append(f"torch cuda:{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})")
    return found or ["cpu"]


def commit() -> str:
    """Return the revision that was measured, marked where the tree differs from it."""
    revision = _git("rev-parse", "--short=12", "HEAD")
    if revision is None:
        return "unknown"
    return revision + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _cores() -> int:
    return os.cpu_count() or 1


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return _output(query) or "none"


def _git(*arguments: str) -> str | None:
    return _output(["git", "-C", str(ROOT), *arguments])


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
