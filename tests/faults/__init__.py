"""The dictionary of faults."""
