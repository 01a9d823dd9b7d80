"""What positions= and visible= reach in a subject's uncached forward, tried out on three tokens.

A subject may decline a capability because its cached path fails there: that path is what is in
doubt. The uncached one is tried by itself.
Letters: T tokens, K key/value heads, H head width.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.subjects.protocol import describe

RTOL = 1e-5


def reach(subject: Any) -> frozenset[str]:
    """Return which of "positions" and "visible" the uncached forward takes, and obeys."""
    first = describe(subject).first_id
    ids = (
        np.array([[first + 1, first + 2, first + 3]], dtype=np.int32) % describe(subject).vocab_size
    )
    place = np.array([[0, 1, 2]])
    sees = np.tri(3, dtype=np.bool_)[None]
    tried = {
        "positions": (place, np.array([[0, 1, 3]])),
        "visible": (sees, sees & ~np.array([[False] * 3, [False] * 3, [True, False, False]])),
    }
    return frozenset(name for name, ways in tried.items() if _obeys(subject, ids, name, ways))


def _obeys(subject: Any, ids: NDArray, name: str, ways: tuple[NDArray, NDArray]) -> bool:
    """Return whether the usual value changes nothing, and the other one only the last token."""
    try:
        bare = np.asarray(subject.full(ids.copy()))
        usual, other = (np.asarray(subject.full(ids.copy(), **{name: way})) for way in ways)
    except Exception:
        return False
    allowed = RTOL * np.abs(bare).max()
    moved_T = np.abs(other - bare).max(axis=(0, 2)) > allowed
    return bool(np.abs(usual - bare).max() <= allowed and moved_T.tolist() == [False, False, True])


def turned_keys(subject: Any, token: int, key_KH: NDArray, places: int) -> list[int]:
    """Return the positions at which a token's key of layer 0 is this one."""
    ids = np.full((1, places), token, dtype=np.int32)
    state = subject.init(1, -(-(places + 1) // 32) * 32)
    told = "positions" in describe(subject).capabilities
    _, state = subject.step(state, ids, **({"positions": np.arange(places)[None]} if told else {}))
    kv = subject.kv(state, 0)
    keys_SKH = kv.keys_BSKH[0][kv.valid_BS[0]][-places:]
    allowed = 10 * RTOL * np.abs(key_KH).max()
    error_S = np.abs(keys_SKH - key_KH).max(axis=(1, 2))
    return [int(place) for place in np.flatnonzero(error_S <= allowed)] if allowed > 0 else []
