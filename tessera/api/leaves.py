"""Arguments and results of the user's functions as arrays, and what messages call them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tessera import pytree
from tessera.api.annotations import CONDITIONS
from tessera.dtypes import DType, dtype_of
from tessera.errors import CallError, DTypeError, LeafError, PytreeError, TesseraError
from tessera.graph.array import Array, dtype_from_numpy
from tessera.graph.namespace.arguments import dim_value
from tessera.graph.namespace.conversion import from_dlpack
from tessera.graph.ops.elementwise import cast as cast_op
from tessera.graph.placement import gathered
from tessera.graph.remote import Remote
from tessera.graph.state import Cell
from tessera.graph.trace import Tracer, is_tracing
from tessera.ir import loc
from tessera.ir.intexpr import IntExpr
from tessera.ir.types import TensorType

Leaf = Array | Tracer

F = TypeVar("F", bound=Callable[..., Any])


def to_array(x: Any) -> Leaf | None:
    """A leaf as an array, or None where it is none.

    NumPy arrays are not copied: the result is for use while the caller holds them.

    Args:
        x: an array, a tracer, a NumPy array or scalar, a Python number (which is weakly typed), or
            an array of a library that has DLPack's table of functions, such as PyTorch's.
    """
    if isinstance(x, (Array, Tracer)):
        return x
    if isinstance(x, (np.ndarray, np.generic)):
        data: npt.NDArray[Any] = np.asarray(cast(Any, x))
        native = data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))
        try:
            dtype_from_numpy(native.dtype)
        except DTypeError:
            return None
        # A view: an array makes what it takes over read-only, and this is the user's.
        return Array(native.view())
    if isinstance(x, (bool, int, float, complex)):
        dtype, weak_type = _weak_type(type(x))
        try:
            return Array(np.asarray(x, dtype.np), weak_type)
        except OverflowError:
            raise DTypeError(
                f"the number {x} does not fit into {dtype.full_name}",
                loc=loc.current(),
                rule=f"a Python number becomes an array of {dtype.full_name}",
                fix="use a float",
            ) from None
    if hasattr(x, _EXCHANGE):
        return _exchanged(x)
    return dim_value(x) if isinstance(x, IntExpr) and is_tracing() else None


_EXCHANGE = "__dlpack_c_exchange_api__"


def _exchanged(x: Any) -> Leaf:
    """An array of another library, whose memory is shared."""
    try:
        found: Any = from_dlpack(x)
    except TesseraError:
        raise
    except (BufferError, RuntimeError, ValueError) as error:
        raise LeafError(
            f"an array of type {type(x).__name__} cannot be read: {error}",
            loc=loc.current(),
            rule="arrays of other libraries are read through DLPack",
            fix="pass `x.detach()`" if getattr(x, "requires_grad", False) is True else None,
        ) from None
    return found


@functools.cache
def _weak_type(cls: type) -> tuple[DType, TensorType]:
    base = next(c for c in (bool, int, float, complex) if issubclass(cls, c))
    dtype = dtype_of(base)
    return dtype, TensorType((), dtype, weak=True)


def leaf_error(x: Any, what: str, fix: str | None = None) -> TesseraError:
    """The error for a leaf that is no array.

    Args:
        x: the leaf.
        what: what to call it.
        fix: the remedy, by default those for an argument.
    """
    if isinstance(x, Cell):
        return LeafError(
            f"{what} is the ref `{x.name}`",
            loc=loc.current(),
            rule="a ref holds arrays and is none",
            fix="read it, `ref.get()`; or let the function find the ref outside: "
            "`lambda x: f(x, ref)`",
        )
    found = f"of type {type(x).__name__}"
    if isinstance(x, (np.ndarray, np.generic)):
        data: npt.NDArray[Any] = np.asarray(cast(Any, x))
        found = f"a NumPy array of dtype {data.dtype}"
        fix = "convert it to a numeric dtype"
        if data.dtype.kind in "fc":
            fix = "convert it first, as with `x.astype(np.float64)`"
    return LeafError(
        f"{what} is {found}",
        loc=loc.current(),
        rule="leaves of arguments and results are arrays of numbers or bools, or Python numbers",
        fix=fix,
    )


def leaf_arrays(
    tree: object, name: Callable[[pytree.TreeDef, int], str], fix: str | None = None
) -> tuple[list[Any], pytree.TreeDef]:
    """The leaves of a tree as arrays that nobody else can write to, and its structure.

    Args:
        tree: the tree.
        name: what messages call the leaf at a position of a structure.
        fix: the remedy for a leaf that is no array.
    """
    leaves, treedef = pytree.flatten(tree)
    found: list[Any] = []
    for k, x in enumerate(leaves):
        if type(x) is Array or isinstance(x, Tracer):
            found.append(x)
            continue
        array = to_array(x)
        if array is None:
            raise leaf_error(x, name(treedef, k), fix)
        found.append(owned(array, x))
    if found and any([type(x) is Array and type(x.storage) is Remote for x in found]):
        found = gathered(name(treedef, 0).partition(":")[0], found, leaves)
    return found, treedef


def owned(array: Leaf, leaf: object) -> Leaf:
    """The array of a leaf, in memory that nobody else can write to."""
    is_foreign = isinstance(leaf, np.ndarray) or hasattr(leaf, _EXCHANGE)
    if isinstance(array, Array) and is_foreign and not isinstance(array.storage, Remote):
        return Array(array.host.copy())
    return array


def check_callable(transform: str, fn: object, fix: str | None = None) -> None:
    """What a transform is given as a function can be called.

    Args:
        transform: the public function.
        fn: what it got.
        fix: the remedy.
    """
    if not callable(fn):
        raise CallError(
            f"{transform}: got a value of type {type(fn).__name__}, which is no function",
            loc=loc.current(),
            rule=f"`{transform}` takes a function of arrays",
            fix=fix,
        )


def wraps_other(fn: Callable[..., Any]) -> Callable[[F], F]:
    """`functools.wraps` for what takes or gives other arrays than `fn`: annotated shapes and
    conditions on them are not about these."""
    names = [n for n in functools.WRAPPER_ASSIGNMENTS if n != "__annotations__"]

    def wrap(run: F) -> F:
        functools.update_wrapper(run, fn, assigned=names)
        run.__dict__.pop(CONDITIONS, None)
        run.__annotations__ = {}
        return run

    return wrap


# --- names ------------------------------------------------------------------------------------


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a function, also of a partial one."""
    if isinstance(fn, functools.partial):
        inner: Callable[..., Any] = fn.func
        return name_of(inner)
    return getattr(fn, "__name__", type(fn).__name__)


def code_of(fn: Callable[..., Any]) -> Hashable:
    """What a function has in common with others that were made at the same place; None where that
    is not known."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__code__", None)


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters; `args[0]` and so on are left to the caller."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # builtins have none
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


def positional_name(fn: Callable[..., Any], position: int) -> str:
    """What a positional argument is called in the function's definition."""
    names = parameter_names(fn)
    return names[position] if position < len(names) else f"args[{position}]"


def argument_name(
    transform: str, fn: Callable[..., Any], argnums: Sequence[int] | None = None
) -> Callable[[pytree.TreeDef, int], str]:
    """What to call a leaf of the arguments of a call.

    Args:
        transform: the transform, which starts the message.
        fn: the user's function.
        argnums: where the structure is not that of `(args, kwargs)`, but of a list of some
            positional arguments, which ones.
    """

    def name(treedef: pytree.TreeDef, k: int) -> str:
        accessor: Any = treedef.accessors()[k]
        path: Any = accessor.path
        if argnums is not None:
            root, rest = positional_name(fn, argnums[int(path[0])]), accessor[1:]
        else:
            root = positional_name(fn, path[1]) if path[0] == 0 else str(path[1])
            rest = accessor[2:]
        return f"{transform}: argument `{rest.codify(root)}` of {name_of(fn)}"

    return name


def result_name(transform: str, fn: Callable[..., Any]) -> Callable[[pytree.TreeDef, int], str]:
    """What to call a leaf of the result of a function."""

    def name(treedef: pytree.TreeDef, k: int) -> str:
        path = pytree.paths(treedef)[k]
        what = f"`result{path}`" if path else "the result"
        return f"{transform}: {what} of {name_of(fn)}"

    return name


def leaf_name(transform: str, what: str) -> Callable[[pytree.TreeDef, int], str]:
    """What to call a leaf of something else that the user gives."""

    def name(treedef: pytree.TreeDef, k: int) -> str:
        path = pytree.paths(treedef)[k]
        return f"{transform}: {what}" + (f" at `{path}`" if path else "")

    return name


def check_structure(
    transform: str,
    found: pytree.TreeDef,
    wanted: pytree.TreeDef,
    names: tuple[str, str],
    root: str,
) -> None:
    """Two structures are the same.

    Args:
        transform: what needs it.
        found: one structure.
        wanted: the other.
        names: what messages call them.
        root: what paths in messages start with.
    """
    if found == wanted:
        return
    try:
        pytree.same_structure(found, wanted, what=transform, names=names, root=root)
    except PytreeError as error:
        raise error.at(loc.current()) from None


# --- conversions ------------------------------------------------------------------------------


def strong(x: Any) -> Any:
    """An array whose dtype does not yield to others."""
    return Array(x.storage) if isinstance(x, Array) and x.weak else x


def cast_weak(x: Any, type: TensorType) -> Any:
    """A number as an array of another dtype."""
    known = isinstance(x, Array) and not isinstance(x.storage, Remote)
    if known and x.dtype is not type.dtype:
        return Array(x.host.astype(type.dtype.np))
    return cast_op(x, type.dtype)
