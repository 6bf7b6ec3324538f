"""Calling Python from programs: `io_callback`, `pure_callback`, and what `ts.debug` calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import numpy as np

from tessera import pytree
from tessera.api.leaves import check_callable, leaf_name, name_of, owned, to_array
from tessera.api.shapes import leaf_types
from tessera.dtypes import DType, Kind, dtype_of
from tessera.errors import DTypeError, LeafError, OptionError, PytreeError, api_boundary
from tessera.graph.array import Array, ArrayBase
from tessera.graph.ops.hostcall import Batching, HostCall
from tessera.graph.trace import Tracer, as_tuple, bind, recorded_call
from tessera.ir import loc
from tessera.ir.hostcall import Data, HostFunction
from tessera.ir.types import TensorType


@api_boundary
def io_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    /,
    *args: Any,
    ordered: bool = True,
    **kwargs: Any,
) -> Any:
    """Calls a Python function that does something, such as reading a file, for its results.

    It is an `io` effect (`ts.effects`): calls happen in the order in which the program has them,
    each exactly as often as that part of the program runs. Under `ts.vmap` there is one call for
    each example, in their order; loops and branches that differ between examples are run for one
    example after the other. Where a function is differentiated, calls belong to the forward pass,
    and a checkpoint keeps their results. What the function raises ends the program, and is raised
    where that was called.

    Args:
        callback: the function. Arrays among its arguments are `ts.Array`s.
        result_shape_dtypes: what it returns: containers of `ts.ShapeDtypeStruct`, or of arrays
            with the same shapes and dtypes; None if it returns nothing. It may return NumPy's
            arrays in their places, and Python numbers for arrays without dims.
        *args: its arguments: containers of arrays, which have values when the call comes, and of
            anything else, which is passed on as it is.
        ordered: False allows calls to be exchanged with others; today none is.
        **kwargs: its keyword arguments.

    Returns:
        What the function returned, as arrays.

    Raises:
        ShapeError: a result has another shape than it should.
        DTypeError: a result has another dtype.
        PytreeError: the containers are others.
        NotDifferentiableError: a derivative needs that of the results: they have none.

    Example:
        >>> import tessera as ts
        >>> rows = iter([[1.0, 2.0], [3.0, 4.0]])
        >>> row = ts.ShapeDtypeStruct((2,), ts.float32)
        >>> @ts.jit
        ... def f(x):
        ...     return x + ts.io_callback(lambda: ts.asarray(next(rows)), row)
        >>> f(0.0), f(0.0)
        (Array([1., 2.], dtype=float32), Array([3., 4.], dtype=float32))
    """
    del ordered
    check_callable("io_callback", callback, "pass its arguments after the types of its results")
    call = Call("io_callback", callback, args, kwargs)
    return call.run(result_shape_dtypes)


@api_boundary
def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    /,
    *args: Any,
    vmap_method: str = "sequential",
    **kwargs: Any,
) -> Any:
    """Calls a Python function that only computes its results.

    It has no effect: a call whose result nobody uses is left out, equal calls may be one, and where
    that helps (checkpoints, derivatives) a call may be made again.

    Args:
        callback: the function; see `ts.io_callback`.
        result_shape_dtypes: what it returns, as for `ts.io_callback`.
        *args: its arguments.
        vmap_method: what `ts.vmap` does. `"sequential"`: one call for each example.
            `"expand_dims"` and `"broadcast_all"`: one call for all, where arrays have a leading dim
            more, and results must have it, too; with the first that dim is 1 for those that are
            the same for all examples, with the second they are repeated.
        **kwargs: its keyword arguments.

    Returns:
        What the function returned, as arrays.

    Raises:
        OptionError: there is no such `vmap_method`.
        ShapeError: a result has another shape than it should.
        DTypeError: a result has another dtype.
        PytreeError: the containers are others.
        NotDifferentiableError: a derivative needs that of the results: they have none.

    Example:
        >>> import numpy as np
        >>> import tessera as ts
        >>> @ts.jit
        ... def f(x):
        ...     return ts.pure_callback(np.sqrt, x, x) + 1
        >>> f(ts.asarray([4.0, 9.0]))
        Array([3., 4.], dtype=float32)
    """
    check_callable("pure_callback", callback, "pass its arguments after the types of its results")
    known = [method.value for method in Batching]
    if vmap_method not in known:
        raise OptionError(
            f"pure_callback: vmap_method is {vmap_method!r}",
            loc=loc.current(),
            rule=f"it is one of {', '.join(map(repr, known))}",
        )
    call = Call("pure_callback", callback, args, kwargs)
    return call.run(result_shape_dtypes, Batching(vmap_method))


class Call:
    """A call of a Python function with what traced values turn out to be.

    Args:
        what: the public function that makes it.
        fn: the function; arrays are `ts.Array`s to it.
        args: its arguments.
        kwargs: its keyword arguments.
        named: whether messages name the function, too.
    """

    def __init__(
        self,
        what: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        named: bool = True,
    ) -> None:
        self.what = what
        self.name = f"{what} of {name_of(fn)}" if named else what
        self.fn = fn
        leaves, self.treedef = pytree.flatten((tuple(args), kwargs))
        self.operands: list[Any] = []
        self.places: list[int] = []
        for k, leaf in enumerate(leaves):
            if isinstance(leaf, (ArrayBase, np.ndarray)):
                array = to_array(cast("Any", leaf))
                if array is not None:
                    self.operands.append(owned(array, cast("Any", leaf)))
                    self.places.append(k)
        # What belongs to a trace must not be kept alive by a program that outlives it.
        self.rest = [None if isinstance(x, Tracer) else x for x in leaves]

    def tell(self) -> None:
        """Calls it, whenever the program gets here; what it returns is ignored."""

        def run(*values: Data) -> tuple[()]:
            self._call(values)
            return ()

        function = HostFunction(self.name, run, loc.current(), recorded_call())
        bind(HostCall, tuple(self.operands), function=function)

    def run(self, result_shape_dtypes: Any, batching: Batching | None = None) -> Any:
        """The results of the call.

        Args:
            result_shape_dtypes: what it gives.
            batching: how a pure function is batched; None for others.
        """
        names = leaf_name(self.what, "result_shape_dtypes")
        types, _, treedef = leaf_types(result_shape_dtypes, names)
        types = [t.strong() for t in types]

        def run(*values: Data) -> list[Data]:
            return self._results(self._call(values), types, treedef)

        paths = pytree.paths(treedef)
        labels = [f"`result{path}`" if path else "the result" for path in paths]
        key = self._key(types, treedef) if batching else None
        function = HostFunction(self.name, run, loc.current(), recorded_call(), labels, key)
        attrs: dict[str, Any] = {"function": function, "types": tuple(types)}
        if batching is not None:
            attrs |= {"pure": True, "batching": batching}
        results = as_tuple(bind(HostCall, tuple(self.operands), **attrs))
        return pytree.unflatten(treedef, results)

    def _call(self, values: Sequence[Data]) -> Any:
        found = list(self.rest)
        for k, value in zip(self.places, values, strict=True):
            found[k] = Array(value)
        args, kwargs = pytree.unflatten(self.treedef, found)
        return self.fn(*args, **kwargs)

    def _key(self, types: Sequence[TensorType], treedef: pytree.TreeDef) -> Hashable:
        """What equal calls have in common; None where that cannot be compared."""
        given = set(self.places)
        rest: list[Hashable] = [None if k in given else x for k, x in enumerate(self.rest)]
        kinds: list[Hashable] = [x.__class__ for x in rest]  # as 1 == True
        key = (self.fn, self.name, self.treedef, *rest, *kinds, *types, treedef)
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _results(
        self, tree: Any, types: Sequence[TensorType], treedef: pytree.TreeDef
    ) -> list[Data]:
        """The leaves of what the function returned."""
        leaves, found = pytree.flatten(tree)
        if found != treedef:
            if not treedef.num_leaves:
                raise PytreeError(
                    f"{self.name}: the function returns something, and `result_shape_dtypes` has "
                    "no arrays",
                    rule="a host function gives what it was said to give",
                    fix="return None, or say what it returns",
                )
            whole = ("the result", "`result_shape_dtypes`")
            pytree.same_structure(found, treedef, what=self.name, names=whole, root="result")
        return [self._data(x, t) for x, t in zip(leaves, types, strict=True)]

    def _data(self, x: Any, type: TensorType) -> Data:
        """A leaf as elements. Numbers take the dtype that is wanted."""
        if _is_number_of(x, type.dtype):
            return np.asarray(x, type.dtype.np)
        if isinstance(x, Array):
            return x.host
        data = np.asarray(x)
        try:
            dtype_of(data.dtype)
        except (DTypeError, TypeError):
            raise LeafError(
                f"{self.name}: the function returns an object of type {x.__class__.__name__}",
                rule="it returns arrays and numbers",
            ) from None
        return data


def _is_number_of(x: object, dtype: DType) -> bool:
    """Whether something is a Python number, for arrays of a dtype."""
    if isinstance(x, bool):
        return True
    if isinstance(x, int):
        return dtype.kind is not Kind.BOOL
    if isinstance(x, float):
        return dtype.is_inexact
    return isinstance(x, complex) and dtype.kind is Kind.COMPLEX
