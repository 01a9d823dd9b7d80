"""A flax NNX module as a subject: its `nnx.Cache` variables are the state.

Letters: B rows, T tokens, V vocabulary, D width.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import calling, jax_tools
from crosscheck.errors import CrosscheckError
from crosscheck.subjects.amplify import NOTE, amplified, seed_of
from crosscheck.subjects.functions import FunctionSubject


def adapt_nnx(
    module: Any,
    *,
    embed: bool = False,
    full_options: Mapping[str, Any] | None = None,
    step_options: Mapping[str, Any] | None = None,
    amplify: int | None = None,
    **facts: Any,
) -> FunctionSubject:
    """Return a subject for an NNX module.

    The cache is made by `init_cache` of the module, or of each attention inside it; a cached call
    gets `decode=True` where it takes that. It is left on the module's own variables, which are
    taken out after each call, so that every state can be used again.

    Args:
        module: Called with ids [B, T]; with `embed`, with vectors [B, T, D].
        embed: It takes vectors: tokens come through a seeded table, its outputs are the logits.
        full_options: Further arguments of the uncached call.
        step_options: Further arguments of the cached call.
        amplify: Seed of amplified weights; None keeps the module's.
        facts: As in `from_functions`.
    """
    model = NnxModel(module, embed, full_options or {}, step_options or {})
    seed = seed_of(amplify)
    if seed is not None:
        model = model.with_weights(amplified(model.weights(), seed=seed, fan_in_axis=-2))
        facts["notes"] = (*facts.get("notes", ()), NOTE.format(seed=seed))
    known = {"name": type(module).__name__} | facts
    return jax_tools.subject(model, cached=model.has_cache(), facts=known)


class NnxModel:
    """The functional form of an NNX module."""

    def __init__(
        self,
        module: Any,
        embed: bool,
        full_options: Mapping,
        step_options: Mapping,
        compiled: dict[Any, Any] | None = None,
    ) -> None:
        self.module, self.embed = module, embed
        self.compiled = {} if compiled is None else compiled
        # A module may make its cache in a dtype of its own; one that was cast takes the cast's.
        self.cast_to: str | None = None
        self._split: dict[tuple[int, int], Any] = {}
        self.options = (full_options, step_options)
        self.parameters = inspect.signature(module.__call__).parameters

    def full(self, ids_BT: NDArray) -> Any:
        """Return uncached logits."""
        from flax import nnx

        graph, params, rest = nnx.split(self.module, nnx.Param, ...)

        def run(params: Any, rest: Any, inputs: Any) -> Any:
            module = nnx.merge(graph, params, rest)
            out = self._run(module, inputs, decode=False)
            return calling.split(out, None)[0], nnx.split(module, nnx.Param, ...)[2]

        run = self.compiled.setdefault("full", jax_tools.traced(run))
        logits, after = run(params, rest, self._inputs(jax_tools.padded(ids_BT)))
        # Streams of random numbers go on, so that a module left in training mode shows.
        nnx.update(self.module, after)
        return logits[:, : ids_BT.shape[1]]

    def has_cache(self) -> bool:
        """Return whether somebody in the module makes a cache."""
        return bool(self._makers(self.module))

    def empty(self, batch: int, capacity: int) -> Any:
        """Return the cache variables as a nested dict."""
        from flax import nnx

        return nnx.to_pure_dict(self._parts(batch, capacity)[1])

    def advance(self, cache: Any, ids_BT: NDArray) -> tuple[Any, Any]:
        """Return logits and the next cache."""
        from flax import nnx

        size = self._size(cache)
        graph, template, rest = self._parts(*size)

        def run(cache: Any, rest: Any, inputs: Any) -> Any:
            state = nnx.clone(template)
            nnx.replace_by_pure_dict(state, cache)
            module = nnx.merge(graph, state, rest)
            logits = calling.split(self._run(module, inputs, decode=True), None)[0]
            return logits, nnx.to_pure_dict(nnx.state(module, nnx.Cache))

        run = self.compiled.setdefault(size, jax_tools.traced(run))
        return run(cache, rest, self._inputs(ids_BT))

    def _parts(self, batch: int, capacity: int) -> Any:
        """Return graph, empty cache and everything else of a module with a cache of this size."""
        from flax import nnx

        if (batch, capacity) not in self._split:
            module = nnx.clone(self.module)
            for owner in self._makers(module):
                self._make(owner, batch, capacity)
            graph, cache, rest = nnx.split(module, nnx.Cache, ...)
            if self.cast_to is not None:
                cache = jax_tools.floats_as(cache, self.cast_to)
            self._split[batch, capacity] = graph, cache, rest
        return self._split[batch, capacity]

    def weights(self) -> dict[str, NDArray]:
        """Return the parameters by dotted name."""
        from flax import nnx

        flat = nnx.to_flat_state(nnx.state(self.module, nnx.Param))
        return {".".join(map(str, p)): jax_tools.numpy_of(v[...]) for p, v in flat}

    def with_weights(self, arrays: Mapping[str, NDArray], dtype: str | None = None) -> "NnxModel":
        """Return a copy with these weights; in another dtype, its modules' dtypes too."""
        import jax.numpy as jnp
        from flax import nnx

        module = nnx.clone(self.module)
        flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
        for path, variable in flat:
            name = ".".join(map(str, path))
            wanted = dtype or variable[...].dtype
            new = arrays.get(name, variable[...])
            variable.set_value(jnp.asarray(new, wanted))
        nnx.update(module, nnx.from_flat_state(flat))
        if dtype is not None:
            _set_dtypes(module, dtype)
        # Weights are arguments of what is compiled, dtypes are part of it.
        compiled = self.compiled if dtype is None else None
        twin = NnxModel(module, self.embed, *self.options, compiled)
        twin.cast_to = dtype or self.cast_to
        return twin

    def _run(self, module: Any, inputs: Any, *, decode: bool) -> Any:
        options = jax_tools.causal_options(self.parameters, inputs, decode=decode)
        options |= self.options[1] if decode else self.options[0]
        return module(inputs, **options)

    def _inputs(self, ids_BT: NDArray) -> NDArray:
        if not self.embed:
            return ids_BT.astype(np.int32)
        rows = int(getattr(self.module, "out_features", self.module.in_features))
        table_VD = jax_tools.embedding(rows, int(self.module.in_features))
        kinds = {w.dtype for w in self.weights().values()}
        return table_VD.astype(kinds.pop())[ids_BT]

    def _makers(self, module: Any) -> list[Any]:
        """Return the module itself if it makes its cache, else everybody inside who does."""
        from flax import nnx

        if calling.maker(module):
            return [module]
        return [m for _, m in nnx.iter_modules(module) if calling.maker(m)]

    def _make(self, owner: Any, batch: int, capacity: int) -> None:
        make = getattr(owner, str(calling.maker(owner)))
        names = inspect.signature(make).parameters
        if "input_shape" in names:
            kinds = {w.dtype for w in self.weights().values()}
            make((batch, capacity, owner.in_features), dtype=kinds.pop())
        else:
            calling.made(make, batch, capacity)

    def _size(self, cache: Any) -> tuple[int, int]:
        """Return rows and room, read off a cached key."""
        from crosscheck.adapters.structure import leaves

        for array in leaves(cache) or ():
            if array.ndim == 4:
                return int(array.shape[0]), int(array.shape[1])
        raise CrosscheckError("adapt: the module's cache holds no array [B, S, K, H].")


def _set_dtypes(module: Any, dtype: str) -> None:
    """Set what modules compute in; a module that names no dtype follows its inputs."""
    import jax.numpy as jnp
    from flax import nnx

    for _, part in nnx.iter_modules(module):
        for name in ("dtype", "param_dtype"):
            if getattr(part, name, None) is not None:
                setattr(part, name, jnp.dtype(dtype))
