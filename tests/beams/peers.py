"""Beam search of transformers on tiny peaked models, in float64."""

from typing import Any

import numpy as np
import torch

from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.huggingface import read_huggingface
from tests.encoder import peers as encoders
from tests.parity import peers as decoders
from tests.parity.peers import in_float64

NAMES = {"gpt2": "gpt2-plain", "llama": "llama-plain", "gemma3": "gemma3", "t5": "t5-even"}
# Longer than the windows of gemma3, shorter, and between.
ROWS = [[3, 41, 59, 26, 53, 58, 89, 79], [32, 38], [46, 26, 43, 38, 32]]
ENDS = {"gpt2": [82, 90], "llama": [54, 80], "gemma3": [33, 38, 88], "t5": [6, 67, 87]}
NEW = 9


def peer(name: str) -> Any:
    """Return the model in float64; run it under `in_float64`."""
    return (encoders if name == "t5" else decoders).peer(NAMES[name])


def save(name: str, path: Any) -> Checkpoint:
    """Return the checkpoint that transformers saves, read again."""
    peer(name).save_pretrained(path)
    return read_huggingface(path)


def asked(name: str) -> dict[str, Any]:
    """Return the rows as what they are to the model: prompts, or what its encoder reads."""
    return {"encoder" if name == "t5" else "prompts": ROWS}


def searched(
    name: str, *, beams: int, ends: list[int] | None, rows: list[list[int]] = ROWS, **options: Any
):
    """Return each row's texts, new tokens only, and their scores: [B][J], (B, J)."""
    width = max(map(len, rows))
    mask_BT = np.array([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    ids_BT = np.array([[0] * (width - len(row)) + row for row in rows])
    if name == "t5":
        # An encoder's text may be padded on the right, where its own positions begin.
        ids_BT, mask_BT = (x[:, ::-1] for x in (ids_BT, mask_BT))
        ids_BT = np.array([row + [0] * (width - len(row)) for row in rows])
    with torch.no_grad(), in_float64():
        found = peer(name).generate(
            input_ids=torch.from_numpy(ids_BT.copy()),
            attention_mask=torch.from_numpy(mask_BT.copy()),
            num_beams=beams,
            num_return_sequences=beams,
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    start = 1 if name == "t5" else width
    texts = [_cut(row, ends or []) for row in found.sequences[:, start:].tolist()]
    found_rows = [texts[at : at + beams] for at in range(0, len(texts), beams)]
    return found_rows, found.sequences_scores.numpy().reshape(len(rows), beams)


def _cut(ids: list[int], ends: list[int]) -> list[int]:
    """Return the new tokens of one text: up to its end token, or to the budget."""
    at = [i for i, token in enumerate(ids) if token in ends]
    return ids[: at[0] + 1] if at else ids[:NEW]
