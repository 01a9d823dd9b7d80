"""Framework-free facts that both twins share: sizes, names, bytes and token ids; never mathematics."""
