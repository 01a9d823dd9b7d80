"""One subject of `bench gpu` in a process of its own: SUBJECT DTYPE SHAPE ARGUMENTS (JSON).

Prints JSON: [{device}] after writing logits, or a list of {case, metric, unit, values, note}.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.compiled import CompiledRunner
from bench.floors import weight_read
from bench.gpu_shapes import SHAPES, random_checkpoint
from bench.peers import TransformersRunner
from bench.room import out_of_memory
from bench.runner import Runner
from bench.runners import TwinRunner
from bench.timing import seconds


def main(subject: str, dtype: str, shape: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements that `arguments` ask for."""
    runner = open_runner(subject, dtype, shape)
    device = Device(subject)
    if "logits" in arguments:
        np.save(arguments["logits"], logits(runner, SHAPES[shape].vocab_size))
        return [{"device": device.name}]
    found = []
    batch = arguments["batch"]
    layouts = arguments["layouts"]
    for context in arguments["contexts"]:
        case = "-".join([dtype, f"b{batch}", f"p{context}", *layouts])
        found += measure(runner, device, case, batch, context, arguments)
    if subject == "jaxkv" and batch == 1 and arguments["reads"]:
        read = weight_read(runner.model)
        read()
        values = [read() for _ in range(arguments["repeats"])]
        found.append(_found(f"{dtype}-b1", "weight_read_ms", "ms", values))
    return found


def open_runner(subject: str, dtype: str, shape: str) -> Runner:
    """Return a subject on the accelerator, where its framework sees one."""
    checkpoint = random_checkpoint(shape)
    if subject == "jaxkv":
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
        return TwinRunner(subject, checkpoint, dtype=dtype)
    import torch

    if torch.cuda.is_available():
        torch.set_default_device("cuda")
    if subject.startswith("torchkv"):
        eager = TwinRunner("torchkv", checkpoint, dtype=dtype)
        return eager if subject == "torchkv" else CompiledRunner(eager)
    _, _, cache = subject.partition("-")
    return TransformersRunner(checkpoint, cache=cache or "dynamic", dtype=dtype)


def logits(runner: Runner, vocab_size: int) -> np.ndarray:
    """Return the float32 logits of a fixed text's last position, without a cache."""
    ids = np.arange(7, 71, dtype=np.int32)[None] * 131 % vocab_size
    if isinstance(runner, TwinRunner | CompiledRunner):
        import importlib

        twin = runner.name.split("-")[0]
        subject = importlib.import_module(f"{twin}.subject").Subject(runner.model)
        return np.asarray(subject.full(ids)[:, -1], np.float32)
    import torch

    with torch.inference_mode():
        given = torch.tensor(ids, device=runner.model.device)
        return runner.model(given).logits[:, -1].float().cpu().numpy()


def measure(
    runner: Runner,
    device: "Device",
    case: str,
    batch: int,
    context: int,
    arguments: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return first token, steady decode and memory of one case, or rows that say why not."""
    vocab, new = runner.model.config.vocab_size, arguments["new"]
    prompts = [[(row * 37 + at * 11) % vocab for at in range(context)] for row in range(batch)]
    device.reset()
    before = device.held()
    # Only the twins have others than the contiguous one.
    layout = {"layout": arguments["layouts"][0]} if arguments["layouts"] else {}
    whole = runner.prepare(prompts, new, **layout)
    note = out_of_memory(whole)
    if note is not None:
        return [_found(case, name, "ms", [], note) for name in ("ttft_ms", "decode_ms_per_step")]
    first = runner.prepare(prompts, 1, **layout)
    first()
    firsts, steps = [], []
    for _ in range(arguments["repeats"]):
        firsts.append(device.timed(first) * 1000)
        steps.append((device.timed(whole) * 1000 - firsts[-1]) / (new - 1))
    found = [_found(case, "ttft_ms", "ms", firsts), _found(case, "decode_ms_per_step", "ms", steps)]
    for metric, value, why in device.memory(before):
        found.append(_found(case, metric, "B", [] if value is None else [value], why))
    return found


class Device:
    """The accelerator as one framework sees it: synchronised timing and its memory."""

    def __init__(self, subject: str):
        self._is_jax = subject == "jaxkv"
        if self._is_jax:
            import jax

            self._device = jax.devices()[0]
            self.name = self._device.device_kind
            return
        import torch

        self._cuda = torch.cuda if torch.cuda.is_available() else None
        self.name = "cpu" if self._cuda is None else self._cuda.get_device_name()

    def synchronise(self) -> None:
        """Wait until everything that was started is finished."""
        if self._is_jax:
            import jax
            import jax.numpy as jnp

            jax.block_until_ready(jnp.zeros(()) + 1)
        elif self._cuda is not None:
            self._cuda.synchronize()

    def timed(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call, alone on the device."""

        def whole() -> None:
            call()
            self.synchronise()

        self.synchronise()
        return seconds(whole)

    def reset(self) -> None:
        """Begin a new peak, where the framework can."""
        if not self._is_jax and self._cuda is not None:
            self._cuda.reset_peak_memory_stats()

    def held(self) -> int | None:
        """Return the bytes that are allocated now; None where the backend does not tell."""
        if self._is_jax:
            stats = self._device.memory_stats()
            return None if stats is None else stats.get("bytes_in_use")
        return None if self._cuda is None else self._cuda.memory_allocated()

    def memory(self, before: int | None) -> list[tuple[str, int | None, str]]:
        """Return metric, bytes or None, and why None: baseline, peak above it, and in all."""
        if before is None:
            why = "the backend keeps no statistics of its memory"
            return [("peak_above_baseline", None, why)]
        if self._is_jax:
            stats = self._device.memory_stats() or {}
            peak = stats.get("peak_bytes_in_use", 0) - before
            reserved = stats.get("pool_bytes")
            why = "" if reserved is not None else "the backend does not tell what it reserved"
            return [
                ("baseline", before, ""),
                ("peak_above_baseline", peak, "since the process began: JAX resets no peak"),
                ("allocated", stats.get("bytes_in_use"), ""),
                ("reserved", reserved, why),
            ]
        assert self._cuda is not None  # it told what it held
        return [
            ("baseline", before, ""),
            ("peak_above_baseline", self._cuda.max_memory_allocated() - before, ""),
            ("allocated", self._cuda.memory_allocated(), ""),
            ("reserved", self._cuda.memory_reserved(), ""),
        ]


def _found(case: str, metric: str, unit: str, values: list[Any], note: str = "") -> dict[str, Any]:
    return {"case": case, "metric": metric, "unit": unit, "values": values, "note": note}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))))
