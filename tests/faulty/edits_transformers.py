"""Faults as edits of transformers' own files: (family, fault) -> edits; which caches are static."""

from tests.faulty.source_edits import Edit


def _model(*pairs):
    return tuple(Edit("modeling", old, new) for old, new in pairs)


def _cache(*pairs):
    return tuple(Edit("cache_utils", old, new) for old, new in pairs)


PAST = " device=inputs_embeds.device) + past_seen_tokens\n"
ROTATE = (
    "        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)\n"
)
ADD = (
    "        attn_weights = attn_weights + attention_mask\n\n"
    "    attn_weights = nn.functional.softmax"
)
KEYS = "        self.keys = torch.cat([self.keys, key_states], dim=-2)\n"
VALUES = "        self.values = torch.cat([self.values, value_states], dim=-2)\n"
APPEND = KEYS + VALUES + "        return self.keys, self.values\n\n    def get_mask_sizes"
STATIC = (
    "        cache_position = torch.arange(kv_length, device=self.device) + "
    "self.cumulative_length\n"
    "        # Note that has to be performed in-place, as we have a static address that we "
    "need to keep\n"
    "        self.cumulative_length.add_(kv_length)\n"
)
KEYS_PICKED, VALUES_PICKED = (
    f"            self.{part} = self.{part}.index_select(0, beam_idx.to(self.{part}.device))\n"
    for part in ("keys", "values")
)
REORDER = (
    "        if self.get_seq_length() > 0:\n"
    + KEYS_PICKED
    + VALUES_PICKED
    + "\n\nclass DynamicLayer"
)
SELECT = (
    "            self.keys = self.keys[indices, ...]\n"
    "            self.values = self.values[indices, ...]\n"
    "\n\nclass DynamicSlidingWindowLayer"
)
MASKED = "        hidden_states = inputs_embeds\n        position_embeddings = self.rotary_emb("
KEEP = "        hidden_states = slice_logits_to_keep(hidden_states, logits_to_keep)\n"
LOGITS = "        logits = self.lm_head(hidden_states)\n"
WINDOW = "        super().__init__()\n        self.sliding_window = sliding_window\n"
TOP_LEFT = (
    "        top_left = torch.ones_like(attn_weights, dtype=torch.bool).tril()\n"
    "        attn_weights = attn_weights.masked_fill(~top_left, torch.finfo(query.dtype).min)\n"
)
ADDED, SOFTMAX = ADD.split("\n\n")

TRANSFORMERS_EDITS = {
    ("llama", "pos.reset"): _model((PAST, PAST.replace(" + past_seen_tokens", ""))),
    ("gpt2", "pos.reset"): _model((PAST, PAST.replace(" + past_seen_tokens", ""))),
    ("gpt2", "pos.off_by_one"): _model(
        (PAST, PAST.replace("past_seen_tokens", "max(past_seen_tokens - 1, 0)")),
    ),
    ("mistral", "pos.off_by_one"): _model(
        (PAST, PAST.replace("past_seen_tokens", "(past_seen_tokens and past_seen_tokens + 1)")),
    ),
    ("llama", "rope.twice"): _model(
        (
            ROTATE,
            ROTATE + "        if cache is not None:\n"
            "            _, key_states = apply_rotary_pos_emb("
            "query_states, key_states, cos, sin)\n",
        ),
    ),
    ("llama", "mask.top_left"): _model((ADD, ADDED + "\n" + TOP_LEFT + "\n" + SOFTMAX)),
    ("gpt2", "mask.top_left"): _model((ADD, ADDED + "\n" + TOP_LEFT + "\n" + SOFTMAX)),
    ("gpt2", "mask.none"): _model(
        (
            ADD,
            ADD.replace(
                "+ attention_mask", "+ attention_mask * (query.shape[-2] == key.shape[-2])"
            ),
        ),
    ),
    ("llama", "mask.off_by_one"): _model(
        (
            MASKED,
            "        if cache is not None and cache.get_seq_length() > 0:\n"
            "            causal_mask = nn.functional.pad(causal_mask[..., :-1], (1, 0))\n" + MASKED,
        ),
    ),
    ("mistral", "window.off_by_one"): _cache(
        (WINDOW, WINDOW.replace("= sliding", "= -1 + sliding"))
    ),
    ("mistral", "window.cache_only"): _model(
        (
            "create_causal_mask if self.config.sliding_window is None else "
            "create_sliding_window_causal_mask\n",
            "create_causal_mask\n",
        ),
    ),
    ("mistral", "length.from_ring"): _model(
        (
            "            past_seen_tokens = cache.get_seq_length() if cache is not None else 0\n",
            "            past_seen_tokens = 0\n"
            "            if cache is not None and cache.get_seq_length() > 0:\n"
            "                past_seen_tokens = cache.layers[0].keys.shape[-2]\n",
        ),
    ),
    ("llama", "append.swap_kv"): _cache(
        (
            APPEND,
            "        if self.keys.numel():\n"
            "            key_states, value_states = value_states, key_states\n" + APPEND,
        ),
    ),
    ("gpt2", "append.dtype"): _cache(
        (
            APPEND,
            APPEND.replace("key_states]", "key_states.to(torch.bfloat16).to(key_states.dtype)]"),
        ),
    ),
    ("mistral", "append.dtype"): _cache(
        (
            "        full_key_states = torch.cat([self.keys, key_states], dim=-2)\n",
            "        full_key_states = torch.cat([self.keys, key_states], dim=-2)\n"
            "        full_key_states = full_key_states.half().to(key_states.dtype)\n",
        ),
    ),
    ("gpt2", "append.stale"): _cache(
        (
            APPEND,
            "        if self.keys.numel():\n"
            "            value_states = torch.zeros_like(value_states)\n" + APPEND,
        ),
    ),
    ("llama", "concat.axis"): _cache(
        (
            APPEND,
            "        heads = key_states.shape[:2]\n"
            "        if self.keys.numel():\n"
            "            self.keys = torch.cat("
            "[self.keys.flatten(1, 2), key_states.flatten(1, 2)], 1)\n"
            "            self.values = torch.cat("
            "[self.values.flatten(1, 2), value_states.flatten(1, 2)], 1)\n"
            "            self.keys = self.keys.unflatten(1, (heads[1], -1))\n"
            "            self.values = self.values.unflatten(1, (heads[1], -1))\n"
            "            return self.keys, self.values\n" + APPEND,
        ),
    ),
    ("llama", "write.overlap"): _cache(
        (
            STATIC,
            STATIC.replace(
                "+ self.cumulative_length\n", "+ (self.cumulative_length - 1).clamp(min=0)\n"
            ),
        ),
    ),
    ("gpt2", "capacity.clamp"): _cache(
        (
            STATIC,
            STATIC + "        cache_position = cache_position.clamp(max=self.max_cache_len - 1)\n",
        ),
    ),
    ("llama", "gather.partial"): _cache(
        (REORDER, REORDER.replace(VALUES_PICKED, "")),
        (SELECT, SELECT.replace("            self.values = self.values[indices, ...]\n", "")),
    ),
    ("gpt2", "gather.partial"): _cache(
        (REORDER, REORDER.replace(KEYS_PICKED, "")),
        (SELECT, SELECT.replace("            self.keys = self.keys[indices, ...]\n", "")),
    ),
    ("mistral", "rollback.ignored"): _cache(
        (
            "        if tokens_to_remove == 0 or not self.is_initialized:\n            return\n",
            "        if tokens_to_remove <= 0 or not self.is_initialized:\n            return\n",
        ),
    ),
    ("mistral", "head.scale"): _model(
        (LOGITS, LOGITS + "        logits = logits * (0.5 if cache is not None else 1.0)\n"),
    ),
    ("llama", "head.slice"): _model(
        (
            KEEP,
            KEEP + "        if cache is not None:\n"
            "            hidden_states = hidden_states[:, -1:].expand_as(hidden_states)\n",
        ),
    ),
    ("llama", "train.dropout"): _model(
        ("p=dropout, training=module.training)", "p=0.1, training=True)"),
    ),
}
STATIC_CACHE = {("llama", "write.overlap"), ("gpt2", "capacity.clamp")}
