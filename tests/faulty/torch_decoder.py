"""A small decoder with a preallocated key/value cache, written as one usually writes it.

Grouped queries, rotary positions, and a sliding window on the odd layers. Padding may stand on
either side; a token that is not real gets no position and is never read.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Config:
    vocab: int = 61
    width: int = 36
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 10
    hidden: int = 44
    window: int = 5
    theta: float = 100.0


class Cache:
    """Keys and values of every layer, [batch, capacity, kv heads, head width] each."""

    def __init__(self, config, batch, capacity, dtype):
        shape = (batch, capacity, config.kv_heads, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(config.layers)]
        self.real = torch.zeros(batch, capacity, dtype=torch.bool)
        self.position = torch.zeros(batch, capacity, dtype=torch.long)
        self.history = torch.zeros(batch, 0, dtype=torch.long)
        self.length = 0
        self.capacity = capacity

    def note(self, ids, real, position):
        """Take the bookkeeping of the tokens that the layers are about to write."""
        start, end = self.length, self.length + ids.shape[1]
        if end > self.capacity:
            raise ValueError(f"{end} tokens do not fit into a cache of {self.capacity}")
        self.real[:, start:end] = real
        self.position[:, start:end] = position
        self.history = torch.cat([self.history, ids], dim=1)
        self.length = end

    def update(self, layer, keys, values):
        """Write a layer's new keys and values, and return all that it holds."""
        start, end = self.length - keys.shape[1], self.length
        self.keys[layer][:, start:end] = keys
        self.values[layer][:, start:end] = values
        return self.keys[layer][:, : self.length], self.values[layer][:, : self.length]

    def crop(self, length):
        self.real[:, length:] = False
        self.history = self.history[:, :length]
        self.length = length

    def reorder(self, rows):
        self.keys = [keys[rows] for keys in self.keys]
        self.values = [values[rows] for values in self.values]
        self.real, self.position = self.real[rows], self.position[rows]
        self.history = self.history[rows]


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, position, theta):
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = position[..., None, None].to(x.dtype) * speed
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        [
            first * angle.cos() - second * angle.sin(),
            second * angle.cos() + first * angle.sin(),
        ],
        dim=-1,
    )


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.config, self.layer = config, layer
        self.window = config.window if layer % 2 else None
        self.q = nn.Linear(config.width, config.heads * config.head_dim)
        self.k = nn.Linear(config.width, config.kv_heads * config.head_dim)
        self.v = nn.Linear(config.width, config.kv_heads * config.head_dim)
        self.o = nn.Linear(config.heads * config.head_dim, config.width)

    def forward(self, x, position, mask, distance, cache):
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.config.heads, self.config.head_dim)
        k = self.k(x).view(batch, length, self.config.kv_heads, self.config.head_dim)
        v = self.v(x).view(batch, length, self.config.kv_heads, self.config.head_dim)
        q = rotate(q, position, self.config.theta)
        k = rotate(k, position, self.config.theta)
        if cache is not None:
            k, v = cache.update(self.layer, k, v)
        if self.window is not None:
            mask = mask & (distance < self.window)
        groups = self.config.heads // self.config.kv_heads
        k = k.repeat_interleave(groups, dim=2)
        v = v.repeat_interleave(groups, dim=2)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(self.config.head_dim)
        scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)
        out = torch.einsum("bhts,bshd->bthd", weights, v)
        return self.o(out.reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.attention_norm = RMSNorm(config.width)
        self.attention = Attention(config, layer)
        self.feed_norm = RMSNorm(config.width)
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x, position, mask, distance, cache):
        x = x + self.attention(self.attention_norm(x), position, mask, distance, cache)
        return x + self.down(nn.functional.gelu(self.up(self.feed_norm(x))))


class Decoder(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.config = config or Config()
        self.embed = nn.Embedding(self.config.vocab, self.config.width)
        self.blocks = nn.ModuleList(Block(self.config, i) for i in range(self.config.layers))
        self.norm = RMSNorm(self.config.width)
        self.head = nn.Linear(self.config.width, self.config.vocab)

    def new_cache(self, batch, capacity):
        return Cache(self.config, batch, capacity, self.head.weight.dtype)

    def forward(self, ids, cache=None, real=None, position=None, visible=None):
        """Return logits [batch, tokens, vocab].

        real: bool [batch, tokens], False for padding. position: int [batch, tokens], instead of
        counting the real tokens. visible: bool [batch, tokens, all tokens], instead of causal.
        """
        batch, length = ids.shape
        past = 0 if cache is None else cache.length
        if real is None:
            real = torch.ones(batch, length, dtype=torch.bool)
        if position is None:
            seen = 0 if cache is None else cache.real[:, :past].sum(dim=1, keepdim=True)
            position = (seen + real.long().cumsum(dim=1) - 1).clamp(min=0)
        if cache is None:
            all_real = real
        else:
            cache.note(ids, real, position)
            all_real = cache.real[:, : past + length]
        query = torch.arange(past, past + length)[:, None]
        mask = torch.arange(past + length)[None, :] <= query
        order = all_real.long().cumsum(dim=1)
        distance = order[:, past:, None] - order[:, None, :]
        if visible is not None:
            mask, distance = visible, torch.zeros_like(distance)
        mask = mask & all_real[:, None, :]
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, position, mask, distance, cache)
        return self.head(self.norm(x))
