"""The contract's relations on the real checkpoint, float32, contiguous and paged, with margins."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.tiny import TWINS

ROOT = Path(__file__).parent.parent.parent
# Rounding of 30 layers in float32 on logits near 20: two orders of summation differ by some 1e-4.
BOUND = 2e-3

pytestmark = [pytest.mark.usefixtures("smollm2"), pytest.mark.parametrize("twin", TWINS)]


@cache
def found(twin):
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_ENABLE_X64", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.real.relations", twin],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
@pytest.mark.parametrize("case", ["whole", "ones", "chunks", "history"])
def test_the_real_model_keeps_the_contract(twin, layout, case):
    result, start = found(twin)[f"{layout}-{case}"], 48 if case == "history" else 0

    assert result["difference"] <= BOUND
    margins = found(twin)["margins"][start:]
    for differs, margin in zip(result["differing_ids"], margins, strict=False):
        assert not differs or margin <= 2 * BOUND
