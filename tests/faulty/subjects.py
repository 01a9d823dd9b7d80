"""The two hand-written decoders behind the protocol: numpy in, numpy out, nothing more."""

import copy

import numpy as np

from crosscheck.subjects.protocol import KV, SubjectInfo

SHARED = ("cache", "chunk", "capacity", "rollback", "gather", "fork", "left_pad", "right_pad")
# Compiling takes far longer than running: ask for little of it.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
SHARED += ("positions", "visible", "kv", "kv_write", "f64")


class TorchSubject:
    """A torch decoder of tests/faulty/torch_decoder.py, edited or not."""

    def __init__(self, module, model, name):
        self.module, self.model = module, model
        config = model.config
        windows = tuple(config.window if i % 2 else None for i in range(config.layers))
        self.info = SubjectInfo(
            name=name,
            framework="torch",
            dtype="float64",
            vocab_size=config.vocab,
            num_layers=config.layers,
            capabilities=frozenset({*SHARED, "rope", "persistent"}),
            kv_heads=config.kv_heads,
            windows=windows,
        )

    def full(self, ids, *, mask=None, positions=None, visible=None):
        return self._forward(ids, None, mask, positions, visible)

    def init(self, batch, capacity=None):
        return self.model.new_cache(batch, 40 if capacity is None else capacity)

    def step(self, state, ids, *, mask=None, positions=None, visible=None):
        state = copy.deepcopy(state)
        return self._forward(ids, state, mask, positions, visible), state

    def _forward(self, ids, state, mask, positions, visible):
        import torch

        given = [
            None if array is None else torch.tensor(np.asarray(array))
            for array in (mask, positions, visible)
        ]
        with torch.no_grad():
            logits = self.model(torch.tensor(np.asarray(ids, np.int64)), state, *given)
        return logits.numpy()

    def length(self, state):
        return state.real[:, : state.length].sum(dim=1).numpy()

    def rollback(self, state, length):
        state = copy.deepcopy(state)
        state.crop(int(np.max(length)) + int(_padding(state.real.numpy(), state.length)))
        return state

    def gather(self, state, rows):
        state = copy.deepcopy(state)
        state.reorder(list(map(int, rows)))
        return state

    def fork(self, state):
        return copy.deepcopy(state)

    def kv(self, state, layer):
        n = state.length
        return KV(
            state.keys[layer][:, :n].numpy(),
            state.values[layer][:, :n].numpy(),
            state.position[:, :n].numpy(),
            state.real[:, :n].numpy(),
        )

    def with_kv(self, state, layer, kv):
        import torch

        state = copy.deepcopy(state)
        n = kv.keys_BSKH.shape[1]
        state.keys[layer][:, :n] = torch.tensor(kv.keys_BSKH)
        state.values[layer][:, :n] = torch.tensor(kv.values_BSKH)
        return state

    def cast(self, dtype):
        if dtype != "float64":
            raise ValueError(f"cast: dtype is {dtype!r}, expected 'float64'.")
        return self


class FlaxSubject:
    """A Linen decoder of tests/faulty/flax_decoder.py, edited or not; steps are compiled."""

    def __init__(self, module, model, params, name):
        import jax

        self.module, self.model, self.params = module, model, params
        self.info = SubjectInfo(
            name=name,
            framework="jax",
            dtype="float64",
            vocab_size=model.vocab,
            num_layers=model.layers,
            capabilities=frozenset({*SHARED, "persistent"}),
            kv_heads=model.heads,
            windows=(None,) * model.layers,
            max_positions=model.longest,
        )
        self._full = jax.jit(
            lambda p, *args: model.apply({"params": p}, *args), compiler_options=QUICK
        )
        self._steps = {}

    def full(self, ids, *, mask=None, positions=None, visible=None):
        # A few widths only, so that little is compiled; what is right of a token never matters.
        length = ids.shape[1]
        wide = -(-length // 16) * 16
        pad = ((0, 0), (0, wide - length))
        real = np.ones(ids.shape, bool) if mask is None else np.asarray(mask, bool)
        if positions is None:
            positions = np.maximum(np.cumsum(real, axis=1) - 1, 0)
        if visible is None:
            visible = np.broadcast_to(np.tri(length, dtype=bool), (len(ids), length, length))
        visible = np.pad(visible, (*pad, (0, wide - length)))
        visible[:, length:, :length] = True
        out = self._full(
            self.params,
            np.pad(ids, pad).astype(np.int32),
            np.pad(real, pad),
            np.pad(positions, pad).astype(np.int32),
            visible,
        )
        return np.asarray(out)[:, :length]

    def init(self, batch, capacity=None):
        import jax
        import jax.numpy as jnp

        model = self._model(capacity)
        shapes = jax.eval_shape(
            lambda: model.init(jax.random.key(0), jnp.zeros((batch, 1), int), decode=True)
        )
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes["cache"])

    def _model(self, capacity):
        return self.model.clone(capacity=32 if capacity is None else int(capacity))

    def step(self, state, ids, *, mask=None, positions=None, visible=None):
        import jax

        self.module.room(state, ids.shape[1])
        slots = state["real"].shape[1]
        if slots not in self._steps:
            model = self._model(slots)

            def apply(params, cache, *args):
                variables = {"params": params, "cache": cache}
                return model.apply(variables, *args, decode=True, mutable=["cache"])

            self._steps[slots] = jax.jit(apply, compiler_options=QUICK)
        if visible is not None:
            visible = np.asarray(visible, bool)
            visible = np.pad(visible, ((0, 0), (0, 0), (0, slots - visible.shape[2])))
        real = np.ones(ids.shape, bool) if mask is None else np.asarray(mask, bool)
        if positions is not None:
            positions = np.asarray(positions, np.int32)
        ids = np.asarray(ids, np.int32)
        logits, new = self._steps[slots](self.params, state, ids, real, positions, visible)
        return np.asarray(logits), new["cache"]

    def length(self, state):
        return np.asarray(state["real"]).sum(axis=1)

    def rollback(self, state, length):
        padding = _padding(np.asarray(state["real"]), int(state["filled"]))
        return self.module.crop(state, int(np.max(length)) + int(padding))

    def gather(self, state, rows):
        return self.module.reorder(state, np.asarray(rows))

    def fork(self, state):
        return state

    def kv(self, state, layer):
        n = int(state["filled"])
        real = np.asarray(state["real"])[:, :n]
        site = state[f"attention_{layer}"]
        return KV(
            np.asarray(site["key"])[:, :n],
            np.asarray(site["value"])[:, :n],
            np.maximum(np.cumsum(real, axis=1) - 1, 0),
            real,
        )

    def with_kv(self, state, layer, kv):
        n = kv.keys_BSKH.shape[1]
        site = state[f"attention_{layer}"]
        site = {
            **site,
            "key": site["key"].at[:, :n].set(kv.keys_BSKH),
            "value": site["value"].at[:, :n].set(kv.values_BSKH),
        }
        return {**state, f"attention_{layer}": site}

    def cast(self, dtype):
        if dtype != "float64":
            raise ValueError(f"cast: dtype is {dtype!r}, expected 'float64'.")
        return self


def _padding(real_BS, filled):
    """Return how many of the slots held before the last real one are padding, in every row."""
    return min(filled - real_BS[:, :filled].sum(axis=1).max(), filled)
