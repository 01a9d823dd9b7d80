"""Texts that change their own logits: transformers' processors, and one twin's on numpy arrays."""

import importlib

import numpy as np


def theirs(
    logits_V,
    prompt,
    new,
    *,
    ends=(),
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    logit_bias=None,
    min_new_tokens=0,
) -> np.ndarray:
    """Return one row's logits after transformers' own processors, in the order of its `generate`.

    The two penalties that it lacks stand between, as the API reference of OpenAI writes them.
    """
    import torch
    from transformers.generation import logits_process as processors

    ids = torch.tensor([[*prompt, *new]])
    scores = torch.tensor(np.asarray(logits_V)[None])
    if logit_bias:
        bias = {(token,): value for token, value in logit_bias.items()}
        scores = processors.SequenceBiasLogitsProcessor(bias)(ids, scores)
    if repetition_penalty != 1:
        scores = processors.RepetitionPenaltyLogitsProcessor(repetition_penalty)(ids, scores)
    for token in range(scores.shape[1]):
        count = list(new).count(token)
        scores[0, token] -= count * frequency_penalty + (count > 0) * presence_penalty
    if min_new_tokens and ends:
        least = processors.MinNewTokensLengthLogitsProcessor(len(prompt), min_new_tokens, [*ends])
        scores = least(ids, scores)
    return scores[0].numpy()


def joined(items) -> list[list[int]]:
    """Return each row's ids of a whole stream."""
    return [[token for ids in rows for token in ids] for rows in zip(*items, strict=True)]


class Processing:
    """One twin's processors behind numpy."""

    def __init__(self, name):
        self.name = name
        self.processors = importlib.import_module(f"{name}.processors")
        self.plan = importlib.import_module(f"{name}.processor_settings").plan_processors

    def array(self, x):
        if self.name == "torchkv":
            import torch

            return torch.tensor(x)
        import jax.numpy as jnp

        return jnp.asarray(x)

    def process(self, logits_BV, rows, *, ends=(), slots=16, known=None, padding=0, **asked):
        """Return the logits of rows of (prompt, new), with `padding` behind each text."""
        found = self.plan(logits_BV.shape[1], len(rows), ends, **asked)
        assert found is not None
        tokens_BS = np.full((len(rows), slots), padding, np.int32)
        for row, (prompt, new) in zip(tokens_BS, rows, strict=True):
            row[: len(prompt) + len(new)] = [*prompt, *new]
        counts = np.array([(len(prompt) + len(new), len(new)) for prompt, new in rows], np.int32)
        out_BV = self.processors.process(
            self.array(logits_BV),
            self.processors.place(found, known),
            self.array(tokens_BS),
            self.array(counts[:, 0]),
            self.array(counts[:, 1]),
            self.array(np.array([*ends, -1], np.int32)),
        )
        return np.asarray(out_BV)
