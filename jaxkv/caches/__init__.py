"""KV caches as immutable values: one file a layout, one set of verbs for all.

cache, step = begin(cache, count_B, T=T)
out_BTNH, site = attend(cache.sites[i], step, q_BTNH, k_BTKH, v_BTKH, rule=rule)     # once a layer
cache = commit(cache, step, sites)
"""

from jaxkv.caches.buffers import fill, narrow, nbytes, poison, read, scrub, widen
from jaxkv.caches.cross import Source
from jaxkv.caches.disk import load, peek, save
from jaxkv.caches.history import fork, gather, reset, rollback, spread
from jaxkv.caches.layouts import LAYOUTS
from jaxkv.caches.prefix import Lease, PrefixStore
from jaxkv.caches.sharing import adopt, fork_row, hold, holders, release
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.caches.verbs import attend, begin, check, check_dtype, check_options, commit, init
from jaxkv.ops import Rule

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
