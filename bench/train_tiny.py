"""`python -m bench.train_tiny --text FILE --out DIR`: train the checkpoint of jaxkv/spec/data/.

A GPT-2 of 0.9 million parameters on bytes, in minutes on one core. The text is any file; the one
used, its licence and the result stand in that folder's README. Letters: B windows of a batch, T
bytes of a window.
"""

import argparse
import importlib.metadata
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

CONTEXT, WIDTH, LAYERS, HEADS = 256, 128, 4, 4
BATCH, WARMUP = 8, 50
MATRIX_RATE, OTHER_RATE, DECAY = 0.02, 3e-3, 0.05
# A newline ends a line of the text (there a verse), so it ends a generated one too.
END = ord("\n")
# Every 20th block is held out: far fewer seams than single lines, and every part of the text.
BLOCK_LINES, HELD_OUT = 64, 20


@dataclass(frozen=True)
class Bytes:
    """A text as byte ids, cut into what is trained on and what is held out."""

    train: Tensor
    held_out: Tensor


def main(arguments: list[str] | None = None) -> int:
    """Train, save, load again, and print the loss of what was saved."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    text = split(options.text.read_bytes())
    model = new_model()
    print(f"versions    {_versions()}")
    print(f"text        {len(text.train):,} bytes to train on, {len(text.held_out):,} held out")
    print(f"parameters  {model.num_parameters():,}", flush=True)
    began = time.monotonic()
    train(model, text, minutes=options.minutes, steps=options.steps, seed=options.seed)
    save(model, options.out)
    stored = GPT2LMHeadModel.from_pretrained(options.out, dtype=torch.float32)
    bits = bits_per_byte(stored, text.held_out)
    print(f"saved       {options.out}, held-out {bits:.4f} bits a byte as stored")
    print(f"time        {(time.monotonic() - began) / 60:.1f} minutes")
    return 0


def split(text: bytes) -> Bytes:
    """Return the bytes of blocks of lines; every 20th block is held out."""
    lines = text.splitlines(keepends=True)
    blocks = [b"".join(lines[i : i + BLOCK_LINES]) for i in range(0, len(lines), BLOCK_LINES)]
    kept = [block for i, block in enumerate(blocks) if (i + 1) % HELD_OUT]
    held = blocks[HELD_OUT - 1 :: HELD_OUT]
    return Bytes(_ids(b"".join(kept)), _ids(b"".join(held)))


def config(*, activation: str) -> GPT2Config:
    """Return the sizes, in the terms of GPT-2; no dropout, for nothing is seen many times."""
    return GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        activation_function=activation,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=END,
        eos_token_id=END,
        use_cache=False,
    )


def new_model() -> GPT2LMHeadModel:
    """Return an untrained model whose table of positions starts as sines of many wavelengths.

    From noise, minutes are too few to find that a neighbour is a neighbour.
    """
    model = GPT2LMHeadModel(config(activation="gelu_pytorch_tanh"))
    # Not fused: faster for so short a context.
    model.set_attn_implementation("eager")
    wavelengths = 3 * CONTEXT ** (torch.arange(WIDTH // 2) / (WIDTH // 2 - 1))
    angle = 2 * math.pi * torch.arange(CONTEXT)[:, None] / wavelengths
    with torch.no_grad():
        model.transformer.wte.weight.mul_(2.5)
        model.transformer.wpe.weight.copy_(0.05 * torch.cat([angle.sin(), angle.cos()], dim=1))
    return model


def train(
    model: GPT2LMHeadModel, text: Bytes, *, minutes: float, steps: int | None, seed: int
) -> None:
    """Train in place, in bfloat16 products: a warm-up, then a cosine down to a hundredth.

    The blocks' matrices by Muon, which was after 150 steps where AdamW was after 250; all else by
    AdamW.

    Args:
        model: Its weights change.
        text: From `split`.
        minutes: How long; the first steps are timed to choose the number of steps.
        steps: The number of steps itself, which repeats a run; None to choose it by `minutes`.
        seed: Of the windows.
    """
    windows = torch.Generator().manual_seed(seed)
    optimizers = _optimizers(model)
    total, done, mean, began = steps or 10**9, 0, float("nan"), time.monotonic()
    model.train()
    while done < total:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * share_of_peak(done, total)
        bits = _step(model, optimizers, _batch(text.train, windows))
        mean = bits if math.isnan(mean) else 0.98 * mean + 0.02 * bits
        done += 1
        if done == WARMUP and steps is None:
            # The warm-up's rates do not depend on the total: choosing it now changes none.
            total = max(WARMUP, int(done * minutes * 60 / (time.monotonic() - began)))
        if done % 250 == 0 or done == total:
            held = bits_per_byte(model, text.held_out[:32768])
            seconds = time.monotonic() - began
            print(
                f"step {done:5d} of {total}  {seconds:5.0f} s  bits a byte: train {mean:.3f} "
                f"(running mean), held out {held:.3f} (first 32 KiB)",
                flush=True,
            )


def share_of_peak(step: int, total: int) -> float:
    """Return the learning rate of one step of `total`, as a share of its peak."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    share = (step - WARMUP) / max(1, total - WARMUP)
    return 0.01 + 0.99 * (1 + math.cos(math.pi * share)) / 2


@torch.no_grad()
def bits_per_byte(model: GPT2LMHeadModel, ids: Tensor) -> float:
    """Return the mean loss over adjacent windows, in bits; a window's first byte is not counted."""
    model.eval()
    count = len(ids) // CONTEXT
    windows_BT = ids[: count * CONTEXT].view(count, CONTEXT)
    losses = [_loss(model, part_BT) * len(part_BT) for part_BT in windows_BT.split(32)]
    model.train()
    return float(sum(losses)) / count / math.log(2)


def save(model: GPT2LMHeadModel, out: Path) -> None:
    """Write a Hugging Face directory: weights in float16, tokenizer, generation's defaults."""
    # The same function as the one trained with, under the name that GPT-2's checkpoints give it;
    # transformers computes that name in several passes over memory, hence the other for training.
    stored = GPT2LMHeadModel(config(activation="gelu_new"))
    stored.load_state_dict(model.state_dict())
    stored.config.use_cache = True
    stored.generation_config = GenerationConfig(bos_token_id=END, eos_token_id=END)
    stored.half().save_pretrained(out)
    PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(out)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose ids are the bytes of the UTF-8 text.

    It has no special token: a written-out one would be a text that does not come back.
    """
    vocab = {character: byte for byte, character in enumerate(_byte_characters())}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _byte_characters() -> list[str]:
    """Return the character by which GPT-2's byte-level vocabulary writes each byte.

    Source: openai/gpt-2, src/encoder.py, bytes_to_unicode.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]


def _optimizers(model: GPT2LMHeadModel) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.transformer.h.parameters() if p.dim() == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [
        {"params": matrices, "peak": MATRIX_RATE},
        {"params": others, "peak": OTHER_RATE},
    ]
    return [
        torch.optim.Muon(groups[:1], lr=MATRIX_RATE, weight_decay=DECAY),
        torch.optim.AdamW(groups[1:], lr=OTHER_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _step(model: GPT2LMHeadModel, optimizers: list[torch.optim.Optimizer], ids_BT: Tensor) -> float:
    with torch.autocast("cpu", torch.bfloat16):
        loss = _loss(model, ids_BT)
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item() / math.log(2)


def _loss(model: GPT2LMHeadModel, ids_BT: Tensor) -> Tensor:
    logits_BTV = model(input_ids=ids_BT[:, :-1]).logits
    return functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())


def _batch(ids: Tensor, windows: torch.Generator) -> Tensor:
    start_B1 = torch.randint(len(ids) - CONTEXT, (BATCH, 1), generator=windows)
    return ids[start_B1 + torch.arange(CONTEXT + 1)]


def _ids(text: bytes) -> Tensor:
    return torch.tensor(list(text), dtype=torch.int64)


def _versions() -> str:
    names = ("torch", "transformers", "tokenizers")
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    return ", ".join([python, *(f"{name} {importlib.metadata.version(name)}" for name in names)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m bench.train_tiny")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="read as bytes")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--minutes", type=float, default=15, metavar="N", help="default 15")
    parser.add_argument("--steps", type=int, metavar="N", help="instead of --minutes: repeat a run")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default 0")
    return parser


if __name__ == "__main__":
    sys.exit(main())
