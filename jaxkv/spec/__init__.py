"""Framework-free facts that both twins share: sizes, names, bytes, ids; never mathematics."""
