"""One number for a model's weights: two models with the same one answer alike."""

import hashlib
from collections.abc import Mapping

import numpy as np


def weights_hash(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the sha256 over canonical name, shape, dtype and bytes of every array, by name.

    Args:
        arrays: Canonical name -> array, of a checkpoint or of either twin's `to_arrays`.

    Not checked here: whether the names are a model's. Rows of q and k count in the order in which
    they are given, so a GGUF file's hash is not that of the model made from it.
    Cost: reads every array, one after the other.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(f"{name} {list(array.shape)} {array.dtype.name}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
