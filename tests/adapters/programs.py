"""Small programs over the protocol that the adapter tests share."""

import numpy as np

TOKENS = 14


def texts(subject, *, rows=2, tokens=TOKENS, seed=1):
    info = subject.info
    rng = np.random.default_rng(seed)
    return rng.integers(info.first_id, info.vocab_size, (rows, tokens)).astype(np.int32)


def fed(subject, ids, sizes, *, capacity=20, mask=None):
    """Feed ids in chunks of these sizes; return all logits and the last state."""
    state, outs, start = subject.init(len(ids), capacity), [], 0
    for n in sizes:
        chunk = slice(start, start + n)
        options = {} if mask is None else {"mask": mask[:, chunk]}
        logits, state = subject.step(state, ids[:, chunk], **options)
        outs.append(logits)
        start += n
    return np.concatenate(outs, 1), state


def apart(got, expected):
    """Return the largest difference as a share of the largest expected value; NaN as infinity."""
    error = np.abs(got - expected).max() / np.abs(expected).max()
    return float(np.nan_to_num(error, nan=np.inf))
