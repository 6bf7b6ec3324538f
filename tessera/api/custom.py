"""What functions with rules of the user share: `custom_jvp`, `custom_vjp`, `custom_vmap`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Generic, ParamSpec, TypeVar

from tessera import pytree
from tessera.api.leaves import (
    argument_name,
    cast_weak,
    check_callable,
    check_structure,
    leaf_arrays,
    leaf_name,
    name_of,
    parameter_names,
    strong,
)
from tessera.api.traced import Traced, call_at_its_lines
from tessera.errors import CallError, DTypeError, GradError, ShapeError
from tessera.graph.array import Array
from tessera.graph.device import using
from tessera.graph.ops.custom import CustomCall, Rules
from tessera.graph.placement import device_of_all
from tessera.graph.state import running_rule
from tessera.graph.trace import (
    Tracer,
    as_tuple,
    bind,
    bind_known,
    is_recording,
    is_tracing,
    known_value,
)
from tessera.ir import loc as _loc
from tessera.ir.types import TensorType

P = ParamSpec("P")
R = TypeVar("R")


class CustomFunction(Generic[P, R]):
    """What functions with rules of their own have in common.

    Args:
        fn: the function.
        transform: the public name of the kind of rule.
        nondiff_argnums: positions of arguments that have no derivative.
        nondiff_argnames: names of such arguments.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        transform: str,
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ) -> None:
        check_callable(transform, fn)
        functools.update_wrapper(self, fn)  # pyright: ignore[reportArgumentType]
        self._fn = fn
        self._transform = transform
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else nondiff_argnums
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else nondiff_argnames
        known = parameter_names(fn)
        for name in names:
            if name not in known:
                raise CallError(
                    f"{transform}: nondiff_argnames has {name!r}, which is no parameter of "
                    f"{name_of(fn)}",
                    loc=_loc.current(),
                    rule=f"its parameters are {', '.join(known) or '(none)'}",
                )
        self.nondiff_argnums = tuple(dict.fromkeys([*numbers, *[known.index(n) for n in names]]))

    def __repr__(self) -> str:
        return f"{self._transform}({name_of(self._fn)})"

    def call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        rules: Callable[[CustomArguments], Rules],
    ) -> Any:
        """Calls the function; where somebody traces, as one op with rules."""
        if not is_recording():
            return self._fn(*args, **kwargs)
        given = self._positional(args, kwargs)
        call = CustomArguments(self._transform, self._fn, given, self.nondiff_argnums)
        call.rules = rules(call)
        return call.bind()

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, defaults included."""
        try:
            signature = inspect.signature(self._fn)
        except (TypeError, ValueError):
            return args
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise CallError(
                f"{self._transform}: {name_of(self._fn)}: {error}",
                loc=_loc.current(),
                rule=f"its parameters are {signature}",
            ) from None
        bound.apply_defaults()
        if bound.kwargs:
            raise CallError(
                f"{self._transform}: {name_of(self._fn)} has the keyword-only parameter "
                f"`{next(iter(bound.kwargs))}`",
                loc=_loc.current(),
                rule="rules get arguments by position",
                fix="make it a positional parameter, and name it in `nondiff_argnums`",
            )
        return bound.args


class CustomArguments:
    """One call of a function with rules, taken apart.

    The operands of the op are the values that the function takes from outside, the arrays among
    its arguments without derivatives, and the leaves of the others.

    Args:
        transform: the public name.
        fn: the user's function.
        args: its arguments.
        nondiff_argnums: which of them have no derivative.

    Attributes:
        treedef: the structure of the tuple of the arguments with derivatives.
        leaves: their leaves.
        traced: the function.
        rules: what is bound with it.
    """

    rules: Rules

    def __init__(
        self,
        transform: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        nondiff_argnums: Sequence[int],
    ) -> None:
        self.transform = transform
        self.fn = fn
        count = len(args)
        for n in nondiff_argnums:
            if not -count <= n < count:
                raise CallError(
                    f"{transform}: nondiff_argnums has {n}, but {name_of(fn)} is called with "
                    f"{count} argument{'' if count == 1 else 's'}",
                    loc=_loc.current(),
                    rule="nondiff_argnums are positions of arguments, counted from 0",
                )
        self.count = count
        self.fixed_at = sorted({n % count for n in nondiff_argnums})
        self.given_at = [k for k in range(count) if k not in self.fixed_at]
        given = tuple([args[k] for k in self.given_at])
        self.name = argument_name(transform, fn, self.given_at)
        leaves, self.treedef = leaf_arrays(given, self.name)
        self.leaves = [strong(x) for x in leaves]
        # Arrays among the others are operands too, for they may be traced.
        statics, self.fixed_treedef = pytree.flatten(tuple([args[k] for k in self.fixed_at]))
        self.statics = [None if isinstance(x, (Array, Tracer)) else x for x in statics]
        self.fixed_places = [k for k, x in enumerate(statics) if isinstance(x, (Array, Tracer))]
        self.fixed = [strong(statics[k]) for k in self.fixed_places]
        self.traced = self._trace()

    def _trace(self) -> Traced:
        operands = [*self.fixed, *self.leaves]
        known = [known_value(x) for x in operands]
        # Where all values are known, Python may look at them, as it does without the rule.
        concrete = None if is_tracing() or any(x is None for x in known) else known

        def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            split = len(self.fixed)
            return tuple(self.all_args(values[:split], values[split:])), {}

        with using(device_of_all(operands)):
            return Traced(
                self.fn,
                rebuild,
                [x.type for x in operands],
                concrete,
                self.transform,
                staging=concrete is None,
            )

    def nondiff(self, fixed: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments without derivatives, with other arrays in them."""
        leaves = list(self.statics)
        for k, x in zip(self.fixed_places, fixed, strict=True):
            leaves[k] = x
        return pytree.unflatten(self.fixed_treedef, leaves)

    def all_args(self, fixed: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        """All arguments in order."""
        args: list[Any] = [None] * self.count
        for k, x in zip(self.fixed_at, self.nondiff(fixed), strict=True):
            args[k] = x
        for k, x in zip(self.given_at, pytree.unflatten(self.treedef, leaves), strict=True):
            args[k] = x
        return args

    @property
    def skipped(self) -> int:
        """How many operands precede the leaves of the arguments with derivatives."""
        return len(self.traced.captured) + len(self.fixed)

    def split(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The arrays of the arguments without derivatives, and the leaves of the others."""
        start = len(self.traced.captured)
        return operands[start : self.skipped], operands[self.skipped :]

    def bind(self) -> Any:
        """The results of the op."""
        traced = self.traced
        operands = ((*traced.captured, *self.fixed, *self.leaves),)
        attrs = {"label": traced.graph.name, "body": traced.graph.body, "rules": self.rules}
        known = [known_value(x) for x in traced.leaves]
        if any(x is None for x in known):
            results = as_tuple(bind(CustomCall, *operands, **attrs))
        else:
            results = bind_known(CustomCall, operands, attrs, known)
        return pytree.unflatten(traced.treedef, results)

    # --- checks of what rules give ---

    def check_fixed(self, tangents: Sequence[Any]) -> None:
        """Operands without derivatives have no tangents."""
        outside = len(self.traced.captured)
        for k, t in enumerate(tangents[: self.skipped]):
            if t is None:
                continue
            name = name_of(self.fn)
            if k < outside:
                raise GradError(
                    f"{self.transform}: {name} uses a value from outside, which is differentiated",
                    loc=_loc.current(),
                    rule="a rule gives derivatives with respect to arguments",
                    fix="pass the value as an argument, or wrap it in `ts.stop_gradient`",
                )
            raise GradError(
                f"{self.transform}: an argument of {name} in nondiff_argnums is differentiated",
                loc=_loc.current(),
                rule="arguments in nondiff_argnums have no derivative",
                fix="take it out of nondiff_argnums, or wrap it in `ts.stop_gradient`",
            )

    def results(self, tree: Any, what: str, rule: str) -> list[Any]:
        """The leaves of what a rule returns for the result of the function: same structure, shapes
        and dtypes.

        Args:
            tree: what it returned.
            what: what messages call it.
            rule: what messages say about its type.
        """
        leaves, treedef = leaf_arrays(tree, leaf_name(self.transform, what))
        whole = f"the result of {name_of(self.fn)}"
        check_structure(self.transform, treedef, self.traced.treedef, (what, whole), "result")
        types = self.traced.types
        names = leaf_name(self.transform, what)
        for k, (x, type) in enumerate(zip(leaves, types, strict=True)):
            check_type(x, type, names(treedef, k), whole, rule)
        return [cast_weak(x, t) for x, t in zip(leaves, types, strict=True)]


def check_type(x: Any, type: TensorType, what: str, other: str, rule: str) -> None:
    """An array, or a number, is of a type."""
    if x.shape == type.shape and (x.dtype is type.dtype or x.type.weak):
        return
    raise (DTypeError if x.shape == type.shape else ShapeError)(
        f"{what} is {x.type.strong()}, and {other} is {type.strong()}",
        loc=_loc.current(),
        rule=rule,
    )


def call_rule(
    what: str,
    takes: str,
    rule: Callable[..., Any],
    *args: Any,
    backward: bool = False,
    writes: bool = True,
) -> Any:
    """What a rule returns; see `call_at_its_lines`.

    Args:
        what: what messages call it.
        takes: what it is called with, in words.
        rule: the user's function.
        *args: its arguments.
        backward: whether it runs in the backward pass.
        writes: whether it may write refs that are not its own.

    Raises:
        CallError: it does not take so many.
    """
    with nullcontext() if writes else running_rule(what):
        told = f"it is called with {takes}"
        return call_at_its_lines(what, lambda: told, rule, args, {}, backward)
