"""No adapter imports a framework that nobody brought."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from crosscheck.adapters import adapt
from crosscheck.subjects.sources import load_subject
from crosscheck.subjects.guard import guarded
import numpy as np
guarded(adapt(lambda ids: np.zeros((*ids.shape, 3)))).full(np.zeros((1, 2), int))
{then}
print(*sorted({{"torch", "jax", "flax", "transformers"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("then", "imported"),
    [("", ""), ("import torch; adapt(torch.nn.Embedding(5, 5))", "torch")],
    ids=["callable", "torch"],
)
def test_only_the_framework_of_the_object_is_imported(then, imported):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(then=then)], capture_output=True, text=True
    )

    assert done.stdout.split() == imported.split(), done.stderr
