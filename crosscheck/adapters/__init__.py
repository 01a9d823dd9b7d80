"""One file a framework; each imports its framework only when it is used."""
