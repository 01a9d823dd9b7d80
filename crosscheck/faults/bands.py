"""Which tokens a right decoder lets each token read, and what a subject's windows are.

Letters: T tokens of a call, S columns: tokens held and those of the call.
"""

import numpy as np
from numpy.typing import NDArray

from crosscheck.subjects.protocol import SubjectInfo

ASSUMED_WINDOW = 5


def windows_of(info: SubjectInfo) -> set[int]:
    """Return the different windows of the layers."""
    return {window for window in info.windows if window is not None}


def narrowest(info: SubjectInfo) -> int:
    """Return the smallest window, or a small one where no layer has any."""
    return min(windows_of(info), default=ASSUMED_WINDOW)


def ring_size(info: SubjectInfo) -> int:
    """Return how many tokens the smallest ring holds; more than any text where there is none."""
    return min(windows_of(info), default=2**30)


def common(info: SubjectInfo) -> int | None:
    """Return the window that all layers share; None where they have none, or differ."""
    return narrowest(info) if len({*info.windows}) == 1 and windows_of(info) else None


def has_window(info: SubjectInfo) -> str:
    """Return why a fault of windows makes no sense here; "" where it does.

    A subject whose variants have windows can have it in those.
    """
    return "" if "window" in info.capabilities else has_own_window(info)


def has_own_window(info: SubjectInfo) -> str:
    """Return why a fault of a ring makes no sense here; "" where the subject itself has one."""
    return "" if windows_of(info) else "no layer is known to have a window"


def has_common_window(info: SubjectInfo) -> str:
    """Return why a mask for all layers cannot show a fault of one window; "" where it can."""
    if windows_of(info) and not common(info):
        return "its layers have different windows"
    return has_window(info)


def band(columns: int, width: int, window: int | None = None) -> NDArray:
    """Return bool [T, S]: the causal rule, and the window where there is one."""
    query_T1, key_S = at(columns, width)
    visible_TS = key_S <= query_T1
    return visible_TS if window is None else visible_TS & (key_S > query_T1 - window)


def at(columns: int, width: int) -> tuple[NDArray, NDArray]:
    """Return the columns of the queries [T, 1] and of the keys [S]."""
    return columns + np.arange(width)[:, None], np.arange(columns + width)


def for_rows(visible_TS: NDArray, rows: int) -> NDArray:
    """Return the same rule for every row: bool [B, T, S]."""
    return np.broadcast_to(visible_TS, (rows, *visible_TS.shape)).copy()
