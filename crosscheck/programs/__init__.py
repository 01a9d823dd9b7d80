"""A program of cache operations is the test input: data, JSON round trip, one interpreter."""
