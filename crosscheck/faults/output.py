"""Faults of head and output: all that is stored is right, the logits are not."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.faults.planted import Call, Held, Planted
from crosscheck.faults.registry import fault

Say = Callable[[NDArray, Call], NDArray]


class Saying(Planted):
    """Changes the logits of every step: `say(logits_BTV, call)`."""

    def __init__(self, subject: Any, say: Say) -> None:
        super().__init__(subject)
        self.say = say

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step rightly, and answer wrongly."""
        logits, held = self.pass_on(held, call.ids_BT, **call.options)
        return self.say(np.asarray(logits), call), held


@fault(
    name="head.scale",
    needs={"cache"},
    kinds="N",
    shows="output",
    advice="Look for a logit scale or multiplier on one of the two paths only.",
)
def head_scale(subject: Any) -> Planted:
    """With a cache the logits miss a factor."""
    return scaled(subject, 0.5)


def scaled(subject: Any, factor: float) -> Planted:
    """Return the subject with its cached logits times a factor of their own dtype."""
    return Saying(subject, lambda logits, call: logits * logits.dtype.type(factor))


@fault(
    name="head.cap",
    needs={"cache"},
    kinds="N",
    shows="output",
    advice="Look for a soft cap that one of the paths leaves out or applies twice.",
)
def head_cap(subject: Any) -> Planted:
    """With a cache the logits go through a soft cap once more."""

    def say(logits: NDArray, call: Call) -> NDArray:
        # 30 as released models have it; of logits far below that a cap would leave no trace.
        largest = np.abs(logits).max(initial=0.0)
        cap = logits.dtype.type(min(30.0, 4 * largest) or 30.0)
        return cap * np.tanh(logits / cap)

    return Saying(subject, say)


@fault(
    name="head.slice",
    needs={"cache", "chunk"},
    kinds="O",
    shows="output",
    advice="Look at which tokens of a chunk go through the head ([:, -1:] and the like).",
)
def head_slice(subject: Any) -> Planted:
    """All tokens of a chunk get the logits of its last one."""

    def say(logits: NDArray, call: Call) -> NDArray:
        last_B = call.width - 1 - np.argmax(call.real_BT[:, ::-1], axis=1)
        return np.broadcast_to(logits[np.arange(len(logits)), last_B][:, None], logits.shape).copy()

    return Saying(subject, say)


class Shifted(Planted):
    """Answers every token with the logits of the one before it."""

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step rightly, and answer one token late."""
        logits, held = self.pass_on(held, call.ids_BT, **call.options)
        logits = np.asarray(logits)
        if not call.real_BT.all():
            return logits, held.remember(before_B=logits[:, -1:])
        before_B = held.memo.get("before_B", logits[:, :1])
        return np.concatenate([before_B, logits[:, :-1]], axis=1), held.remember(
            before_B=logits[:, -1:]
        )


@fault(
    name="head.slice.shifted",
    needs={"cache"},
    kinds="O",
    shows="output",
    advice="Look for logits that are shifted against their tokens, as a training loss shifts them.",
)
def head_slice_shifted(subject: Any) -> Planted:
    """Every token gets the logits of the one before it."""
    return Shifted(subject)


def _dropped(logits: NDArray, rng: np.random.Generator) -> NDArray:
    keep = rng.random(logits.shape[-1]) >= 0.1
    return np.where(keep, logits / logits.dtype.type(0.9), 0).astype(logits.dtype)


@fault(
    name="train.mode",
    needs={"cache"},
    kinds="N",
    shows="output",
    advice="Look for a training flag that is left on (or set again) where a cache is used.",
)
def train_mode(subject: Any) -> Planted:
    """With a cache the model is in training mode, with a fixed draw of its dropout."""
    return Saying(subject, lambda logits, call: _dropped(logits, np.random.default_rng(0)))


class Dropping(Planted):
    """Drops other logits at every call."""

    def __init__(self, subject: Any) -> None:
        super().__init__(subject)
        self.rng = np.random.default_rng(0)

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return logits with some dropped."""
        return _dropped(np.asarray(self.inner.full(ids, **options)), self.rng)

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step, and drop some logits."""
        logits, held = self.pass_on(held, call.ids_BT, **call.options)
        return _dropped(np.asarray(logits), self.rng), held


@fault(
    name="train.dropout",
    needs=(),
    kinds="N",
    shows="run",
    advice="Set the model to evaluation (eval(), deterministic=True) before it is compared.",
)
def train_dropout(subject: Any) -> Planted:
    """Dropout is active: two runs of the same text differ."""
    return Dropping(subject)


class Untied(Planted):
    """Reads its logits through a head with other rows, in every path."""

    def full(self, ids: NDArray, **options: Any) -> NDArray:
        """Return logits of the wrong rows."""
        return np.roll(np.asarray(self.inner.full(ids, **options)), 1, axis=-1)

    def forward(self, held: Held, call: Call) -> tuple[NDArray, Held]:
        """Step, and answer with the wrong rows."""
        logits, held = self.pass_on(held, call.ids_BT, **call.options)
        return np.roll(np.asarray(logits), 1, axis=-1), held


@fault(
    name="weights.untied",
    needs=(),
    kinds="M",
    shows="output",
    parity=True,
    advice="Compare the head's weight with the embedding, and look for weights that were not read.",
)
def weights_untied(subject: Any) -> Planted:
    """The head holds other rows than the checkpoint; cached and uncached runs agree."""
    return Untied(subject)
