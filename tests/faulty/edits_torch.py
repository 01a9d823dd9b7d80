"""Faults as edits of torch_decoder.py: fault -> what a tired engineer would have written."""

from tests.faulty.source_edits import Edit


def _edits(*pairs):
    return tuple(Edit("torch", old, new) for old, new in pairs)


SEEN = "            seen = 0 if cache is None else cache.real[:, :past].sum(dim=1, keepdim=True)\n"
QUERY = "        query = torch.arange(past, past + length)[:, None]\n"
MASK = "        mask = torch.arange(past + length)[None, :] <= query\n"
ALL_REAL = "            all_real = cache.real[:, : past + length]\n"
WRITE = "        start, end = self.length - keys.shape[1], self.length\n"
NOTE = "        start, end = self.length, self.length + ids.shape[1]\n"
RETURN = "        return self.keys[layer][:, : self.length], self.values[layer][:, : self.length]\n"
UPDATE = "            k, v = cache.update(self.layer, k, v)\n"
LOGITS = "        return self.head(self.norm(x))\n"
SOFTMAX = "        weights = scores.softmax(dim=-1)\n"
INIT = "    def __init__(self, config, batch, capacity, dtype):\n"
CLEAR = "        self.real[:, length:] = False\n"

TORCH_EDITS = {
    "pos.reset": _edits((SEEN, "            seen = 0\n")),
    "pos.off_by_one": _edits(
        ("cumsum(dim=1) - 1)", "cumsum(dim=1) - (1 if past == 0 else 0))"),
    ),
    "pos.pad_shift": _edits((SEEN, "            seen = past\n")),
    "pos.shared_length": _edits(
        (
            SEEN,
            "            seen = 0 if cache is None else cache.real[:, :past].sum(dim=1).max()\n",
        ),
    ),
    "rope.twice": _edits(
        (UPDATE, "            k = rotate(k, position, self.config.theta)\n" + UPDATE),
    ),
    "mask.top_left": _edits((QUERY, "        query = torch.arange(length)[:, None]\n")),
    "mask.none": _edits(
        (MASK, MASK + "        mask = mask if past == 0 else torch.ones_like(mask)\n"),
    ),
    "mask.off_by_one": _edits(
        (QUERY, QUERY + "        query = query if past == 0 else query + 1\n")
    ),
    "mask.empty_row_nan": _edits(("torch.finfo(scores.dtype).min", 'float("-inf")')),
    "window.off_by_one": _edits(
        (
            "distance < self.window)",
            "distance < (self.window if cache is None else self.window - 1))",
        ),
    ),
    "append.stale": _edits(
        (
            "        self.values[layer][:, start:end] = values\n",
            "        if start == 0:\n            self.values[layer][:, start:end] = values\n",
        ),
    ),
    "append.swap_kv": _edits(
        (
            WRITE,
            WRITE + "        keys, values = (keys, values) if start == 0 else (values, keys)\n",
        ),
    ),
    "append.dtype": _edits(
        ("batch, capacity, self.head.weight.dtype)", "batch, capacity, torch.float16)"),
        (
            UPDATE,
            UPDATE + "            k, v = k.to(x.dtype), v.to(x.dtype)\n",
        ),
    ),
    "append.double": _edits(
        (INIT, INIT + "        capacity = 8 * capacity\n"),
        (
            NOTE,
            "        ids, real, position = (\n"
            "            torch.cat([new, new], dim=1) for new in (ids, real, position)\n"
            "        )\n" + NOTE,
        ),
        (
            WRITE,
            "        keys = torch.cat([keys, keys], dim=1)\n"
            "        values = torch.cat([values, values], dim=1)\n" + WRITE,
        ),
        (ALL_REAL, "            all_real = cache.real[:, : cache.length]\n"),
        (
            MASK,
            "        column = torch.arange(all_real.shape[1])\n"
            "        column = torch.where(column < past + length, column, column - length)\n"
            "        mask = column[None, :] <= query\n",
        ),
        ("order[:, past:, None]", "order[:, past : past + length, None]"),
    ),
    "prompt.reprocessed": _edits(
        (INIT, INIT + "        capacity = 8 * capacity\n"),
        (
            "        batch, length = ids.shape\n        past",
            "        fresh = ids.shape[1]\n"
            "        if cache is not None:\n"
            "            ids, real = torch.cat([cache.history, ids], dim=1), None\n"
            "        batch, length = ids.shape\n        past",
        ),
        (
            NOTE,
            NOTE + "        ids = ids[:, self.history.shape[1] :]\n",
        ),
        (LOGITS, "        return self.head(self.norm(x))[:, -fresh:]\n"),
    ),
    "write.overlap": _edits(
        (
            WRITE,
            WRITE + "        start, end = (start, end) if start == 0 else (start - 1, end - 1)\n",
        ),
    ),
    "capacity.clamp": _edits(
        (
            "            raise ValueError(f"
            '"{end} tokens do not fit into a cache of {self.capacity}")\n',
            "            start, end = self.capacity - ids.shape[1], self.capacity\n",
        ),
        (
            "        past = 0 if cache is None else cache.length\n",
            "        past = 0 if cache is None else min(cache.length, cache.capacity - length)\n",
        ),
    ),
    "capacity.as_length": _edits(
        (RETURN, "        return self.keys[layer], self.values[layer]\n"),
        (ALL_REAL, "            all_real = torch.ones_like(cache.real)\n"),
        (
            MASK,
            "        column = torch.arange(all_real.shape[1])[None, :]\n"
            "        mask = (column <= query) | (column >= past + length)\n",
        ),
        ("order[:, past:, None]", "order[:, past : past + length, None]"),
    ),
    "rollback.leak": _edits(
        (CLEAR, "        self.back, length = self.back + self.length - length, self.length\n"),
        ("        self.capacity = capacity\n", "        self.capacity, self.back = capacity, 0\n"),
        (SEEN, SEEN + "            seen = seen if cache is None else seen - cache.back\n"),
    ),
    "rollback.reset": _edits(
        (CLEAR, "        length = 0\n" + CLEAR),
    ),
    "gather.partial": _edits(("[values[rows] for values in self.values]", "list(self.values)")),
    "gather.skipped": _edits(
        ("[keys[rows] for keys in self.keys]", "[keys[: len(rows)] for keys in self.keys]"),
        ("[values[rows] for values in self.values]", "[v[: len(rows)] for v in self.values]"),
    ),
    "head.scale": _edits(
        (LOGITS, "        return self.head(self.norm(x)) * (1.0 if cache is None else 0.5)\n"),
    ),
    "head.slice": _edits(
        (
            LOGITS,
            "        x = self.norm(x)\n"
            "        return self.head(x if cache is None else x[:, -1:].expand_as(x))\n",
        ),
    ),
    "train.dropout": _edits(
        (SOFTMAX, "        weights = nn.functional.dropout(scores.softmax(dim=-1), 0.1)\n"),
    ),
}
