"""Run in a child process: the contract's relations on the real checkpoint, one twin, as JSON."""

import importlib
import json
import sys

import numpy as np

from tests.real.probe import PRIDE

LAYOUTS = {"contiguous": None, "paged": 16}
# Few widths, one of them first, and one batch: each is a program of 30 layers to compile.
PARTITIONS = {"whole": [64], "ones": [56] + [1] * 8, "chunks": [40] + [8] * 3}


def main(twin: str) -> None:
    """Print the largest logit differences, and the margin that a difference may not exceed."""
    from jaxkv.spec.source import open_source, open_tokenizer

    checkpoint = open_source("smollm2")
    ids = np.array([open_tokenizer(checkpoint).encode(PRIDE)[:64]])
    kind = importlib.import_module(f"{twin}.subject").Subject
    model = importlib.import_module(f"{twin}.weights").from_arrays(
        checkpoint.config, checkpoint.weights, interleaved_qk=checkpoint.interleaved_qk
    )
    pair = np.repeat(ids, 2, 0)
    full = kind(model).full(ids)
    top = np.sort(full[0], axis=-1)
    found = {"tokens": ids.shape[1], "margins": (top[:, -1] - top[:, -2]).tolist()}
    for layout, page_size in LAYOUTS.items():
        subject = kind(model, layout=layout, page_size=page_size)
        for name, sizes in PARTITIONS.items():
            logits, _ = _feed(subject, subject.init(2, 128), pair, sizes)
            found[f"{layout}-{name}"] = _against(logits, full)
        found[f"{layout}-history"] = _against(_history(subject, ids), full[:, 48:57])
    print(json.dumps(found))


def _history(subject, ids):
    """One of two rows twice, other tokens rolled back, then its text's own: as if never there."""
    both = np.concatenate([ids[:, ::-1], ids])
    _, state = _feed(subject, subject.init(2, 128), both, [48])
    state = subject.gather(state, np.array([1, 1]))
    _, state = _feed(subject, state, np.repeat(ids[:, ::-1], 2, 0), [8])
    state = subject.rollback(state, np.array([48, 48]))
    logits, _ = _feed(subject, state, np.repeat(ids[:, 48:57], 2, 0), [1, 8])
    return logits


def _feed(subject, state, ids, sizes):
    logits, at = [], 0
    for size in sizes:
        out, state = subject.step(state, ids[:, at : at + size])
        logits.append(out)
        at += size
    return np.concatenate(logits, axis=1), state


def _against(logits, full):
    return {
        "difference": float(np.abs(logits - full[:, : logits.shape[1]]).max()),
        "differing_ids": (logits.argmax(-1) != full[:, : logits.shape[1]].argmax(-1))
        .any(0)
        .tolist(),
    }


if __name__ == "__main__":
    main(sys.argv[1])
