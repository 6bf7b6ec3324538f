"""Control flow that depends on traced values: `cond`, `switch`, `while_loop`, `fori_loop`.

The functions are traced once each, into regions of one op. What they use from outside becomes an
operand of that op. Loops over slices are in `loops.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

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
)
from tessera.api.loops import counted
from tessera.api.refs import Carried
from tessera.api.regions import Carry, Region, check_bool, joined, result_text
from tessera.dtypes import bool_, default_int
from tessera.errors import CallError, DTypeError, ShapeError, StateError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.closed import Closed
from tessera.graph.namespace.arguments import ArrayLike
from tessera.graph.namespace.elementwise import less
from tessera.graph.ops.control import Cond, While
from tessera.graph.ops.elementwise import cast as cast_op
from tessera.graph.ops.elementwise import lt
from tessera.graph.ops.elementwise import select as select_op
from tessera.graph.ops.generate import constant
from tessera.graph.ops.rearrange import broadcast
from tessera.graph.ops.scan import INDEX
from tessera.graph.trace import as_tuple, bind
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir import loc
from tessera.ir.core import Block, Value
from tessera.ir.types import TensorType


@api_boundary
def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any
) -> Any:
    """The result of one of two functions; only that one is computed.

    Under `vmap`, where the predicate differs between examples, both are computed, and each example
    selects its own.

    Args:
        pred: one bool: a bool array without dims.
        true_fn: what to compute where it holds, a function of the operands.
        false_fn: what to compute else; its results have the structure, the shapes and the dtypes
            of those of `true_fn`.
        *operands: arrays, or containers of them.

    Raises:
        DTypeError, ShapeError: `pred` is not one bool, or the results differ.
        PytreeError: the results differ in structure.

    Example:
        >>> import tessera as ts
        >>> float(ts.cond(ts.asarray(2.0) > 1, lambda x: 2 * x, lambda x: -x, 5.0))
        10.0
    """
    ((choice,), _) = leaf_arrays((pred,), lambda treedef, k: "cond: pred")
    check_bool("cond: pred", choice.type)
    (true_fn, false_fn), operands = _with_refs("cond", (true_fn, false_fn), operands)
    if python_control.is_python() and python_control.is_known(choice):
        chosen = true_fn if bool(choice) else false_fn
        return python_control.call("cond", chosen, operands)
    leaves, treedef = leaf_arrays(operands, leaf_name("cond", "operands"))
    branches = _alternatives("cond", (true_fn, false_fn), leaves, treedef)
    closed = Closed([b.traced for b in branches])
    then, otherwise = closed.blocks
    given = (*closed.captured, *closed.state, *leaves)
    results = as_tuple(bind(Cond, choice, given, then=then, otherwise=otherwise))
    return pytree.unflatten(branches[0].traced.treedef, closed.finish(results))


@api_boundary
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """The result of one of several functions; only that one is computed.

    Under `vmap`, where the index differs between examples, all are computed, and each example
    selects its own.

    Args:
        index: which function: an integer array without dims. One below 0 means the first function,
            one behind the last means the last.
        branches: functions of the operands, whose results have the same structure, shapes and
            dtypes.
        *operands: arrays, or containers of them.

    Raises:
        DTypeError, ShapeError: `index` is not one integer, or the results differ.
        PytreeError: the results differ in structure.
        CallError: there are no functions.

    Example:
        >>> import tessera as ts
        >>> float(ts.switch(1, [ts.sin, ts.exp, ts.sqrt], 0.0))
        1.0
    """
    functions = list(branches)
    if not functions:
        raise CallError(
            "switch: there are no functions", loc=loc.current(), rule="one or more are given"
        )
    functions, operands = _with_refs("switch", functions, operands)
    ((choice,), _) = leaf_arrays((index,), lambda treedef, k: "switch: index")
    check_integer("switch: index", choice.type)
    if python_control.is_python() and python_control.is_known(choice):
        chosen = functions[min(max(int(choice), 0), len(functions) - 1)]
        return python_control.call("switch", chosen, operands)
    leaves, treedef = leaf_arrays(operands, leaf_name("switch", "operands"))
    regions = _alternatives("switch", functions, leaves, treedef)
    if len(regions) == 1:
        return functions[0](*operands)
    closed = Closed([r.traced for r in regions])
    number = cast_op(choice, INDEX.dtype)
    args = [number, *closed.captured, *closed.state, *leaves]
    results = _decide(number, closed.blocks, 0, args)
    return pytree.unflatten(regions[0].traced.treedef, closed.finish(results))


def _with_refs(
    name: str, functions: Sequence[Callable[..., Any]], operands: tuple[Any, ...]
) -> tuple[list[Callable[..., Any]], tuple[Any, ...]]:
    """Functions that find the refs among operands, and the other operands."""
    refs = Carried(name, operands)
    if not refs.refs:
        return list(functions), operands

    def finding(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*args: Any) -> Any:
            return fn(*refs.within(args))

        return run

    return [finding(fn) for fn in functions], refs.first


def _decide(index: Any, blocks: Sequence[Block], first: int, args: Sequence[Any]) -> Any:
    """The results of one of the blocks, found by halves; `first` is the number of the first."""
    middle = len(blocks) // 2
    halves = [(blocks[:middle], first), (blocks[middle:], first + middle)]
    regions = [_half(half, start, args) for half, start in halves]
    pred = lt(index, constant(first + middle, INDEX.dtype))
    return as_tuple(bind(Cond, pred, tuple(args), then=regions[0], otherwise=regions[1]))


def _half(blocks: Sequence[Block], first: int, args: Sequence[Any]) -> Block:
    """A block of the arguments, with the index in front."""
    if len(blocks) == 1:
        (block,) = blocks
        return Block([Value(INDEX), *block.args], block.ops, block.outputs)

    def run(index: Any, *rest: Any) -> Any:
        return _decide(index, blocks, first, [index, *rest])

    types = [x.type.strong() for x in args]
    return trace_function(run, types, "switch", "branch")[0].body


def _alternatives(
    name: str, functions: Sequence[Callable[..., Any]], leaves: Sequence[Any], treedef: Any
) -> list[Region]:
    """Functions of which one is called: their results are made of one type."""
    inputs = [x.type for x in leaves]
    regions = [Region(name, fn, treedef, inputs) for fn in functions]
    first = regions[0]
    labels = _labels(name, functions)
    words = [f"the result of {label}" for label in labels]
    types = list(first.traced.types)
    for region, label, word in zip(regions[1:], labels[1:], words[1:], strict=True):
        check_structure(
            name, first.traced.treedef, region.traced.treedef, (words[0], word), "result"
        )
        for k, (a, b) in enumerate(zip(types, region.traced.types, strict=True)):
            dtype = joined(a, b)
            if dtype is None or a.shape != b.shape:
                path = pytree.paths(first.traced.treedef)[k]
                place = f"at `{path}`, " if path else ""
                raise (ShapeError if a.shape != b.shape else DTypeError)(
                    f"{name}: {place}{labels[0]} returns {a.strong()}, {label} {b.strong()}",
                    loc=loc.current(),
                    rule=f"{'both' if len(functions) == 2 else 'all'} functions return arrays of "
                    f"the same shapes and dtypes",
                )
            types[k] = TensorType(a.shape, dtype, a.weak and b.weak)
    return [region.with_result_types([t.strong() for t in types]) for region in regions]


def _labels(name: str, functions: Sequence[Callable[..., Any]]) -> list[str]:
    """What messages call functions: by their names, if these differ."""
    names = [name_of(fn) for fn in functions]
    if len(set(names)) == len(names):
        return names
    if name == "cond":
        return ["true_fn", "false_fn"]
    return [f"branches[{k}]" for k in range(len(names))]


@api_boundary
def select(pred: ArrayLike, on_true: ArrayLike, on_false: ArrayLike) -> ArrayBase:
    """Elements of one array where a predicate holds, of another one elsewhere.

    Unlike `where`, nothing is broadcast or promoted.

    Args:
        pred: a bool array of the shape of the others, or without dims.
        on_true: an array.
        on_false: an array of the same shape and dtype.

    Raises:
        DTypeError, ShapeError: `pred` is no such array, or the arrays differ.

    Example:
        >>> import tessera as ts
        >>> ts.select(ts.asarray([True, False]), ts.zeros(2), ts.ones(2))
        Array([0., 1.], dtype=float32)
    """
    names = ("pred", "on_true", "on_false")
    (choice, x, y), _ = leaf_arrays(
        (pred, on_true, on_false), lambda treedef, k: f"select: {names[k]}"
    )
    dtype = joined(x.type, y.type)
    if dtype is None or x.shape != y.shape:
        raise (DTypeError if x.shape == y.shape else ShapeError)(
            f"select: on_true is {x.type.strong()}, on_false {y.type.strong()}",
            loc=loc.current(),
            rule="both have the same shape and dtype",
            fix="use `ts.where`, which broadcasts and promotes",
        )
    if choice.dtype is not bool_ or (choice.ndim and choice.shape != x.shape):
        raise (ShapeError if choice.dtype is bool_ else DTypeError)(
            f"select: pred is {choice.type.strong()}, but on_true is {x.type.strong()}",
            loc=loc.current(),
            rule="the predicate is bool, and has the shape of the others, or no dims",
        )
    types = TensorType(x.shape, dtype)
    x, y = [cast_weak(v, types) if v.type.weak else v for v in (x, y)]
    if choice.ndim != x.ndim:
        choice = broadcast(choice, x.shape, ())
    return cast(ArrayBase, select_op(choice, x, y))


@api_boundary
def while_loop(
    cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], init: Any
) -> Any:
    """Repeats a function while a condition holds.

    It has forward derivatives, and no reverse ones. Under `vmap` it runs until the condition holds
    for no example; each example keeps the value with which its own condition ended.

    Args:
        cond_fn: takes the carried value, and returns one bool.
        body_fn: takes the carried value, and returns the next one, of the same structure, shapes
            and dtypes.
        init: the first carried value: an array, or a container of arrays.

    Returns:
        The carried value for which the condition does not hold.

    Raises:
        DTypeError, ShapeError: the condition is not one bool, or a step changes what it carries.
        PytreeError: a step changes the structure of what it carries.

    Example:
        >>> import tessera as ts
        >>> float(ts.while_loop(lambda x: x < 100, lambda x: 2 * x, 3.0))
        192.0
    """
    refs = Carried("while_loop", init)
    if refs.refs:

        @functools.wraps(cond_fn)
        def test(value: Any) -> Any:
            return cond_fn(refs.within(value))

        @functools.wraps(body_fn)
        def turn(value: Any) -> Any:
            return refs.without(body_fn(refs.within(value)))

        return refs.within(while_loop(test, turn, refs.first))
    if python_control.is_python():
        is_done, found = python_control.while_loop("while_loop", cond_fn, body_fn, init)
        if is_done:
            return found
    return _while("while_loop", cond_fn, body_fn, Carry("while_loop", init))


@api_boundary
def fori_loop(
    lower: Any,
    upper: Any,
    body_fn: Callable[[Any, Any], Any],
    init: Any,
    *,
    unroll: int | None = None,
) -> Any:
    """Repeats a function for each integer of a range.

    Where both limits are Python numbers, the number of steps is known, and the loop has derivatives
    in both modes, as a `scan`; each such number is compiled on its own. Where one is an array, it
    is a `while_loop`: one program for all limits, and forward derivatives only.

    Args:
        lower: the first integer.
        upper: the end of the range, which does not belong to it.
        body_fn: takes the integer and the carried value, and returns the next carried value, of the
            same structure, shapes and dtypes.
        init: the first carried value: an array, or a container of arrays.
        unroll: so many steps are one turn of the compiled loop; only where the limits are numbers.

    Returns:
        The last carried value.

    Raises:
        DTypeError: a limit is no integer.
        DTypeError, ShapeError, PytreeError: a step changes what it carries.

    Example:
        >>> import tessera as ts
        >>> int(ts.fori_loop(0, 5, lambda i, total: total + i, 0))
        10
        >>> float(ts.grad(lambda x: ts.fori_loop(0, 3, lambda i, y: x * y, 1.0))(2.0))
        12.0
    """
    limits, _ = leaf_arrays((lower, upper), leaf_name("fori_loop", "limits"))
    for name, x in zip(("lower", "upper"), limits, strict=True):
        check_integer(f"fori_loop: {name}", x.type, "limits are integers")
    check_callable("fori_loop", body_fn)
    refs = Carried("fori_loop", init)
    if refs.refs:

        @functools.wraps(body_fn)
        def turn(i: Any, value: Any) -> Any:
            return refs.without(body_fn(i, refs.within(value)))

        return refs.within(fori_loop(lower, upper, turn, refs.first, unroll=unroll))
    if _is_number(lower) and _is_number(upper):
        return counted(int(lower), int(upper), body_fn, init, 1 if unroll is None else unroll)
    if unroll is not None:
        raise CallError(
            f"fori_loop: unroll is {unroll}, but the limits are arrays",
            loc=loc.current(),
            rule="a loop is unrolled where its number of steps is known",
            fix="give the limits as Python numbers, or leave `unroll` out",
        )
    integer = TensorType((), default_int)
    start, stop = [cast_weak(x, integer) if x.type.weak else x for x in limits]
    carried = pytree.structure(init)
    words = (result_text("fori_loop", body_fn).removeprefix("fori_loop: "), "the carried value")

    @functools.wraps(body_fn)
    def step(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        i, value = carry
        result = body_fn(i, value)
        check_structure("fori_loop", pytree.structure(result), carried, words, "carried")
        return i + 1, result

    if python_control.is_python():
        is_done, found = python_control.while_loop(
            "fori_loop", lambda carry: less(carry[0], stop), step, (start, init)
        )
        if is_done:
            return found[1]
    whole = Carry("fori_loop", (start, init), "[1]")
    _, value = _while("fori_loop", lambda carry: less(carry[0], stop), step, whole)
    return value


def _is_number(limit: object) -> bool:
    return isinstance(limit, (int, np.integer))


def check_integer(what: str, type: TensorType, rule: str = "it is one integer") -> None:
    """What counts is one integer."""
    if type.shape or not type.dtype.is_integer:
        raise DTypeError(f"{what} is {type.strong()}", loc=loc.current(), rule=rule)


def _while(
    name: str, cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], carry: Carry
) -> Any:
    treedef = carry.treedef

    def make(fn: Callable[[Any], Any], types: Sequence[TensorType]) -> Region:
        return Region(name, fn, treedef, types, is_single=True)

    test = make(cond_fn, carry.types)
    if not test.traced.treedef.is_leaf():
        shown = pytree.show(test.traced.treedef)
        raise DTypeError(
            f"{result_text(name, cond_fn)} is {shown}", loc=loc.current(), rule="it is one bool"
        )
    check_bool(result_text(name, cond_fn), test.traced.types[0])
    before = carry.types
    step = carry.step(body_fn, functools.partial(make, body_fn))
    if carry.types != before:
        test = make(cond_fn, carry.types)
    for ref in test.traced.written:
        raise StateError(
            f"{name}: {name_of(cond_fn)} writes the ref `{ref.cell.name}`",
            loc=ref.place,
            rule="a condition reads refs and writes none: it is asked once more often than the "
            "step is made",
            fix=f"write it in {name_of(body_fn)}, or after the loop",
        )
    closed = Closed([test.traced, step.traced])
    test_block, step_block = closed.blocks
    wanted = Block(test_block.args, test_block.ops, test_block.outputs[len(closed.state) :])
    first = (*closed.state, *carry.leaves)
    results = as_tuple(bind(While, closed.captured, first, cond=wanted, body=step_block))
    return pytree.unflatten(treedef, closed.finish(results))
