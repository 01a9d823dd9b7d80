"""One decorator for every state class.

A frozen dataclass that JAX can take apart and put together unchecked.
"""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Return the class as a frozen dataclass registered as a pytree.

    Fields made by `static` are metadata.

    Unflattening goes through `object.__new__`, not through the constructor: transformations build
    trees of placeholders, and shape checks on the constructor (jaxtyping's import hook) must not
    see those.
    """
    frozen: type[T] = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(frozen)  # pyright: ignore[reportArgumentType] made a dataclass one line above
    data = tuple(field.name for field in fields if not field.metadata.get("static"))
    meta = tuple(field.name for field in fields if field.metadata.get("static"))

    def flatten_with_keys(node: Any) -> tuple[Any, Any]:
        children = tuple((jax.tree_util.GetAttrKey(name), getattr(node, name)) for name in data)
        return children, tuple(getattr(node, name) for name in meta)

    def flatten(node: Any) -> tuple[Any, Any]:
        return tuple(getattr(node, name) for name in data), tuple(
            getattr(node, name) for name in meta
        )

    def unflatten(aux: Any, children: Any) -> T:
        node = object.__new__(frozen)
        for name, value in zip(data + meta, (*children, *aux), strict=True):
            object.__setattr__(node, name, value)
        return node

    jax.tree_util.register_pytree_with_keys(frozen, flatten_with_keys, unflatten, flatten)
    return frozen


def static() -> Any:
    """Return a dataclass field that is metadata of the tree.

    Hashable, part of what a compiled program is made for.
    """
    return dataclasses.field(metadata={"static": True})
