"""Arguments and results of the user's functions as arrays, and what messages call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera import pytree
from tessera.dtypes import dtype_of
from tessera.errors import LeafError
from tessera.graph.array import Array, ArrayBase
from tessera.graph.trace import Tracer
from tessera.ir import loc as _loc
from tessera.ir.types import TensorType

_SCALARS = (bool, int, float, complex)


def as_array(x: Any, where: str) -> Array | Tracer:
    """A leaf of an argument or result as an array.

    Args:
        x: an array, a tracer, a NumPy array or scalar, or a Python number (which is weakly typed).
        where: what to call it in the error.
    """
    if isinstance(x, (Array, Tracer)):
        return x
    if isinstance(x, _SCALARS):
        dtype = dtype_of(type(x))
        return Array(np.asarray(x, dtype.np), TensorType((), dtype, weak=True))
    if isinstance(x, (np.ndarray, np.generic)):
        data = np.asarray(x)
        if data.dtype.hasobject or (
            data.dtype.kind in "USMmV" and data.dtype.name not in _KNOWN_VOID
        ):
            raise LeafError(
                f"{where} is a NumPy array of dtype {data.dtype}",
                loc=_loc.current(),
                rule="arrays hold numbers or bools",
                fix="convert it to a numeric dtype, or make the argument static",
            )
        return Array(data)
    raise LeafError(
        f"{where} is of type {type(x).__name__}, which is no array",
        loc=_loc.current(),
        rule="arguments and results are arrays, numbers, or containers of them",
        fix="make it a static argument (`static_argnums`), or register its class as a pytree",
    )


_KNOWN_VOID = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"})


def name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def leaf_arrays(tree: Any, root: str) -> tuple[list[Array | Tracer], pytree.TreeDef]:
    leaves, treedef = pytree.flatten(tree)
    if all(isinstance(x, ArrayBase) for x in leaves):
        return leaves, treedef
    names = pytree.paths(treedef, root)
    return [as_array(x, n) for x, n in zip(leaves, names, strict=True)], treedef


def argument_name(treedef: pytree.TreeDef, k: int) -> str:
    path = pytree.paths(treedef, "arguments")[k]
    return path.replace("arguments[0]", "argument ", 1).replace(
        "arguments[1]", "keyword argument ", 1
    )


def strong(x: Any) -> Any:
    return Array(x.host) if isinstance(x, Array) and x.type.weak else x


def cast_weak(x: Any, type: TensorType) -> Any:
    return (
        Array(x.host.astype(type.dtype.np))
        if isinstance(x, Array) and x.dtype is not type.dtype
        else x
    )
