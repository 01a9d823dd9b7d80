"""Sinks with positions of the text: keys are turned once, when they come.

Everything but `init_site` is that of `sinks`; what is dropped is the same. A query is as far from a
sink as in the text, which a model may never have met: this is not StreamingLLM. mlx-lm's
RotatingKVCache(keep=s) and llama.cpp's kept prefix store keys like this. It also serves learned
positions.
"""

from typing import Any

import jax.numpy as jnp

from jaxkv.caches import sinks
from jaxkv.caches.sinks import SinkSite
from jaxkv.spec.compression import SINK_OPTIONS, Sinks, refuse_latent
from jaxkv.spec.config import Attention

OPTIONS = SINK_OPTIONS


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: jnp.dtype,
    slack: int = 0,
    shared: None = None,
    **options: Any,
) -> SinkSite:
    """Return an empty site for keys that are turned by their position in the text.

    Raises:
        RequestError: An option is out of range.
        Unsupported: The attention is to latents.
    """
    refuse_latent(attention, "sinks_absolute")
    sizes = {"batch": batch, "capacity": capacity, "dtype": dtype, "slack": slack}
    return sinks.empty(attention, **sizes, turned_by="position", form=Sinks(**options))
