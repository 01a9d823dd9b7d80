"""Where a divergence begins, and which fault would explain it."""
