"""Every error that a user can cause, in one place.

Each message carries both numbers and the next step.
"""


class JaxkvError(ValueError):
    """Base of all typed errors of jaxkv and torchkv.

    The command lines print it in one line and exit with 2.
    """


class ConfigError(JaxkvError):
    """A configuration contradicts itself, lacks a field or holds an unknown one."""


class ShapeError(JaxkvError):
    """An array does not fit the model, the cache or its companions: shape, dtype, number."""


class CapacityError(JaxkvError):
    """More tokens were asked for than a cache or a model's positions can hold."""


class RequestError(JaxkvError):
    """An argument of a call is out of range: a count, a token id, a row, a length."""


class RollbackError(RequestError):
    """A rollback goes forward, or further back than the layout still remembers."""


class WeightError(JaxkvError):
    """A tensor is missing, unexpected, misshapen, or its file is damaged."""


class SourceError(JaxkvError):
    """A name or a path does not lead to a model, a cache, or a place to write one."""


class Unsupported(JaxkvError):
    """A layout or a family does not offer what was asked, for the reason given."""
