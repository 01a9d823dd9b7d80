"""An ONNX Runtime session with past key and value inputs as a subject: `onnx:FILE`.

Letters: B rows, T tokens of this call, S tokens fed so far, K key/value heads, H head width.
"""

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters.torch_verbs import common
from crosscheck.errors import CrosscheckError, Refused
from crosscheck.subjects.functions import FunctionSubject, from_functions
from crosscheck.subjects.protocol import KV

DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}
FIXED = "a graph keeps the dtype that it was exported with"
UNPLACED = "the graph takes no position_ids, so padding would move the text"


@dataclass(frozen=True)
class Held:
    """What the graph gave for its past inputs, and which tokens were real."""

    past: tuple[NDArray, ...]
    real_BS: NDArray


def open_onnx(file: str, **facts: Any) -> FunctionSubject:
    """Return a subject for an ONNX file, run on the CPU; see `adapt_onnx`.

    Raises:
        CrosscheckError: ONNX Runtime is not installed, or can't open the file.
    """
    try:
        session = importlib.import_module("onnxruntime").InferenceSession(
            file, providers=["CPUExecutionProvider"]
        )
    except ImportError as error:
        raise CrosscheckError(f"onnx:{file}: {error}. Install onnxruntime.") from None
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise CrosscheckError(f"onnx:{file}: ONNX Runtime can't open it: {said}") from error
    return adapt_onnx(session, **{"name": f"onnx:{file}"} | facts)


def adapt_onnx(session: Any, **facts: Any) -> FunctionSubject:
    """Return a subject for an `onnxruntime.InferenceSession` of a decoder.

    It is fed `input_ids`, the past that the graph gave and, where it has them, `attention_mask`
    over all tokens so far and `position_ids`. The forward without a cache is the same graph with a
    past of no tokens. The adapter cuts the past and picks its rows: a graph has no verbs for it.

    Args:
        session: With past inputs [B, K, S, H], named by layer, and present outputs.
        facts: As in `from_functions`.

    Raises:
        CrosscheckError: The graph has inputs that mean nothing here, or no past.
    """
    takes = {each.name: each for each in session.get_inputs()}
    gives = [each.name for each in session.get_outputs()]
    past = _ordered([n for n in takes if re.search(r"past|cache", n) and re.search(r"\d", n)])
    present = _ordered([n for n in gives if re.search(r"present|past|cache", n)])
    rest = set(takes) - {*past, "input_ids", "attention_mask", "position_ids", "use_cache_branch"}
    if rest or not past or len(past) != len(present) or "input_ids" not in takes:
        raise CrosscheckError(
            f"adapt_onnx: inputs are {', '.join(takes)} with {len(present)} present outputs, "
            "expected input_ids, attention_mask, position_ids and past keys and values by layer, "
            "with one present output for each. Drive it with from_functions (docs/adapters.md)."
        )
    shape, dtype = takes[past[0]].shape, DTYPES.get(takes[past[0]].type, "float32")
    empty = [_empty(takes[name]) for name in past]
    logits = next((n for n in gives if "logits" in n), gives[0])

    def run(ids: NDArray, old: Held, mask: Any, positions: Any) -> tuple[NDArray, Held]:
        new = np.ones(ids.shape, bool) if mask is None else np.asarray(mask, bool)
        real_BS = np.concatenate([old.real_BS, new], axis=1)
        place = np.maximum(np.cumsum(real_BS, 1) - 1, 0)[:, -ids.shape[1] :]
        given = {"input_ids": ids, "attention_mask": real_BS}
        given["position_ids"] = place if positions is None else positions
        feed = {n: np.asarray(x, np.int64) for n, x in given.items() if n in takes}
        if "use_cache_branch" in takes:
            feed["use_cache_branch"] = np.array([old.real_BS.shape[1] > 0])
        out, *held = session.run([logits, *present], feed | dict(zip(past, old.past, strict=True)))
        return np.array(out), Held(tuple(held), real_BS)

    def init(batch: int) -> Held:
        held = tuple(np.zeros((batch, *x.shape[1:]), x.dtype) for x in empty)
        return Held(held, np.zeros((batch, 0), bool))

    def full(ids: NDArray, mask: Any = None, positions: Any = None) -> NDArray:
        return run(ids, init(len(ids)), mask, positions)[0]

    def step(state: Held, ids: NDArray, mask: Any = None, positions: Any = None) -> Any:
        return run(ids, state, mask, positions)

    def rollback(state: Held, length_B: NDArray) -> Held:
        fed, length = state.real_BS.shape[1], common(length_B)
        held = state.past[0].shape[2]
        if held != fed or not state.real_BS.all():
            raise Refused(f"rollback: the past holds {held} slots for {fed} tokens fed.")
        return Held(tuple(x[:, :, :length] for x in state.past), state.real_BS[:, :length])

    def gather(state: Held, rows: NDArray) -> Held:
        return Held(tuple(x[rows] for x in state.past), state.real_BS[rows])

    def kv(state: Held, layer: int) -> KV:
        keys, values = (np.swapaxes(x, 1, 2) for x in state.past[2 * layer : 2 * layer + 2])
        place_BS = np.where(state.real_BS, np.cumsum(state.real_BS, 1) - 1, -1)
        kept = slice(state.real_BS.shape[1] - keys.shape[1], None)
        return KV(keys, values, place_BS[:, kept], state.real_BS[:, kept])

    def with_kv(state: Held, layer: int, new: KV) -> Held:
        pair = [np.swapaxes(x, 1, 2).astype(dtype) for x in (new.keys_BSKH, new.values_BSKH)]
        past = (*state.past[: 2 * layer], *pair, *state.past[2 * layer + 2 :])
        return replace(state, past=past)

    verbs = (full, init, step, rollback, gather, kv, with_kv)
    calls: dict[str, Any] = {f.__name__: f for f in verbs} | {"fork": lambda state: state}
    known = {"num_layers": len(past) // 2, "kv_heads": shape[1], "dtype": dtype}
    return from_functions(**(known | _declared(set(takes), dtype) | calls | facts))


def _declared(takes: set[str], dtype: str) -> dict[str, Any]:
    """Return which capabilities a graph with these inputs has, and why not the others."""
    placed, padded = "position_ids" in takes, {"position_ids", "attention_mask"} <= takes
    known: dict[str, Any] = {"name": "ONNX session", "framework": "onnxruntime"}
    known |= {"positions": placed, "persistent": True, "left_pad": padded, "right_pad": padded}
    known |= {"f64": dtype == "float64", "f32": dtype == "float32"}
    lacking = () if padded else ("left_pad", "right_pad")
    return known | {"absent": {"f64": FIXED, "f32": FIXED} | dict.fromkeys(lacking, UNPLACED)}


def _ordered(names: Sequence[str]) -> list[str]:
    """Return names by layer, the key before the value."""
    return sorted(names, key=lambda n: ([int(d) for d in re.findall(r"\d+", n)], "value" in n))


def _empty(told: Any) -> NDArray:
    if len(told.shape) != 4 or not all(isinstance(told.shape[axis], int) for axis in (1, 3)):
        raise CrosscheckError(
            f"adapt_onnx: {told.name} is {told.shape}, expected [batch, heads, past, width], heads "
            "and width being numbers. Export it with them fixed."
        )
    return np.zeros((1, told.shape[1], 0, told.shape[3]), DTYPES.get(told.type, "float32"))
