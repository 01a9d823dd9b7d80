"""The identity of what a model's cache holds."""

from jaxkv.model import Decoder
from jaxkv.spec.identity import Identity, weights_hash
from jaxkv.weights import to_arrays


def identity_of(model: Decoder, *, layout: str, adapter: str = "", tenant: str = "") -> Identity:
    """Return whose keys and values a cache of this model holds, for `caches.save` and `load`.

    Args:
        model: Its config, parameters and dtype count, not its name.
        layout: Of the cache, as `caches.init` takes it.
        adapter: What else changes the function, in the caller's words.
        tenant: The caller's salt.

    Cost: copies every parameter to the host and hashes it.
    """
    return Identity(
        config=model.config,
        weights=weights_hash(to_arrays(model)),
        dtype=str(model.dtype),
        layout=layout,
        adapter=adapter,
        tenant=tenant,
    )
