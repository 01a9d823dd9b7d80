"""A flax Linen module as a subject: its mutable collection `cache` is the state.

Letters: B rows, T tokens, V vocabulary, D width.
"""

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import calling, jax_tools
from crosscheck.errors import CrosscheckError
from crosscheck.subjects.amplify import NOTE, amplified, seed_of
from crosscheck.subjects.functions import FunctionSubject


def adapt_linen(
    module: Any,
    *,
    variables: Mapping[str, Any] | None = None,
    embed: int = 0,
    full_options: Mapping[str, Any] | None = None,
    step_options: Mapping[str, Any] | None = None,
    amplify: int | None = None,
    **facts: Any,
) -> FunctionSubject:
    """Return a subject for a Linen module.

    Decoding is `module.clone(decode=True)` where the module has that field, else `decode=True` in
    the call. The cache is the collection `cache` that `init` makes on inputs of the capacity.

    Args:
        module: Called with ids [B, T]; with `embed`, with vectors [B, T, D].
        variables: Its variables, with `params`; None: seeded ones.
        embed: D, where it takes vectors: tokens come through a seeded table, its outputs are the
            logits.
        full_options: Further arguments of the uncached call.
        step_options: Further arguments of the cached call.
        amplify: Seed of amplified weights; None keeps them.
        facts: As in `from_functions`.
    """
    model = LinenModel(module, variables, embed, full_options or {}, step_options or {})
    seed = seed_of(amplify)
    if seed is not None:
        model = model.with_weights(amplified(model.weights(), seed=seed, fan_in_axis=-2))
        facts["notes"] = (*facts.get("notes", ()), NOTE.format(seed=seed))
    known = {"name": type(module).__name__} | facts
    return jax_tools.subject(model, cached=model.has_cache(), facts=known)


class LinenModel:
    """The functional form of a Linen module."""

    def __init__(
        self, module: Any, variables: Any, embed: int, full_options: Any, step_options: Any
    ) -> None:
        self.module, self.embed = module, embed
        self.compiled: dict[str, Any] = {}
        self.options = (full_options, step_options)
        self.parameters = inspect.signature(module.__call__).parameters
        has_field = any(f.name == "decode" for f in fields(module))
        self.plain = module.clone(decode=False) if has_field else module
        self.decoding = module.clone(decode=True) if has_field else module
        self.variables = self._seeded() if variables is None else variables
        if "params" not in self.variables:
            raise CrosscheckError(
                f"adapt: variables holds {', '.join(self.variables)}, expected params among them."
            )

    def full(self, ids_BT: NDArray) -> Any:
        """Return uncached logits."""

        def run(fixed: Any, inputs: Any) -> Any:
            out = self.plain.apply(fixed, inputs, **self._given(inputs, False))
            return calling.split(out, None)[0]

        run = self.compiled.setdefault("full", jax_tools.traced(run))
        return run(self._fixed(), self._inputs(jax_tools.padded(ids_BT)))[:, : ids_BT.shape[1]]

    def has_cache(self) -> bool:
        """Return whether `init` makes a collection `cache`."""
        try:
            return bool(self.empty(1, 4))
        except Exception:
            return False

    def empty(self, batch: int, capacity: int) -> Any:
        """Return the collection `cache`, all zeros."""
        import jax
        import jax.numpy as jnp

        ids_BT = np.zeros((batch, capacity), np.int32)
        shapes = jax.eval_shape(
            lambda: self.decoding.init(
                jax.random.key(0), self._inputs(ids_BT), **self._given(ids_BT, True)
            )
        )
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes.get("cache", {}))

    def advance(self, cache: Any, ids_BT: NDArray) -> tuple[Any, Any]:
        """Return logits and the next cache."""

        def run(fixed: Any, cache: Any, inputs: Any) -> Any:
            options = self._given(inputs, True)
            known = {**fixed, "cache": cache}
            out, after = self.decoding.apply(known, inputs, mutable=["cache"], **options)
            return calling.split(out, None)[0], after["cache"]

        run = self.compiled.setdefault("step", jax_tools.traced(run))
        return run(self._fixed(), cache, self._inputs(ids_BT))

    def weights(self) -> dict[str, NDArray]:
        """Return the parameters by dotted name."""
        from flax.traverse_util import flatten_dict

        flat = flatten_dict(dict(self.variables["params"]), sep=".")
        return {name: jax_tools.numpy_of(value) for name, value in flat.items()}

    def with_weights(self, arrays: Mapping[str, NDArray], dtype: str | None = None) -> "LinenModel":
        """Return the same module with these weights; in another dtype, its `dtype` field too."""
        import jax.numpy as jnp
        from flax.traverse_util import unflatten_dict

        old = self.weights()
        new = {k: jnp.asarray(arrays.get(k, v), dtype or v.dtype) for k, v in old.items()}
        variables = {**self.variables, "params": unflatten_dict(new, sep=".")}
        names = {f.name for f in fields(self.module)} & {"dtype", "param_dtype"}
        named = {n: jnp.dtype(dtype) for n in names if dtype and getattr(self.module, n)}
        module = self.module.clone(**named)
        twin = LinenModel(module, variables, self.embed, *self.options)
        # Weights are arguments of what is compiled, dtypes are part of it.
        twin.compiled = self.compiled if dtype is None else {}
        return twin

    def _fixed(self) -> dict[str, Any]:
        return {name: part for name, part in self.variables.items() if name != "cache"}

    def _given(self, ids_BT: NDArray, decode: bool) -> dict[str, Any]:
        options = jax_tools.causal_options(self.parameters, ids_BT, decode=decode)
        return options | dict(self.options[1] if decode else self.options[0])

    def _inputs(self, ids_BT: NDArray) -> Any:
        import jax.numpy as jnp

        if not self.embed:
            return jnp.asarray(ids_BT, jnp.int32)
        table_VD = jax_tools.embedding(self.embed, self.embed)
        kinds = {str(w.dtype) for w in self.weights().values()} if self._has_params() else set()
        return jnp.asarray(table_VD[ids_BT], kinds.pop() if kinds else None)

    def _has_params(self) -> bool:
        return "params" in getattr(self, "variables", {})

    def _seeded(self) -> Any:
        import jax

        ids_BT = np.zeros((1, 2), np.int32)
        return self.plain.init(
            jax.random.key(0), self._inputs(ids_BT), **self._given(ids_BT, False)
        )
