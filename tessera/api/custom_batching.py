"""Batching that the user writes: `custom_vmap`, and one that has no batch: `sequential_vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from tessera import pytree
from tessera.api.custom import CustomArguments, CustomFunction, call_rule, check_type
from tessera.api.leaves import (
    cast_weak,
    check_callable,
    check_structure,
    leaf_arrays,
    leaf_name,
    name_of,
)
from tessera.api.loops import map as map_examples
from tessera.errors import BatchingError, PytreeError, api_boundary
from tessera.graph.ops.custom import BatchRules
from tessera.ir import loc as _loc
from tessera.ir.intexpr import Dim

__all__ = ["custom_vmap", "sequential_vmap"]

P = ParamSpec("P")
R = TypeVar("R")


class custom_vmap(CustomFunction[P, R]):
    """A function with a rule of the user's for batches.

    The rule is for `ts.vmap` of the function. Derivatives are those of the function, also of a
    batch; the derivative of what the rule computes is taken where `ts.vmap` comes first, as in
    `ts.grad` of a function that maps this one.

    Args:
        fn: a function of arrays.

    Example:
        >>> import tessera as ts
        >>> @ts.custom_batching.custom_vmap
        ... def double(x):
        ...     return 2 * x
        >>> @double.def_vmap
        ... def double_vmap(axis_size, in_batched, x):
        ...     print(axis_size, in_batched)
        ...     return 2 * x, in_batched[0]
        >>> ts.vmap(double)(ts.asarray([1.0, 2.0]))
        2 [True]
        Array([2., 4.], dtype=float32)
    """

    @api_boundary
    def __init__(self, fn: Callable[P, R]) -> None:
        super().__init__(fn, "custom_vmap")
        self._rule: Callable[..., Any] | None = None

    @api_boundary
    def def_vmap(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Sets the rule.

        Args:
            rule: takes the number of examples, a list that says of each argument whether it is
                batched (a container of bools where the argument is one), and the arguments;
                those that are batched have the batch as their first axis. Returns the result, and
                whether it is batched, likewise along its first axis: a bool, or a container of
                them that may stop early.

        Returns:
            The rule, so that this is a decorator.
        """
        check_callable("custom_vmap: def_vmap", rule)
        self._rule = rule
        return rule

    @api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function."""
        rule = self._rule
        if rule is None:
            raise BatchingError(
                f"custom_vmap: {name_of(self._fn)} has no rule",
                loc=_loc.current(),
                rule="a function under `custom_vmap` is called after its rule is defined",
                fix="define it with `def_vmap`",
            )
        return self.call(args, kwargs, lambda call: BatchRules(fn=_batch_function(call, rule)))


@api_boundary
def sequential_vmap(fn: Callable[P, R]) -> custom_vmap[P, R]:
    """A function whose batches run one example after the other, as by `ts.map`.

    For a function whose batch would take too much memory.

    Args:
        fn: a function of arrays.

    Example:
        >>> import tessera as ts
        >>> f = ts.custom_batching.sequential_vmap(lambda x: ts.sum(x * x))
        >>> ts.vmap(f)(ts.ones((2, 3)))
        Array([3., 3.], dtype=float32)
    """
    mapped: custom_vmap[P, R] = custom_vmap(fn)
    plain: Callable[..., Any] = fn

    def rule(axis_size: Dim, in_batched: list[Any], *args: Any) -> tuple[Any, bool]:
        leaves, treedef = pytree.flatten(args)
        flags = pytree.leaves(in_batched)

        def example(rows: Sequence[Any]) -> Any:
            given = iter(rows)
            filled = [next(given) if f else x for x, f in zip(leaves, flags, strict=True)]
            return plain(*pytree.unflatten(treedef, filled))

        batched = [x for x, f in zip(leaves, flags, strict=True) if f]
        return map_examples(example, batched), True

    mapped.def_vmap(rule)
    return mapped


def _batch_function(call: CustomArguments, rule: Callable[..., Any]) -> Any:
    """The rule on operands of the op."""
    name = f"the rule of {name_of(call.fn)}"

    def run(
        size: Dim, flags: Sequence[bool], operands: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        if any(flags[: call.skipped]):
            raise BatchingError(
                f"custom_vmap: {name_of(call.fn)} uses a value from outside, which is batched",
                loc=_loc.current(),
                rule="a rule is told of its arguments",
                fix="pass the value as an argument",
            )
        _, leaves = call.split(operands)
        args: tuple[Any, ...] = pytree.unflatten(call.treedef, leaves)
        batched: tuple[Any, ...] = pytree.unflatten(call.treedef, flags[call.skipped :])
        takes = "the number of examples, which arguments are batched, and these"
        what = f"custom_vmap: {name}"
        found: Any = call_rule(what, takes, rule, size, list(batched), *args, writes=False)
        pair = cast("Sequence[Any]", found) if isinstance(found, (tuple, list)) else ()
        if len(pair) != 2:
            raise PytreeError(
                f"custom_vmap: {name} returns no pair",
                loc=_loc.current(),
                rule="a rule returns the result, and whether it is batched",
                fix="return two results, as in `return out, True`",
            )
        out, out_batched = pair
        words = leaf_name("custom_vmap", f"the result of {name}")
        arrays, treedef = leaf_arrays(out, words)
        whole = f"the result of {name_of(call.fn)}"
        names = (f"the result of {name}", whole)
        check_structure("custom_vmap", treedef, call.traced.treedef, names, "result")
        out_flags = _flags(out_batched, out, name)
        outs: list[Any] = []
        for k, (x, type, flag) in enumerate(zip(arrays, call.traced.types, out_flags, strict=True)):
            wanted = type.with_shape((size, *type.shape)) if flag else type
            other = f"{whole}, with the batch in front," if flag else whole
            says = "a rule computes what the function does"
            check_type(x, wanted, words(treedef, k), other, says)
            outs.append(cast_weak(x, wanted))
        return outs, out_flags

    return run


def _flags(flags: Any, tree: Any, name: str) -> list[bool]:
    """A bool for each leaf of a result, of a container that may stop early."""
    entries, structure = pytree.flatten(flags)
    try:
        parts: list[Any] = pytree.flatten_up_to(structure, tree)
    except ValueError:
        parts = []
    if len(parts) != len(entries) or not all([isinstance(x, bool) for x in entries]):
        raise PytreeError(
            f"custom_vmap: {name} says that {flags!r} is batched, of a result that is "
            f"{pytree.show(pytree.structure(tree))}",
            loc=_loc.current(),
            rule="it is True or False, or a container of them nested like the result, which may "
            "stop early",
        )
    result: list[bool] = []
    for flag, part in zip(entries, parts, strict=True):
        result.extend([bool(flag)] * len(pytree.leaves(part)))
    return result
