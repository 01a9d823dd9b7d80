"""One file a framework, imported only when an object of it is brought."""

from crosscheck.adapters.dispatch import adapt

__all__ = ["adapt"]
