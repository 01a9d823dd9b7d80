"""Faults as edits of flax_decoder.py: fault -> what a tired engineer would have written."""

from tests.faulty.source_edits import Edit


def _edits(*pairs):
    return tuple(Edit("flax", old, new) for old, new in pairs)


POSITION = "            position = seen.sum(axis=1, keepdims=True) + jnp.cumsum(real, axis=1) - 1\n"
QUERIES = "        queries = past + jnp.arange(length)[:, None]\n"
MASK = "        mask = jnp.arange(slots)[None, :] <= queries\n"
SEEN = "        mask = mask & seen[:, None, :]\n"
STORE = "            cached_key.value, cached_value.value = key, value\n"
START = "            start = index.value\n"
BUFFER = (
    'jnp.zeros, shape, self.dtype)\n            cached_value = self.variable("cache", "value", '
)
HEAD = '        return nn.Dense(self.vocab, param_dtype=self.dtype, name="head")(x)\n'
LENGTHS = (
    '        if name in ("index", "filled"):\n            return jnp.asarray(length, jnp.int32)\n'
)
PICK = "        return leaf[rows]\n"

FLAX_EDITS = {
    "pos.reset": _edits(
        (POSITION, "            position = jnp.cumsum(real, axis=1) - 1\n"),
    ),
    "pos.off_by_one": _edits(
        (POSITION, POSITION.replace("- 1\n", "- jnp.where(past > 0, 0, 1)\n")),
    ),
    "pos.pad_shift": _edits(
        (POSITION, "            position = past + jnp.cumsum(real, axis=1) - 1\n"),
    ),
    "mask.top_left": _edits((QUERIES, "        queries = jnp.arange(length)[:, None]\n")),
    "mask.none": _edits(
        (QUERIES, QUERIES + "        queries = past + length if decode else queries\n"),
    ),
    "mask.off_by_one.narrow": _edits(
        (QUERIES, QUERIES + "        queries = queries - (past > 0)\n")
    ),
    "mask.empty_row_nan": _edits(("jnp.finfo(scores.dtype).min", "-jnp.inf")),
    "append.stale": _edits((STORE, "            cached_key.value = key\n")),
    "append.swap_kv": _edits(
        ("            start = index.value\n", "            key, value = value, key\n" + START),
    ),
    "append.dtype": _edits(
        (
            BUFFER + "jnp.zeros, shape, self.dtype)\n",
            BUFFER.replace("self.dtype", "jnp.bfloat16") + "jnp.zeros, shape, jnp.bfloat16)\n",
        ),
        (
            START,
            START + "            key, value = key.astype("
            "jnp.bfloat16), value.astype(jnp.bfloat16)\n",
        ),
        (STORE, STORE + "            key, value = key.astype(x.dtype), value.astype(x.dtype)\n"),
    ),
    "write.overlap": _edits((START, "            start = jnp.maximum(index.value - 1, 0)\n")),
    "capacity.clamp": _edits(
        ("    if filled + length > slots:\n", "    if filled > slots + length:\n"),
    ),
    "capacity.as_length": _edits(
        (
            MASK,
            "        column = jnp.arange(slots)[None, :]\n"
            "        mask = (column <= queries) | (column >= past + length)\n",
        ),
        (SEEN, "        mask = jnp.broadcast_to(mask, (batch, length, slots))\n"),
    ),
    "rollback.leak": _edits(
        (LENGTHS, LENGTHS.replace('("index", "filled")', '("filled",)')),
    ),
    "rollback.reset": _edits((LENGTHS, LENGTHS.replace("asarray(length, ", "asarray(0, "))),
    "gather.partial": _edits((PICK, '        return leaf if name == "value" else leaf[rows]\n')),
    "gather.skipped": _edits((PICK, "        return leaf[: len(rows)]\n")),
    "head.scale": _edits((HEAD, HEAD.replace("(x)\n", "(x) * (0.5 if decode else 1.0)\n"))),
    "head.slice": _edits(
        (HEAD, "        x = jnp.roll(x, 1, axis=1) if decode else x\n" + HEAD),
    ),
}
