"""Where a run took place: versions and platform, of what is already loaded only."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("numpy", "hypothesis", "jax", "flax", "torch", "transformers")


def environment() -> dict[str, str]:
    """Return versions of the packages in use, the platform, and the threads allowed."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        if name in sys.modules:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = "not installed as a package"
    found["threads"] = os.environ.get("OMP_NUM_THREADS", "unset")
    return found
