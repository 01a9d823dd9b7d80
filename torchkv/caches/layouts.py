"""The layouts by name, and the module of a site.

A layout that is not here does not exist.
"""

from types import ModuleType
from typing import Any

from jaxkv.spec.config import Attention
from torchkv.caches import contiguous, uncached, window

LAYOUTS: dict[str, ModuleType] = {"contiguous": contiguous, "window": window, "uncached": uncached}
_MODULE_OF = {
    contiguous.ContiguousSite: contiguous,
    window.WindowSite: window,
    uncached.UncachedSite: uncached,
}


def module_of(site: Any) -> ModuleType:
    """Return the layout that a site belongs to."""
    return _MODULE_OF[type(site)]


def layout_for(attention: Attention, layout: str) -> ModuleType:
    """Return the layout of one attention: "window" means a ring only where there is a window."""
    if layout == "window" and attention.window is None:
        return contiguous
    return LAYOUTS[layout]
