"""Derivatives that the user writes: `custom_jvp` and `custom_vjp`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from tessera import pytree
from tessera.api.custom import CustomArguments, CustomFunction, call_rule, check_type
from tessera.api.leaves import (
    cast_weak,
    check_callable,
    leaf_arrays,
    leaf_name,
    name_of,
    positional_name,
    strong,
)
from tessera.errors import GradError, PytreeError, api_boundary
from tessera.graph.namespace.creation import zeros_like
from tessera.graph.ops.base import is_inexact
from tessera.graph.ops.custom import JvpRules, PullFn, VjpRules
from tessera.graph.transforms.differentiate import zeros_of
from tessera.ir import loc as _loc
from tessera.ir.types import TensorType

P = ParamSpec("P")
R = TypeVar("R")


def _missing(transform: str, fn: Callable[..., Any], methods: str) -> GradError:
    return GradError(
        f"{transform}: {name_of(fn)} has no rule",
        loc=_loc.current(),
        rule=f"a function under `ts.{transform}` is called after its rule is defined",
        fix=f"define it with {methods}",
    )


def _items(found: Any) -> Sequence[Any] | None:
    """The entries of a tuple or a list."""
    return cast("Sequence[Any]", found) if isinstance(found, (tuple, list)) else None


def _shown(tree: Any) -> str:
    """The structure of what a rule returns."""
    structure = pytree.structure(tree)
    return "one array" if structure.is_leaf() else pytree.show(structure)


def _pair(found: Any, name: str, rule: str) -> tuple[Any, Any]:
    """What a rule returns, as two things."""
    items = _items(found)
    if items is not None and len(items) == 2:
        return items[0], items[1]
    raise PytreeError(
        f"{name} returns {_shown(found)}, which is no pair",
        loc=_loc.current(),
        rule=rule,
        fix="return two results",
    )


_SAME = "a rule computes what the function computes"


# --- forward mode -----------------------------------------------------------------------------


class custom_jvp(CustomFunction[P, R]):
    """A function with a derivative of the user's.

    Args:
        fn: a function of arrays.
        nondiff_argnums: positions of arguments that have no derivative: any Python values, which
            the rule gets first.
        nondiff_argnames: names of such arguments.

    Example:
        >>> import tessera as ts
        >>> @ts.custom_jvp
        ... def cube(x):
        ...     return x * x * x
        >>> @cube.defjvp
        ... def cube_jvp(primals, tangents):
        ...     (x,), (t,) = primals, tangents
        ...     return cube(x), 3 * x * x * t
        >>> float(ts.grad(cube)(2.0))
        12.0
    """

    @api_boundary
    def __init__(
        self,
        fn: Callable[P, R],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        super().__init__(fn, "custom_jvp", nondiff_argnums, nondiff_argnames)
        self._jvp: Callable[..., Any] | None = None

    @api_boundary
    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Sets the rule.

        Args:
            jvp: takes the arguments of `nondiff_argnums`, then a tuple of the others and a tuple of
                their tangents, and returns the result and its tangent. It is linear in the
                tangents. Reverse mode is its transpose.

        Returns:
            The rule, so that this is a decorator.
        """
        check_callable("custom_jvp: defjvp", jvp)
        self._jvp = jvp
        return jvp

    @api_boundary
    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Sets the rule by one function for each argument, or None where the derivative is zero.

        Args:
            *jvps: functions `(tangent, result, *arguments) -> tangent of the result` of one
                argument each; the tangent of the result is their sum.

        Raises:
            GradError: there are `nondiff_argnums`.
        """
        if self.nondiff_argnums:
            raise GradError(
                f"custom_jvp: defjvps for {name_of(self._fn)}, which has nondiff_argnums",
                loc=_loc.current(),
                rule="defjvps is for functions all of whose arguments have a derivative",
                fix="use defjvp",
            )

        def jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
            if len(jvps) != len(primals):
                raise GradError(
                    f"custom_jvp: defjvps of {name_of(self._fn)} got {len(jvps)} functions for "
                    f"{len(primals)} arguments",
                    loc=_loc.current(),
                    rule="there is one function, or None, for each argument",
                )
            out: Any = self(*primals)  # pyright: ignore[reportCallIssue]
            total: Any = None
            for rule, t in zip(jvps, tangents, strict=True):
                if rule is not None:
                    part = rule(t, out, *primals)
                    total = part if total is None else pytree.map_(operator.add, total, part)
            if total is None:
                total = pytree.map_(zeros_like, out)
            return out, total

        self._jvp = jvp

    @api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function."""
        jvp = self._jvp
        if jvp is None:
            raise _missing("custom_jvp", self._fn, "`defjvp` or `defjvps`")
        return self.call(args, kwargs, lambda call: JvpRules(fn=_jvp_function(call, jvp)))


def _after(call: CustomArguments) -> str:
    """What else a rule is called with, in words."""
    return ", after the arguments of nondiff_argnums" if call.fixed_at else ""


def _jvp_function(call: CustomArguments, jvp: Callable[..., Any]) -> Any:
    """The rule on operands of the op."""

    def run(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        call.check_fixed(tangents)
        fixed, leaves = call.split(primals)
        _, given = call.split(tangents)
        full = [zeros_of(x.type) if t is None else t for x, t in zip(leaves, given, strict=True)]
        trees = [pytree.unflatten(call.treedef, x) for x in (leaves, full)]
        name = f"the jvp rule of {name_of(call.fn)}"
        takes = "a tuple of the arguments and one of their tangents" + _after(call)
        found = call_rule(f"custom_jvp: {name}", takes, jvp, *call.nondiff(fixed), *trees)
        rule = "a jvp rule returns the result and its tangent"
        out, tangent = _pair(found, f"custom_jvp: {name}", rule)
        outs = call.results(out, f"the result of {name}", _SAME)
        rule = "a tangent has the type of what it belongs to"
        touts = call.results(tangent, f"the tangent from {name}", rule)
        return outs, [
            t if is_inexact(x.dtype) else None for x, t in zip(outs, touts, strict=True)
        ]

    return run


# --- reverse mode -----------------------------------------------------------------------------


class custom_vjp(CustomFunction[P, R]):
    """A function with a derivative of the user's for reverse mode.

    Args:
        fn: a function of arrays.
        nondiff_argnums: positions of arguments that have no derivative: any Python values.
        nondiff_argnames: names of such arguments.

    Example:
        >>> import tessera as ts
        >>> @ts.custom_vjp
        ... def clip_gradient(x):
        ...     return x
        >>> clip_gradient.defvjp(lambda x: (x, None), lambda _, ct: (ts.clip(ct, -1.0, 1.0),))
        >>> float(ts.grad(lambda x: 10 * clip_gradient(x))(2.0))
        1.0
    """

    @api_boundary
    def __init__(
        self,
        fn: Callable[P, R],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        super().__init__(fn, "custom_vjp", nondiff_argnums, nondiff_argnames)
        self._functions: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    @api_boundary
    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Sets the rule.

        Args:
            fwd: takes the arguments of the function, and returns its result and residuals: a
                container of arrays of any structure. Those that `bwd` does not read are not kept.
            bwd: takes the arguments of `nondiff_argnums`, the residuals, and a cotangent of the
                result; returns a tuple of one cotangent for each of the other arguments, where None
                stands for zeros, also of a whole container.
        """
        check_callable("custom_vjp: defvjp", fwd)
        check_callable("custom_vjp: defvjp", bwd)
        self._functions = fwd, bwd

    @api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function."""
        functions = self._functions
        if functions is None:
            raise _missing("custom_vjp", self._fn, "`defvjp`")
        return self.call(args, kwargs, lambda call: VjpRules(fwd=_fwd_function(call, *functions)))


def _fwd_function(call: CustomArguments, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> Any:
    """The rule on operands of the op."""

    def run(primals: Sequence[Any]) -> tuple[list[Any], list[Any], PullFn]:
        fixed, leaves = call.split(primals)
        name = f"the fwd rule of {name_of(call.fn)}"
        takes = "the arguments of the function"
        found = call_rule(f"custom_vjp: {name}", takes, fwd, *call.all_args(fixed, leaves))
        rule = "a fwd rule returns the result and the residuals"
        out, residual_tree = _pair(found, f"custom_vjp: {name}", rule)
        outs = call.results(out, f"the result of {name}", _SAME)
        names = leaf_name("custom_vjp", f"a residual of {name}")
        residuals, treedef = leaf_arrays(residual_tree, names)
        residuals = [strong(x) for x in residuals]
        inexact = [is_inexact(x.dtype) for x in outs]
        count, split = len(residuals), len(fixed)

        def pull(known: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
            given = iter(cts)
            full = [
                next(given) if wanted else zeros_of(t)
                for wanted, t in zip(inexact, call.traced.types, strict=True)
            ]
            cotangent = pytree.unflatten(call.traced.treedef, full)
            tree = pytree.unflatten(treedef, known[:count])
            others = call.nondiff(known[count : count + split])
            what = f"custom_vjp: the bwd rule of {name_of(call.fn)}"
            takes = "the residuals and a cotangent" + _after(call)
            result = call_rule(what, takes, bwd, *others, tree, cotangent, backward=True)
            types = [x.type for x in call.leaves]
            return [*[None] * call.skipped, *_cotangents(call, result, types)]

        return outs, [*residuals, *fixed], pull

    return run


def _cotangents(call: CustomArguments, found: Any, types: Sequence[TensorType]) -> list[Any]:
    """What a backward function returns, one entry for each leaf of the arguments."""
    name = f"the bwd rule of {name_of(call.fn)}"
    count = len(call.given_at)
    items = _items(found)
    if items is None or len(items) != count:
        plural = "" if count == 1 else "s"
        raise PytreeError(
            f"custom_vjp: {name} returns {_shown(found)}, for {count} "
            f"argument{plural}",
            loc=_loc.current(),
            rule="a bwd rule returns a tuple of one cotangent, or None, for each argument",
            fix="return a tuple, as in `return (ct,)`" if count == 1 else None,
        )
    positions: Any = pytree.unflatten(call.treedef, range(len(types)))
    result: list[Any] = [None] * len(types)
    for at, ct, own in zip(call.given_at, items, positions, strict=True):
        what = f"custom_vjp: the cotangent for `{positional_name(call.fn, at)}` from {name}"
        for place, x in _aligned(ct, own, what):
            type = types[place]
            check_type(x, type, what, "the argument", "a cotangent has the type of its argument")
            result[place] = cast_weak(x, type) if is_inexact(type.dtype) else None
    return result


def _aligned(ct: Any, own: Any, what: str) -> list[tuple[int, Any]]:
    """The arrays of a cotangent, and at which leaves they are.

    Args:
        ct: the cotangent, with None where it is zero, also for a whole container.
        own: the argument, as a tree of the positions of its leaves.
        what: what messages call the cotangent.
    """
    entries, structure = pytree.flatten(ct, is_leaf=lambda x: x is None)
    try:
        parts: list[Any] = pytree.flatten_up_to(structure, own)
    except ValueError:
        parts = []
    kept = [(p, x) for p, x in zip(parts, entries, strict=False) if x is not None]
    if len(parts) != len(entries) or not all([isinstance(p, int) for p, _ in kept]):
        raise PytreeError(
            f"{what} is {_shown(ct)}, and the argument is "
            f"{_shown(own)}",
            loc=_loc.current(),
            rule="a cotangent has the structure of its argument, with None where it is zero",
        )
    arrays, _ = leaf_arrays([x for _, x in kept], lambda treedef, k: what)
    return [(p, x) for (p, _), x in zip(kept, arrays, strict=True)]
