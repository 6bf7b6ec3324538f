"""`linear_transpose`: linear functions backwards."""

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
    leaf_name,
    name_of,
)
from tessera.api.problem import check_types
from tessera.api.shapes import leaf_types
from tessera.api.traced import Rebuild, Traced
from tessera.errors import GradError, api_boundary
from tessera.graph.device import using
from tessera.graph.ops.base import GraphOp, is_inexact
from tessera.graph.ops.checks import title
from tessera.graph.ops.control import Control
from tessera.graph.passes.simplify import inline_calls
from tessera.graph.placement import device_of_all
from tessera.graph.transforms.differentiate import linearize, transpose_values, zeros_of
from tessera.ir import loc as _loc
from tessera.ir.core import Block, Func, Op, Value


@api_boundary
def linear_transpose(fn: Callable[..., Any], *primals: Any) -> Callable[..., Any]:
    """The transpose of a linear function.

    Args:
        fn: a function that is linear in all of its arguments together.
        *primals: arguments of the types that it takes: arrays, whose values do not matter, or
            `ts.ShapeDtypeStruct`.

    Returns:
        A function of a cotangent, of the structure, shapes and dtypes of the output of `fn`, to a
        tuple of one entry for each argument: what `ts.vjp(fn, *primals)[1]` is, at any point.

    Raises:
        GradError: `fn` is not linear, or an input or output has no derivative.

    Example:
        >>> import tessera as ts
        >>> a = ts.asarray([[1.0, 2.0], [3.0, 4.0]])
        >>> backwards = ts.linear_transpose(lambda x: a @ x, ts.ShapeDtypeStruct((2,), ts.float32))
        >>> backwards(ts.asarray([1.0, 0.0]))
        (Array([1., 2.], dtype=float32),)
    """
    check_callable("linear_transpose", fn, "pass arguments beside it")
    name = argument_name("linear_transpose", fn)
    no_kwargs: dict[str, Any] = {}
    types, arrays, treedef = leaf_types((primals, no_kwargs), name)
    types = [type.strong() for type in types]
    rebuild: Rebuild = functools.partial(pytree.unflatten, treedef)
    with using(device_of_all(arrays)):
        traced = Traced(fn, rebuild, types, None, "linear_transpose", staging=True)
    for k, type in enumerate(types):
        if not is_inexact(type.dtype):
            raise _no_derivative(name(treedef, k), type.dtype.full_name)
    for type in traced.types:
        if not is_inexact(type.dtype):
            what = f"linear_transpose: the result of {name_of(fn)}"
            raise _no_derivative(what, type.dtype.full_name)
    graph = traced.graph.with_body(inline_calls(traced.graph.body))
    _check_linear(graph, len(traced.captured), name_of(fn))

    @api_boundary
    def backwards(cotangent: Any) -> tuple[Any, ...]:
        """Cotangents of the arguments for one of the output."""
        names = leaf_name("linear_transpose", "the cotangent")
        leaves, found = leaf_arrays(cotangent, names)
        words = ("the cotangent", "the output")
        check_structure("linear_transpose", found, traced.treedef, words, "cotangent")
        check_types(
            leaves,
            traced.types,
            lambda k: (names(found, k), "the output"),
            "a cotangent has the shape and the dtype of the output",
        )
        cts = [cast_weak(ct, type) for ct, type in zip(leaves, traced.types, strict=True)]
        with using(device_of_all(cts)):
            result = [
                zeros_of(type) if ct is None else ct
                for ct, type in zip(
                    transpose_values(graph, traced.captured, cts), types, strict=True
                )
            ]
        args, _ = pytree.unflatten(treedef, result)
        return args

    return backwards


def _no_derivative(what: str, dtype: str) -> GradError:
    return GradError(
        f"{what} has dtype {dtype}, which has no derivative",
        loc=_loc.current(),
        rule="what is transposed is linear in floating-point or complex numbers",
        fix="pass it by a closure",
    )


def _check_linear(graph: Func, count: int, name: str) -> None:
    """Each operation is linear in what comes from the arguments.

    Args:
        graph: the Graph, without calls.
        count: how many of its arguments are known values.
        name: of the function.
    """
    linear: set[Value] = set(graph.args[count:])
    for op in graph.ops:
        if not any(v in linear for v in op.operands):
            continue
        linear.update(op.results)
        if isinstance(op, Control):
            continue  # its rule goes into its regions
        assert isinstance(op, GraphOp)
        if not op.differentiable or _bends(op, [v in linear for v in op.operands]):
            raise GradError(
                f"linear_transpose: {name} is not linear: it takes {title(op)} of an argument",
                loc=op.loc,
                rule="each operation is linear in what is computed from the arguments, taken "
                "together",
                fix="take `ts.vjp` for the transposed derivative at a point",
            )


def _bends(op: GraphOp, wrt: Sequence[bool]) -> bool:
    """Whether the derivative of an operation depends on the operands it is taken by."""
    args = [Value(v.type) for v in op.operands]
    copy = op.rebuild(args)
    func = Func("op", Block(args, [copy], list(copy.results)))
    forward, _, captured, _, residuals = linearize(func, wrt)
    depending: set[Value] = {
        v for v, w in zip(forward.args[len(captured) :], wrt, strict=True) if w
    }
    for part in forward.ops:
        _grow(part, depending)
    return any(v in depending for v in forward.outputs[len(forward.outputs) - residuals :])


def _grow(op: Op, depending: set[Value]) -> None:
    if any(v in depending for v in op.operands):
        depending.update(op.results)
