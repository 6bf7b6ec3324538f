"""Control flow that depends on traced values: `cond`, `while_loop`, `fori_loop`.

The functions are traced once each, into regions of one op. What they use from outside becomes an
operand of that op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera import pytree
from tessera.api import python_control
from tessera.api.leaves import (
    cast_weak,
    check_callable,
    check_structure,
    leaf_arrays,
    leaf_name,
    name_of,
    result_name,
    strong,
)
from tessera.api.traced import Traced
from tessera.dtypes import DType, PythonScalar, bool_, default_int, promote, promote_scalar
from tessera.errors import DTypeError, ShapeError, api_boundary
from tessera.graph.namespace.elementwise import less
from tessera.graph.ops.control import Cond, While
from tessera.graph.trace import as_tuple, bind
from tessera.ir import loc
from tessera.ir.core import Block, Value
from tessera.ir.types import TensorType


@api_boundary
def cond(pred: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """The result of one of two functions; only that one is computed.

    Args:
        pred: one bool: a bool array without dims.
        then: what to compute where it holds, a function of the operands.
        otherwise: what to compute else; its results have the structure, the shapes and the dtypes
            of those of `then`.
        *operands: arrays, or containers of them.

    Example:
        >>> import tessera as ts
        >>> float(ts.cond(ts.asarray(2.0) > 1, lambda x: 2 * x, lambda x: -x, 5.0))
        10.0
    """
    ((choice,), _) = leaf_arrays((pred,), lambda treedef, k: "cond: pred")
    _check_bool("cond: pred", choice.type)
    if python_control.is_python() and python_control.is_known(choice):
        return python_control.cond(choice, then, otherwise, *operands)
    leaves, treedef = leaf_arrays(operands, leaf_name("cond", "operands"))
    branches = [_Region("cond", fn, treedef, leaves) for fn in (then, otherwise)]
    first, second = branches
    names = (_result("cond", then), _result("cond", otherwise))
    words = (names[0].removeprefix("cond: "), names[1].removeprefix("cond: "))
    check_structure("cond", first.traced.treedef, second.traced.treedef, words, "result")
    types: list[TensorType] = []
    for k, (a, b) in enumerate(zip(first.traced.types, second.traced.types, strict=True)):
        dtype = _joined(a, b)
        if dtype is None or a.shape != b.shape:
            path = pytree.paths(first.traced.treedef)[k]
            place = f"at `{path}`, " if path else ""
            raise (ShapeError if a.shape != b.shape else DTypeError)(
                f"cond: {place}{name_of(then)} returns {a.strong()}, "
                f"{name_of(otherwise)} {b.strong()}",
                loc=loc.current(),
                rule="both functions return arrays of the same shapes and dtypes",
            )
        types.append(TensorType(a.shape, dtype))
    branches = [branch.with_result_types(types) for branch in branches]
    blocks, captured = _close(branches)
    results = bind(Cond, choice, (*captured, *leaves), then=blocks[0], otherwise=blocks[1])
    return pytree.unflatten(first.traced.treedef, as_tuple(results))


@api_boundary
def while_loop(cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """Repeats a function while a condition holds.

    Args:
        cond: takes the carried value, and returns one bool.
        body: takes the carried value, and returns the next one, of the same structure, shapes and
            dtypes.
        init: the first carried value: an array, or a container of arrays.

    Returns:
        The carried value for which the condition does not hold.

    Example:
        >>> import tessera as ts
        >>> float(ts.while_loop(lambda x: x < 100, lambda x: 2 * x, 3.0))
        192.0
    """
    return _while("while_loop", cond, body, init)


@api_boundary
def fori_loop(lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """Repeats a function for each integer of a range.

    Args:
        lower: the first integer.
        upper: the end of the range, which does not belong to it.
        body: takes the integer and the carried value, and returns the next carried value, of the
            same structure, shapes and dtypes.
        init: the first carried value: an array, or a container of arrays.

    Returns:
        The last carried value.

    Example:
        >>> import tessera as ts
        >>> int(ts.fori_loop(0, 5, lambda i, total: total + i, 0))
        10
    """
    limits, _ = leaf_arrays((lower, upper), leaf_name("fori_loop", "limits"))
    for name, x in zip(("lower", "upper"), limits, strict=True):
        if x.ndim or not x.dtype.is_integer:
            raise DTypeError(
                f"fori_loop: {name} is {x.type.strong()}",
                loc=loc.current(),
                rule="limits are integers",
            )
    integer = TensorType((), default_int)
    start, stop = [cast_weak(x, integer) if x.type.weak else x for x in limits]

    carried = pytree.structure(init)
    words = (_result("fori_loop", body).removeprefix("fori_loop: "), "the carried value")

    @functools.wraps(body)
    def step(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        i, value = carry
        result = body(i, value)
        check_structure("fori_loop", pytree.structure(result), carried, words, "carried")
        return i + 1, result

    _, value = _while("fori_loop", lambda carry: less(carry[0], stop), step, (start, init))
    return value


def _while(name: str, cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    if python_control.is_python():
        is_done, found = python_control.while_loop(name, cond, body, init)
        if is_done:
            return found
    leaves, treedef = leaf_arrays(init, leaf_name(name, "the carried value"))
    leaves = [strong(x) for x in leaves]
    types = [x.type for x in leaves]
    test = _Region(name, cond, treedef, leaves, is_single=True)
    if not test.traced.treedef.is_leaf():
        shown = pytree.show(test.traced.treedef)
        raise DTypeError(
            f"{_result(name, cond)} is {shown}", loc=loc.current(), rule="it is one bool"
        )
    _check_bool(_result(name, cond), test.traced.types[0])
    step = _Region(name, body, treedef, leaves, is_single=True)
    word = _result(name, body).removeprefix(f"{name}: ")
    check_structure(name, step.traced.treedef, treedef, (word, "the carried value"), "carried")
    for k, (found, wanted) in enumerate(zip(step.traced.types, types, strict=True)):
        if found.shape != wanted.shape or _joined(found, wanted) is not wanted.dtype:
            same_shape = found.shape == wanted.shape
            path = pytree.paths(treedef)[k].removeprefix("[1]" if name == "fori_loop" else "")
            place = f" at `{path}`" if path else ""
            raise (DTypeError if same_shape else ShapeError)(
                f"{name}: the carried value{place} is {wanted.strong()} before a step and "
                f"{found.strong()} after it",
                loc=loc.current(),
                rule="a step keeps the shapes and the dtypes of what it carries",
                fix=f"start with {found.strong()}, or convert the result of {name_of(body)}"
                if same_shape
                else None,
            )
    (test_block, step_block), captured = _close([test, step.with_result_types(types)])
    results = bind(While, captured, tuple(leaves), cond=test_block, body=step_block)
    return pytree.unflatten(treedef, as_tuple(results))


class _Region:
    """A function of the user, traced to become a region.

    Args:
        name: the public function, for messages.
        fn: the user's function.
        treedef: structure of its argument, or of the tuple of its arguments.
        leaves: arrays of the types of its arguments.
        is_single: whether it takes one argument.
        types: the types that results are converted to.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        treedef: pytree.TreeDef,
        leaves: Sequence[Any],
        is_single: bool = False,
        types: Sequence[TensorType] | None = None,
    ) -> None:
        fix = None if is_single else "make a function of it, such as `lambda: value`"
        check_callable(name, fn, fix)
        self._again = (name, fn, treedef, leaves, is_single)

        def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            tree = pytree.unflatten(treedef, values)
            return ((tree,) if is_single else tree), {}

        @functools.wraps(fn)
        def run(*args: Any) -> Any:
            results, structure = leaf_arrays(fn(*args), result_name(name, fn))
            if types is not None:
                results = [cast_weak(x, t) for x, t in zip(results, types, strict=True)]
            return pytree.unflatten(structure, results)

        self.traced = Traced(
            run, rebuild, [x.type.strong() for x in leaves], None, name, staging=True
        )

    def with_result_types(self, types: Sequence[TensorType]) -> _Region:
        """The region whose weak results have these types; the same one where they have them."""
        if all(a.dtype is b.dtype for a, b in zip(self.traced.types, types, strict=True)):
            return self
        return _Region(*self._again, types)


def _close(regions: Sequence[_Region]) -> tuple[list[Block], tuple[Any, ...]]:
    """The regions' blocks, all with the captured values of all as leading arguments."""
    blocks: list[Block] = []
    for region in regions:
        body = region.traced.graph.body
        count = len(region.traced.captured)
        lead: list[Value] = []
        for other in regions:
            own = body.args[:count]
            lead += own if other is region else [Value(x.type) for x in other.traced.captured]
        blocks.append(Block([*lead, *body.args[count:]], body.ops, body.outputs))
    return blocks, tuple([x for region in regions for x in region.traced.captured])


def _joined(a: TensorType, b: TensorType) -> DType | None:
    """The dtype of values that are alike but for weakness, or None."""
    if a.weak and b.weak:
        return promote(a.dtype, b.dtype)
    if a.weak != b.weak:
        weak, other = (a, b) if a.weak else (b, a)
        sample: PythonScalar = np.zeros((), weak.dtype.np).item()
        return other.dtype if promote_scalar(other.dtype, sample) is other.dtype else None
    return a.dtype if a.dtype is b.dtype else None


def _check_bool(what: str, type: TensorType) -> None:
    if type.shape or type.dtype is not bool_:
        raise (ShapeError if type.shape else DTypeError)(
            f"{what} is {type.strong()}",
            loc=loc.current(),
            rule="it is one bool: a bool array without dims",
            fix="combine it with `ts.all` or `ts.any`"
            if type.shape
            else "compare it, as in `x != 0`",
        )


def _result(name: str, fn: Callable[..., Any]) -> str:
    return f"{name}: the result of {name_of(fn)}"
