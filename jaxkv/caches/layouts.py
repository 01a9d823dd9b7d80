"""The layouts by name, and the module behind each kind of site."""

import sys
from types import ModuleType
from typing import Any

from jaxkv.caches import contiguous, cross, paged, pages, uncached, unshared, window
from jaxkv.spec.config import Attention

LAYOUTS: dict[str, ModuleType] = {
    "contiguous": contiguous,
    "paged": paged,
    "window": window,
    "uncached": uncached,
}
_MODULE_OF = {
    contiguous.ContiguousSite: contiguous,
    cross.CrossSite: cross,
    paged.PagedSite: paged,
    window.WindowSite: window,
    uncached.UncachedSite: uncached,
}
_KEEPER_OF = {type(None): unshared, pages.Pages: pages, pages.PagePlan: pages}


def module_of(site: Any) -> ModuleType:
    """Return the layout that a site belongs to.

    A kind of site from outside the package's layouts (a tester's own) brings its layout along: the
    module that defines it.
    """
    kind = type(site)
    return _MODULE_OF[kind] if kind in _MODULE_OF else sys.modules[kind.__module__]


def layout_for(attention: Attention, layout: str) -> ModuleType:
    """Return the layout of one layer: a ring only where the layer has a window."""
    if layout == "window" and attention.window is None:
        return contiguous
    return LAYOUTS[layout]


def keeper_of(shared: Any) -> ModuleType:
    """Return the module that keeps what all layers share, as a cache or a step has it."""
    return _KEEPER_OF[type(shared)]


def keeper_for(layout: str) -> ModuleType:
    """Return the module that keeps what all layers of a layout share."""
    return pages if layout == "paged" else unshared


def site_options(layout: str) -> tuple[str, ...]:
    """Return the names of the options that the layout's own `init_site` takes."""
    return getattr(LAYOUTS[layout], "OPTIONS", ())
