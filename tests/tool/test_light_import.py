"""crosscheck needs numpy and nothing heavier: seen in a child process, with a planted failure."""

import subprocess
import sys

import pytest

CHECK = """
import sys
import {module}
heavy = {{"jax", "flax", "torch", "jaxkv", "torchkv", "hypothesis", "pytest"}} & set(sys.modules)
sys.exit(" ".join(sorted(heavy)))
"""


@pytest.mark.parametrize(
    ("module", "heavy"), [("crosscheck", ""), ("crosscheck, jaxkv.spec", "jaxkv")]
)
def test_importing_crosscheck_imports_no_framework(module, heavy):
    done = subprocess.run(
        [sys.executable, "-c", CHECK.format(module=module)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr.strip() == heavy
