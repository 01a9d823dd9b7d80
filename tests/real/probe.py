"""Run in a child process, without float64: what one twin computes with the real weights."""

import importlib
import json
import sys

import numpy as np

PRIDE = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife. However little known the feelings or views of such a man may be on "
    "his first entering a neighbourhood, this truth is so well fixed in the minds of the "
    "surrounding families, that he is considered the rightful property of some one or other of "
    "their daughters."
)
PROMPTS = {"paris": "The capital of France is", "count": "1, 2, 3, 4, 5, 6, 7,"}


def main(twin: str) -> None:
    """Print the results of one twin."""
    from jaxkv.spec.source import open_source, open_tokenizer

    checkpoint = open_source("smollm2")
    tokenizer = open_tokenizer(checkpoint)
    model = importlib.import_module(f"{twin}.weights").from_arrays(
        checkpoint.config, checkpoint.weights, interleaved_qk=checkpoint.interleaved_qk
    )
    subject = importlib.import_module(f"{twin}.subject").Subject(model)
    found = {"digits": tokenizer.encode("a  1"), "dtype": subject.info.dtype}
    for name, prompt in PROMPTS.items():
        ids = tokenizer.encode(prompt)
        cached = subject.generate([ids], 20)
        uncached = subject.generate([ids], 20, cached=False)
        found[name] = {
            "prompt_ids": ids,
            "ids": cached.new_tokens[0],
            "uncached_ids": uncached.new_tokens[0],
            "text": tokenizer.decode(cached.new_tokens[0]),
            "uncached_text": tokenizer.decode(uncached.new_tokens[0]),
            "forwarded": int(cached.forwarded_positions_B[0]),
        }
    last = subject.full(np.array([tokenizer.encode(PROMPTS["paris"])]))[0, -1]
    found["top"] = {int(i): float(last[i]) for i in np.argsort(-last)[:3]}
    found["loss"], found["predictions"] = _loss(subject, tokenizer.encode(PRIDE))
    scored = importlib.import_module(f"{twin}.scoring").score(model, [tokenizer.encode(PRIDE)])
    found["score"] = list(scored)
    print(json.dumps(found))


def _loss(subject, ids: list[int]) -> tuple[float, int]:
    logits = subject.full(np.array([ids]))[0, :-1].astype(np.float64)
    peak = logits.max(-1, keepdims=True)
    log_sum = peak[:, 0] + np.log(np.exp(logits - peak).sum(-1))
    picked = logits[np.arange(len(ids) - 1), ids[1:]]
    return float((log_sum - picked).mean()), len(ids) - 1


if __name__ == "__main__":
    main(sys.argv[1])
