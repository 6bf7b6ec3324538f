"""`ts.verify.numerics`: a promise that a function's numbers stay finite, proved before it runs."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from tessera import pytree
from tessera.api.annotated_types import annotated_types
from tessera.api.leaves import (
    argument_name,
    check_callable,
    leaf_error,
    name_of,
    to_array,
)
from tessera.api.shapes import ShapeDtypeStruct
from tessera.config import config
from tessera.errors import (
    NumericsError,
    OptionError,
    ParseError,
    TesseraError,
    api_boundary,
    hide_own_frames,
)
from tessera.ir import assumptions, loc
from tessera.ir.assumptions import Assumptions
from tessera.ir.interval import Interval, finite_range, shown
from tessera.ir.parser import parse_type
from tessera.ir.types import TensorType
from tessera.verify.analysis import Question, analyse, representable
from tessera.verify.report import NumericsReport, Verdict

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

Bounds = Sequence[float] | None
Bounded = Bounds | Mapping[str, Bounds]


class NumericsWarning(UserWarning):
    """A promise about numbers that is neither proved nor refuted."""


class Verified(Generic[P, R]):
    """A function with a promise about its numbers, which is checked once for each signature.

    Made by `ts.verify.numerics`. Calling it calls the function.

    Attributes:
        function: the function.
        reports: what was found for each signature so far, in order.
    """

    def __init__(
        self, fn: Callable[P, R], stable: bool, bounded: Bounded, strict: bool
    ) -> None:
        functools.update_wrapper(self, fn)
        self.function = fn
        self._stable, self._strict = stable, strict
        self._bounds = _Bounds(fn, bounded)
        self._known: dict[Hashable, NumericsReport] = {}
        self._loc = loc.current()

    @property
    def reports(self) -> list[NumericsReport]:
        """What was found for each signature so far."""
        return list(self._known.values())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function; checks the promise first where the signature is new."""
        try:
            self._require(self._find(args, kwargs, assumptions.current(), False))
        except TesseraError as error:
            hide_own_frames(error)
            raise
        return self.function(*args, **kwargs)

    @api_boundary
    def report(self, *args: Any, **kwargs: Any) -> NumericsReport:
        """What analysis finds for arguments; nothing is computed but witnesses.

        Args:
            args: arrays, numbers, `ts.ShapeDtypeStruct`s, or types as text, `"f32[B, 784]"`, as for
                `ts.debug.shapes`. Arguments that are left out have the types of their annotations.
            kwargs: likewise.

        Returns:
            The operations with their intervals, and the verdict.
        """
        found, known = annotated_types(self.function, args, kwargs)
        return self._find(args, {**kwargs, **found}, known, True)

    def _find(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: Assumptions | None,
        types_only: bool,
    ) -> NumericsReport:
        leaves, treedef = pytree.flatten((args, kwargs))
        name = argument_name("verify.numerics", self.function)
        dynamic: list[int] = []
        types: list[TensorType] = []
        static: list[Any] = []
        for k, x in enumerate(leaves):
            type = _type_of(x, types_only)
            if type is not None:
                dynamic.append(k)
                types.append(type)
            elif isinstance(x, bool | str | type_of_none) or _is_hashable(x):
                static.append((k, x))
            else:
                raise leaf_error(x, name(treedef, k))
        # What is in force where it is called: a policy, dtypes by default, conditions on sizes.
        key = (config.current().key(), known, treedef, tuple(types), tuple(static), tuple(dynamic))
        report = self._known.get(key)
        if report is not None:
            return report
        texts = [name(treedef, k).split("`")[1] for k in dynamic]
        bounds = self._bounds.of(texts, types)

        def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            full = list(leaves)
            for k, v in zip(dynamic, values, strict=True):
                full[k] = v
            return pytree.unflatten(treedef, full)

        report = self._known[key] = analyse(
            Question(
                name_of(self.function), self.function, rebuild, tuple(types), tuple(texts),
                tuple(bounds), self._stable, _promise(self._stable, texts, types, bounds), known,
            )
        )  # fmt: skip
        return report

    def _require(self, report: NumericsReport) -> None:
        if report.is_proved:
            return
        error = _error(report)
        if report.verdict is Verdict.REFUTED or self._strict:
            raise error
        warnings.warn(str(error), NumericsWarning, stacklevel=3)

    def check_annotated(self) -> None:
        """Checks the promise now, if annotations say all types."""
        found, known = annotated_types(self.function, (), {})
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):
            return
        wanted = [p for p in parameters if p.default is p.empty]
        if not found or any(p.name not in found for p in wanted):
            return
        self._require(self._find((), dict(found), known, True))

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Verified[P, R]: ...
    @overload
    def __get__(
        self: Verified[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> Callable[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        run: Any = self
        return self if instance is None else functools.partial(run, instance)

    def __repr__(self) -> str:
        return f"verify.numerics({name_of(self.function)}), {len(self._known)} signatures checked"


type_of_none = type(None)


@overload
def numerics(
    fn: Callable[P, R], *, stable: bool = True, bounded: Bounded = None, strict: bool = False
) -> Verified[P, R]: ...
@overload
def numerics(
    *, stable: bool = True, bounded: Bounded = None, strict: bool = False
) -> Callable[[Callable[P, R]], Verified[P, R]]: ...
@api_boundary
def numerics(
    fn: Callable[..., Any] | None = None,
    *,
    stable: bool = True,
    bounded: Bounded = None,
    strict: bool = False,
) -> Any:
    """Promises that a function of bounded numbers gives no NaN and does not overflow.

    The function is traced, and intervals and relations of all that it computes are worked out from
    the bounds of its arguments, with the range and the roundings of each dtype. That proves the
    promise, or points at an operation that may break it; then arguments are looked for that do.
    Intermediate results may be infinite where no result is, as `x - max(x)` below an exponential.

    A function whose parameters all have annotations (`ts.Tensor["B", 64]`) is checked when it is
    decorated, others at the first call of each signature.

    Args:
        fn: the function; without it, a decorator is returned.
        stable: no result is NaN or infinite; if False, infinite results are allowed.
        bounded: `[low, high]` for all floating-point arguments, or one for each of some parameters:
            `{"x": (-100, 100)}`. Arguments without bounds are any finite numbers of their dtype.
        strict: whether it is an error if the promise is neither proved nor refuted, instead of a
            `NumericsWarning`.

    Returns:
        The function, with `report(*args)` and `reports`.

    Raises:
        NumericsError: there are arguments within the bounds that break the promise; the error has
            them. Also, with `strict`, where nothing is proved.

    Example:
        >>> import tessera as ts
        >>> @ts.verify.numerics(bounded=[-100, 100])
        ... def softmax(x):
        ...     e = ts.exp(x - ts.max(x, axis=-1, keepdims=True))
        ...     return e / ts.sum(e, axis=-1, keepdims=True)
        >>> print(softmax.report("f32[8, 128]").summary)
        softmax: proved: no NaN and no infinity for x in [-100, 100]
    """

    def decorate(fn: Callable[..., Any]) -> Verified[..., Any]:
        check_callable("verify.numerics", fn, "as in `@ts.verify.numerics(bounded=[-100, 100])`")
        found = Verified(fn, stable, bounded, strict)
        found.check_annotated()
        return found

    return decorate if fn is None else decorate(fn)


def _promise(
    stable: bool, names: Sequence[str], types: Sequence[TensorType], bounds: Sequence[Interval]
) -> str:
    what = "no NaN and no infinity" if stable else "no NaN"
    said: dict[str, str] = {}
    for name, type, x in zip(names, types, bounds, strict=True):
        if type.dtype.is_inexact:
            is_free = x == finite_range(type.dtype)
            said[name] = "finite" if is_free else f"in [{shown(x.lo)}, {shown(x.hi)}]"
    of_root: dict[str, set[str]] = {}
    for name, text in said.items():
        of_root.setdefault(_root(name), set()).add(text)
    groups: dict[str, list[str]] = {}
    for name, text in said.items():
        # A parameter of many parts is named once where the same is said of all.
        root = _root(name)
        called = root if len(of_root[root]) == 1 else name
        if called not in groups.setdefault(text, []):
            groups[text].append(called)
    parts = [f"{', '.join(names)} {text}" for text, names in groups.items()]
    return f"{what} for {' and '.join(parts)}" if parts else what


def _error(report: NumericsReport) -> NumericsError:
    culprit = f"{report.culprit}: " if report.culprit else ""
    if report.witness is not None:
        what = f"{culprit}{report.name} gives {report.witness.gives} for numbers within its bounds"
        notes = [f"witness: {report.witness}", f"why: {report.reason}"]
    else:
        what = f"{culprit}{report.name} is not proven to be stable"
        notes = [f"why: {report.reason}", "no arguments were found that break the promise"]
    return NumericsError(
        what,
        loc=report.loc,
        rule=f"`ts.verify.numerics` promises {report.promise}",
        notes=notes,
        fix=report.fix or None,
    )


def _type_of(leaf: Any, types_only: bool) -> TensorType | None:
    """The type of a leaf; None of one that is the same in all calls of a signature."""
    if isinstance(leaf, bool):
        return None
    if types_only and isinstance(leaf, ShapeDtypeStruct):
        return leaf.type
    if types_only and isinstance(leaf, str):
        try:
            found = parse_type(leaf)
        except ParseError:
            return None
        return found if isinstance(found, TensorType) else None
    try:
        array = to_array(leaf)
    except TesseraError:
        return None
    return None if array is None else array.type


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


class _Bounds:
    """What `bounded` says, checked."""

    def __init__(self, fn: Callable[..., Any], bounded: Any) -> None:
        self._all: Interval | None = None
        self._named: dict[str, Interval] = {}
        if isinstance(bounded, Mapping):
            names: Mapping[str, Any] = bounded  # pyright: ignore[reportUnknownVariableType]
            self._check_names(fn, list(names))
            for name, pair in names.items():
                if pair is not None:
                    self._named[name] = _interval(pair)
        elif bounded is not None:
            self._all = _interval(bounded)

    def _check_names(self, fn: Callable[..., Any], names: Sequence[str]) -> None:
        try:
            parameters = list(inspect.signature(fn).parameters)
        except (TypeError, ValueError):
            return
        for name in names:
            if _root(name) not in parameters:
                raise OptionError(
                    f"verify.numerics: bounded has {name!r}, which is no parameter of"
                    f" {name_of(fn)}",
                    loc=loc.current(),
                    rule=f"its parameters are {', '.join(parameters)}",
                )

    def of(self, names: Sequence[str], types: Sequence[TensorType]) -> list[Interval]:
        """The bounds of each leaf."""
        return [self._one(n, t) for n, t in zip(names, types, strict=True)]

    def _one(self, name: str, type: TensorType) -> Interval:
        given = self._named.get(name, self._named.get(_root(name)))
        if given is None and type.dtype.is_float:
            given = self._all
        if given is None or type.dtype.is_complex:
            return finite_range(type.dtype)
        found = representable(given, type.dtype)
        if found.is_empty:
            raise OptionError(
                f"verify.numerics: no {type.dtype.full_name} is in {given}, the bounds of `{name}`",
                loc=loc.current(),
                rule="some numbers of an argument's dtype are within its bounds",
            )
        return found


def _root(name: str) -> str:
    """The parameter that a leaf's name begins with."""
    for k, c in enumerate(name):
        if c in ".[":
            return name[:k]
    return name


def _interval(pair: Any) -> Interval:
    try:
        low, high = pair
        found = Interval(float(low), float(high))
    except (TypeError, ValueError):
        found = None
    if found is None or not found.lo <= found.hi:
        raise OptionError(
            f"verify.numerics: bounded has {pair!r}",
            loc=loc.current(),
            rule="bounds are two numbers, the lower first",
            fix="as in `bounded=[-100, 100]` or `bounded={'x': (0, 1)}`",
        )
    return found
