"""Queries come to the pages of their rows, by choices between few rows and by a gather of many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkv.caches import page_reads


@pytest.mark.parametrize("rows", [1, 3, page_reads.MOST_CHOICES, page_reads.MOST_CHOICES + 1])
def test_each_page_has_the_queries_of_its_row(rows):
    x_BR = np.arange(rows * 5, dtype=np.float32).reshape(rows, 5)
    row_A = np.random.default_rng(0).integers(0, rows, size=40, dtype=np.int32)

    found_AR = jax.jit(page_reads._of_owners)(jnp.asarray(x_BR), jnp.asarray(row_A))

    np.testing.assert_array_equal(found_AR, x_BR[row_A])


def test_a_row_that_is_not_finite_stays_in_its_own_pages():
    x_BR = np.array([[1.0, 2.0], [np.nan, np.inf], [5.0, 6.0]], np.float32)

    found_AR = jax.jit(page_reads._of_owners)(jnp.asarray(x_BR), jnp.array([2, 1, 0, 2]))

    np.testing.assert_array_equal(found_AR, x_BR[[2, 1, 0, 2]])
