"""Functions of shapes and dtypes alone: `ShapeDtypeStruct`, `eval_shape`, `make_graph`,
`closure_convert`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tessera import pytree
from tessera.api.leaves import (
    argument_name,
    cast_weak,
    check_callable,
    check_structure,
    leaf_arrays,
    name_of,
)
from tessera.api.problem import check_types
from tessera.api.refs import Ref
from tessera.api.stateful import contents, with_refs, without_refs
from tessera.api.traced import Refs, Traced
from tessera.dtypes import DType, dtype_of
from tessera.errors import CallError, ShapeError, api_boundary
from tessera.graph.device import using
from tessera.graph.ops.base import is_inexact
from tessera.graph.placement import device_of_all
from tessera.graph.trace import Tracer
from tessera.graph.transforms.evaluate import evaluate
from tessera.ir import loc as _loc
from tessera.ir.core import Func
from tessera.ir.types import TensorType


class ShapeDtypeStruct:
    """The shape and the dtype of an array without elements: an argument where no value is needed.

    Args:
        shape: the dims.
        dtype: the dtype.
        weak_type: whether the dtype yields to others, as that of a Python number does.

    Raises:
        ShapeError: a dim is no int of at least 0.

    Example:
        >>> import tessera as ts
        >>> ts.eval_shape(ts.sum, ts.ShapeDtypeStruct((2, 3), ts.float32))
        ShapeDtypeStruct(shape=(), dtype=float32)
    """

    __slots__ = ("type",)

    @api_boundary
    def __init__(self, shape: Sequence[int], dtype: Any, weak_type: bool = False) -> None:
        dims = tuple(shape)
        for dim in dims:
            if isinstance(dim, bool) or not isinstance(dim, int) or dim < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ShapeError(
                    f"ShapeDtypeStruct: the shape {dims} has {dim!r}",
                    loc=_loc.current(),
                    rule="dims are ints of at least 0",
                )
        self.type = TensorType(dims, dtype_of(dtype), weak_type)

    @classmethod
    def of(cls, type: TensorType) -> ShapeDtypeStruct:
        """That of a type, whose dims may be symbols."""
        found = cls.__new__(cls)
        found.type = type
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """The dims."""
        return tuple([int(dim) for dim in self.type.shape])  # pyright: ignore[reportArgumentType]

    @property
    def dtype(self) -> DType:
        """The dtype."""
        return self.type.dtype

    @property
    def weak_type(self) -> bool:
        """Whether the dtype yields to others."""
        return self.type.weak

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self.type.rank

    @property
    def size(self) -> int:
        """The number of elements."""
        return functools.reduce(int.__mul__, self.shape, 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and other.type == self.type

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype.full_name}{weak})"


def leaf_types(
    tree: object, name: Callable[[pytree.TreeDef, int], str]
) -> tuple[list[TensorType], list[Any], pytree.TreeDef]:
    """The types of the leaves of a tree, those that are arrays or tracers, and its structure.

    Args:
        tree: containers of arrays, numbers, and of what says their shape and dtype.
        name: what messages call the leaf at a position of a structure.
    """
    leaves, treedef = pytree.flatten(tree)
    given = {k: x for k, x in enumerate(leaves) if isinstance(x, ShapeDtypeStruct)}
    rest = [x for k, x in enumerate(leaves) if k not in given]
    places = [k for k in range(len(leaves)) if k not in given]
    arrays, _ = leaf_arrays(rest, lambda _, k: name(treedef, places[k]))
    found = dict(zip(places, arrays, strict=True))
    return [(given.get(k) or found[k]).type for k in range(len(leaves))], arrays, treedef


def _traced(
    transform: str, fn: Callable[..., Any], args: Any, kwargs: Any, refs: Refs = Refs.READ
) -> tuple[Traced, list[TensorType], pytree.TreeDef]:
    """A function traced for types; the types, and the structure of the arguments."""
    given, found = (args, kwargs), {}
    leaves, whole = pytree.flatten(given)
    if refs is Refs.INPUTS and any([isinstance(x, Ref) for x in leaves]):
        rest, structure, found = without_refs(leaves, whole, f"{transform}: {name_of(fn)}")
        given = pytree.unflatten(structure, rest)
    types, arrays, treedef = leaf_types(given, argument_name(transform, fn))

    def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return with_refs(values, whole, found, is_traced=True)

    with using(device_of_all([*arrays, *contents([*found.values()])])):
        traced = Traced(
            *(fn, rebuild, types, None, transform), staging=True, is_function=True, refs=refs
        )
    return traced, types, treedef


def traced_for(transform: str, fn: Callable[..., Any], args: Any, kwargs: Any) -> Traced:
    """A function traced for the types of arguments."""
    return _traced(transform, fn, args, kwargs, Refs.INPUTS)[0]


@api_boundary
def eval_shape(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The shapes and dtypes of what a function returns; nothing is computed.

    Args:
        fn: any function of arrays.
        *args: its arguments: arrays, or anything else with their `shape` and `dtype`, made by
            `ts.ShapeDtypeStruct`.
        **kwargs: likewise.

    Returns:
        What `fn` returns, with a `ShapeDtypeStruct` for each array.
    """
    check_callable("eval_shape", fn, "pass arguments beside it: `ts.eval_shape(f, x)`")
    traced = traced_for("eval_shape", fn, args, kwargs)
    structs = [ShapeDtypeStruct(t.shape, t.dtype, t.weak) for t in traced.types]  # pyright: ignore[reportArgumentType]
    return pytree.unflatten(traced.treedef, structs)


@api_boundary
def make_graph(fn: Callable[..., Any]) -> Callable[..., Func]:
    """A function that returns the traced Graph of `fn` for given arguments, printable.

    Example:
        >>> import tessera as ts
        >>> def double(x):
        ...     return x + x
        >>> print(ts.make_graph(double)(ts.asarray([1.0, 2.0])))
        func @double(%0: f32[2]) {
          %1 = graph.add(%0, %0) : f32[2]
          return %1
        }
    """
    check_callable("make_graph", fn, "pass arguments to what it returns: `ts.make_graph(f)(x)`")

    @api_boundary
    def run(*args: Any, **kwargs: Any) -> Func:
        return traced_for("make_graph", fn, args, kwargs).graph

    return run


@api_boundary
def closure_convert(
    fn: Callable[..., Any], *example_args: Any
) -> tuple[Callable[..., Any], list[Any]]:
    """A function without its closure: traced values that it takes from outside become arguments.

    For rules of the user (`custom_vjp`), which have derivatives with respect to arguments only.

    Args:
        fn: the function.
        *example_args: arguments of the types that it will be called with.

    Returns:
        `(converted, values)`: `converted(*args, *values)` is `fn(*args)`. The values are those
        with a derivative: traced, and floating-point or complex. Others stay in the closure.

    Example:
        >>> import tessera as ts
        >>> def slope(k):
        ...     converted, values = ts.closure_convert(lambda x: k * x, 1.0)
        ...     return converted(2.0, *values)
        >>> float(ts.grad(slope)(3.0))
        2.0
    """
    check_callable("closure_convert", fn, "pass example arguments beside it")
    traced, types, wanted = _traced("closure_convert", fn, example_args, {})
    hoisted = [
        k
        for k, x in enumerate(traced.captured)
        if isinstance(x, Tracer) and is_inexact(x.dtype)
    ]
    values = [traced.captured[k] for k in hoisted]
    count = len(example_args)
    name = argument_name("closure_convert", fn)

    @api_boundary
    def converted(*args: Any) -> Any:
        given, moved = args[:count], args[count:]
        no_kwargs: dict[str, Any] = {}
        leaves, treedef = leaf_arrays((given, no_kwargs), name)
        words = ("the arguments", "the example arguments")
        check_structure("closure_convert", treedef, wanted, words, "arguments")
        check_types(
            leaves,
            types,
            lambda k: (name(treedef, k), "the example"),
            "a converted function takes arguments of the types that it was converted for",
        )
        leaves = [cast_weak(x, type) for x, type in zip(leaves, types, strict=True)]
        if len(moved) != len(hoisted):
            raise CallError(
                f"closure_convert: the converted function got {len(moved)} values after its "
                f"arguments",
                loc=_loc.current(),
                rule=f"it takes the {len(hoisted)} values that it was returned with",
            )
        captured = list(traced.captured)
        for k, x in zip(hoisted, moved, strict=True):
            captured[k] = x
        return pytree.unflatten(traced.treedef, evaluate(traced.graph, [*captured, *leaves]))

    return converted, values
