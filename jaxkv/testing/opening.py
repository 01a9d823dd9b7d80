"""The subject that a command line names."""

from typing import Any

import jax

from jaxkv.spec.tiny import open_subject
from jaxkv.weights import from_arrays


def factory(
    name: str,
    *,
    layout: str = "contiguous",
    slack: int | str = 4,
    page_size: int | str | None = None,
    seed: int | str = 0,
    dtype: str = "float32",
    **options: int | str,
) -> Any:
    """Return the subject that a command line names: `jaxkv.subject:NAME?layout=paged`.

    Turns JAX's 64-bit numbers on, for the whole process: the oracle is computed in them.

    Args:
        name: One of `jaxkv.spec.tiny.subject_names`: tiny, with random weights; or "smollm2",
            "kjv", a path.
        layout: Of the cache.
        slack: Tokens that a ring can take back.
        page_size: Tokens of a page, in the paged layout.
        seed: Of random weights.
        dtype: Of weights and cache.
        **options: What the layout alone understands, see `caches.init`: `bits=4`, `sinks=2`.

    Raises:
        SourceError: The name leads to no checkpoint.
        RequestError: The layout, its option or the dtype is unknown.
    """
    from jaxkv.subject import Subject

    jax.config.update("jax_enable_x64", True)
    checkpoint, notes = open_subject(name, seed=int(seed))
    model = from_arrays(
        checkpoint.config,
        checkpoint.weights,
        dtype=dtype,
        interleaved_qk=checkpoint.interleaved_qk,
    )
    return Subject(
        model,
        layout=layout,
        slack=int(slack),
        page_size=None if page_size is None else int(page_size),
        layout_options={
            key: int(value) if str(value).isdecimal() else value for key, value in options.items()
        },
        name=f"jaxkv/{checkpoint.name}/{layout}",
        notes=notes,
    )
