"""What the reference decoder accepts: a config computed whole, weights all used, ids in range."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crosscheck.errors import DecoderError

_MODEL = {
    "family",
    "vocab_size",
    "width",
    "max_positions",
    "layers",
    "norm",
    "learned_positions",
    "tied_head",
    "head_bias",
    "dropout_rate",
}
_KNOWN = {
    "layer": {"attention", "mlp"},
    "attention": {
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "window",
        "rope",
        "qkv_bias",
        "out_bias",
        "soft_cap",
    },
    "rope": {"theta", "rotary_dim", "scaling"},
    "mlp": {"width", "activation", "gated", "bias"},
    "experts": {"num_experts", "top_k", "normalized", "expert"},
    "norm": {"kind", "eps"},
    "encoder": {"layers", "max_positions", "start_ids"},
    "latent": {"rank", "nope_width", "value_width", "norm_eps"},
    "relative": {"buckets", "max_distance"},
    "routing": {"scoring", "choice_bias", "num_groups", "top_groups", "group_score", "scale"},
}
# What a part may leave out: it is then off.
_OPTIONAL = {
    # Draft layers are no part of a decoder: neither how many there are nor whether they are read
    # changes what it says.
    "config": {
        "scaled_embedding",
        "logit_soft_cap",
        "draft_layers",
        "embed_norm",
        "position_offset",
        "final_norm",
        "scaled_head",
        "encoder",
        "has_mtp",
    },
    "layer": {"parallel", "post_norms", "norm_after", "cross"},
    "attention": {"score_width", "qk_norm", "latent", "relative", "causal"},
    "experts": {"routing", "shared"},
    "latent": {"query_rank", "mscale"},
    "norm": {"plus_one"},
    "rope": {"interleaved"},
}
_SCALINGS = {
    "dynamic": {"factor", "original_max_positions"},
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_positions"},
    "longrope": {
        "short_factors",
        "long_factors",
        "original_max_positions",
        "factor",
        "attention_factor",
    },
    "yarn": {
        "factor",
        "original_max_positions",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "beta_fast",
        "beta_slow",
        "truncate",
    },
}
_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


class Weights:
    """Weights by name, each checked for its shape when taken; remembers which were."""

    def __init__(self, arrays: Mapping[str, NDArray]) -> None:
        dtypes = sorted({str(array.dtype) for array in arrays.values()})
        if dtypes not in (["float64"], ["float32"]):
            raise DecoderError(
                f"arrays are {', '.join(dtypes) or 'empty'}, expected all float64 or all "
                "float32. Upcast them first."
            )
        self._arrays = arrays
        self._taken: set[str] = set()

    def take(self, name: str, *shape: int) -> NDArray:
        """Return one weight.

        Raises:
            DecoderError: It is missing or has another shape.
        """
        if name not in self._arrays:
            raise DecoderError(f"weight '{name}' missing; {len(self._arrays)} others are there.")
        array = self._arrays[name]
        if array.shape != shape:
            raise DecoderError(f"weight '{name}' has shape {array.shape}, expected {shape}.")
        self._taken.add(name)
        return array

    def check_all_used(self) -> None:
        """Refuse weights that the config gives no use for.

        Raises:
            DecoderError: A weight was never taken.
        """
        unused = sorted(set(self._arrays) - self._taken)
        if unused:
            raise DecoderError(
                f"weights never used: {', '.join(unused)}. Does the config describe another model?"
            )


def check_config(config: Mapping[str, Any]) -> None:
    """Refuse a config that asks for something which this decoder would silently leave out.

    Raises:
        DecoderError: A key is missing, or unknown and not None (None is off).
    """
    _check_part("config", config, _MODEL, _OPTIONAL["config"])
    _check_known("config.norm", config["norm"], "norm")
    _check_layers("config.layers", config["layers"])
    if config.get("encoder") is not None:
        _check_known("config.encoder", config["encoder"], "encoder")
        _check_layers("config.encoder.layers", config["encoder"]["layers"])


def _check_layers(name: str, layers: Sequence[Mapping[str, Any]]) -> None:
    for i, layer in enumerate(layers):
        owner = f"{name}[{i}]"
        _check_known(owner, layer, "layer")
        if layer.get("cross") is not None:
            _check_known(f"{owner}.cross", layer["cross"], "attention")
        if layer["attention"].get("relative") is not None:
            _check_known(f"{owner}.attention.relative", layer["attention"]["relative"], "relative")
        _check_known(f"{owner}.attention", layer["attention"], "attention")
        if layer["attention"].get("qk_norm") is not None:
            _check_known(f"{owner}.attention.qk_norm", layer["attention"]["qk_norm"], "norm")
        if layer["attention"].get("latent") is not None:
            _check_known(f"{owner}.attention.latent", layer["attention"]["latent"], "latent")
        _check_mlp(f"{owner}.mlp", layer["mlp"])
        if layer["attention"]["rope"] is not None:
            _check_rope(f"{owner}.attention.rope", layer["attention"]["rope"])


def _check_mlp(owner: str, mlp: Mapping[str, Any]) -> None:
    if "num_experts" in mlp:
        _check_known(owner, mlp, "experts")
        if mlp.get("routing") is not None:
            _check_known(f"{owner}.routing", mlp["routing"], "routing")
        if mlp.get("shared") is not None:
            _check_mlp(f"{owner}.shared", mlp["shared"])
        owner, mlp = f"{owner}.expert", mlp["expert"]
    _check_known(owner, mlp, "mlp")
    if mlp["activation"] not in _ACTIVATIONS:
        raise DecoderError(
            f"{owner}.activation is {mlp['activation']!r}, expected one of "
            f"{', '.join(map(repr, _ACTIVATIONS))}."
        )


def _check_rope(owner: str, rope: Mapping[str, Any]) -> None:
    _check_known(owner, rope, "rope")
    scaling = rope["scaling"]
    if scaling is None:
        return
    if scaling.get("kind") not in _SCALINGS:
        raise DecoderError(
            f"{owner}.scaling.kind is {scaling.get('kind')!r}, expected one of "
            f"{', '.join(map(repr, _SCALINGS))}."
        )
    _check_part(f"{owner}.scaling", scaling, _SCALINGS[scaling["kind"]] | {"kind"}, set())


def _check_known(owner: str, part: Mapping[str, Any], kind: str) -> None:
    _check_part(owner, part, _KNOWN[kind], _OPTIONAL.get(kind, set()))


def _check_part(owner: str, part: Mapping[str, Any], known: set[str], optional: set[str]) -> None:
    missing = sorted(known - set(part))
    known = known | optional
    unknown = sorted(key for key in part if key not in known and part[key] is not None)
    if missing:
        raise DecoderError(f"{owner} lacks {', '.join(map(repr, missing))}.")
    if unknown:
        raise DecoderError(
            f"{owner} has {', '.join(map(repr, unknown))}, which this decoder does not compute."
        )


def check_ids(ids: ArrayLike, vocab_size: int, max_positions: int) -> NDArray[np.integer]:
    """Return ids_BT as an array.

    Raises:
        DecoderError: Not integers [B, T], empty, out of the vocabulary, or longer than
            max_positions.
    """
    ids_BT = np.asarray(ids)
    if ids_BT.dtype.kind not in "iu" or ids_BT.ndim != 2 or ids_BT.size == 0:
        raise DecoderError(
            f"ids_BT is {ids_BT.dtype} {ids_BT.shape}, expected integers [B, T], at least one."
        )
    if not (ids_BT.min() >= 0 and ids_BT.max() < vocab_size):
        raise DecoderError(
            f"ids_BT holds ids {ids_BT.min()} to {ids_BT.max()}, expected 0 to "
            f"{vocab_size - 1} (config.vocab_size)."
        )
    if ids_BT.shape[1] > max_positions:
        raise DecoderError(
            f"ids_BT has {ids_BT.shape[1]} positions, the config {max_positions} "
            "(config.max_positions)."
        )
    return ids_BT


def check_counts(count: ArrayLike | None, rows: int, t: int) -> NDArray[np.integer]:
    """Return count_B as an array, T for every row if None.

    Raises:
        DecoderError: Not B integers between 0 and T.
    """
    count_B = np.full(rows, t) if count is None else np.asarray(count)
    if count_B.dtype.kind not in "iu" or count_B.shape != (rows,):
        raise DecoderError(
            f"count_B is {count_B.dtype} {count_B.shape}, expected integers ({rows},)."
        )
    if not (count_B.min() >= 0 and count_B.max() <= t):
        raise DecoderError(f"count_B holds {count_B.min()} to {count_B.max()}, expected 0 to {t}.")
    return count_B


def check_encoder(
    encoder: ArrayLike | None, config: Mapping[str, Any], rows: int
) -> list[NDArray | None]:
    """Return what the encoder reads for each row, None of each without an encoder.

    Raises:
        DecoderError: It is not ids [B, E] with an encoder, or given without one.
    """
    if config.get("encoder") is None:
        if encoder is not None:
            raise DecoderError("encoder_BE is given, but the config has no encoder.")
        return [None] * rows
    if encoder is None:
        raise DecoderError("encoder_BE is None, expected ids [B, E] for the config's encoder.")
    ids_BE = np.asarray(encoder)
    if ids_BE.ndim != 2 or len(ids_BE) != rows:
        raise DecoderError(f"encoder_BE is {ids_BE.shape}, expected ({rows}, E), a text a row.")
    check_ids(np.maximum(ids_BE, 0), config["vocab_size"], config["encoder"]["max_positions"])
    return [ids_E[ids_E >= 0] for ids_E in ids_BE]
