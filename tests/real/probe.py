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
    prompts = {name: tokenizer.encode(prompt) for name, prompt in PROMPTS.items()}
    # One program for both: each is 30 layers to compile.
    cached = subject.generate([*prompts.values()], 20)
    uncached = subject.generate([*prompts.values()], 20, cached=False)
    for b, (name, ids) in enumerate(prompts.items()):
        found[name] = {
            "prompt_ids": ids,
            "ids": cached.new_tokens[b],
            "uncached_ids": uncached.new_tokens[b],
            "text": tokenizer.decode(cached.new_tokens[b]),
            "uncached_text": tokenizer.decode(uncached.new_tokens[b]),
            "forwarded": int(cached.forwarded_positions_B[b]),
        }
    pride = tokenizer.encode(PRIDE)
    last, logits = _last_of_first_and_second(subject, prompts["paris"], pride)
    found["top"] = {int(i): float(last[i]) for i in np.argsort(-last)[:3]}
    found["loss"], found["predictions"] = _loss(logits, pride)
    scored = importlib.import_module(f"{twin}.scoring").score(model, [pride])
    found["score"] = list(scored)
    print(json.dumps(found))


def _last_of_first_and_second(subject, first: list[int], second: list[int]):
    """Return the logits after the first text, and all of the second, which is longer."""
    padded = first + [0] * (len(second) - len(first))
    logits = subject.full(np.array([padded, second]))
    return logits[0, len(first) - 1], logits[1]


def _loss(logits, ids: list[int]) -> tuple[float, int]:
    logits = logits[:-1].astype(np.float64)
    peak = logits.max(-1, keepdims=True)
    log_sum = peak[:, 0] + np.log(np.exp(logits - peak).sum(-1))
    picked = logits[np.arange(len(ids) - 1), ids[1:]]
    return float((log_sum - picked).mean()), len(ids) - 1


if __name__ == "__main__":
    main(sys.argv[1])
