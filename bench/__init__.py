"""Comparisons by the clock: each prints what was measured, on what, against which baseline."""
