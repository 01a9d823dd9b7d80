"""KV caches as fixed buffers, written in place: one file a layout, one set of verbs for all.

cache, step = begin(cache, count_B, T=T)
out_BTNH, site = attend(cache.sites[i], step, q_BTNH, k_BTKH, v_BTKH, rule=rule)     # once a layer
cache = commit(cache, step, sites)

The first `attend` of a step consumes the cache that it began from: using that one again is refused.
`fork` keeps a copy.
"""

from torchkv.caches.buffers import fill, narrow, nbytes, poison, read, scrub, widen
from torchkv.caches.cross import Source
from torchkv.caches.disk import load, peek, save
from torchkv.caches.history import fork, gather, reset, rollback, spread
from torchkv.caches.layouts import LAYOUTS
from torchkv.caches.prefix import Lease, PrefixStore
from torchkv.caches.sharing import adopt, fork_row, hold, holders, release
from torchkv.caches.state import Bias, Cache, Expand, Rotate, Step
from torchkv.caches.verbs import attend, begin, check, check_dtype, check_options, commit, init
from torchkv.ops import Rule

__all__ = [
    "LAYOUTS",
    "Bias",
    "Cache",
    "Expand",
    "Lease",
    "PrefixStore",
    "Rotate",
    "Rule",
    "Source",
    "Step",
    "adopt",
    "attend",
    "begin",
    "check",
    "check_dtype",
    "check_options",
    "commit",
    "fill",
    "fork",
    "fork_row",
    "gather",
    "hold",
    "holders",
    "init",
    "load",
    "narrow",
    "nbytes",
    "peek",
    "poison",
    "read",
    "release",
    "reset",
    "rollback",
    "save",
    "scrub",
    "spread",
    "widen",
]
