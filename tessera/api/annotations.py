"""Annotations of shapes: `Tensor`, `dim`, `dtype_var`, `constrain`, and how they are read.

`ts.Tensor["B", "S", 128, ts.float32]` is a `TensorSpec` when the program runs. For type checkers
`Tensor` is `typing.Annotated`, so that `ts.Tensor[ts.Array, "B", "S"]` is an array to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from tessera.dtypes import ALL, DType, dtype_of
from tessera.errors import OptionError, TesseraError, api_boundary
from tessera.ir import loc
from tessera.ir.constraints import Condition, Relation, condition, parse_conditions
from tessera.ir.intexpr import Dim, IntExpr, Sym, parse, sym, symbols
from tessera.ir.numerics import Policy

F = TypeVar("F", bound=Callable[..., Any])

CONDITIONS = "__tessera_conditions__"
"""The attribute in which `constrain` keeps conditions."""


@dataclass(frozen=True)
class Stated:
    """A condition that the user wrote.

    Attributes:
        condition: what must hold.
        loc: where it was written.
    """

    condition: Condition
    loc: loc.Loc


@dataclass(frozen=True, eq=False)
class DimVar:
    """A dim with a range, which `dim` makes; or an expression of such.

    Attributes:
        expr: the dim.
        stated: conditions on it.
        anchors: sizes that have an executable of their own.
        tile: multiples of it have an executable of their own.
    """

    expr: Dim
    stated: tuple[Stated, ...]
    anchors: tuple[int, ...] = ()
    tile: int = 1

    def _with(self, other: object, apply: Callable[[Any, Any], Dim], turned: bool) -> DimVar:
        if isinstance(other, str):
            other = _parse_dim(other)
        found = other if isinstance(other, DimVar) else None
        if found is None and (isinstance(other, bool) or not isinstance(other, (int, IntExpr))):
            return NotImplemented
        right = other if found is None else found.expr
        pair = (right, self.expr) if turned else (self.expr, right)
        return DimVar(apply(*pair), self.stated + (found.stated if found else ()))

    def __add__(self, other: object) -> DimVar:
        return self._with(other, lambda a, b: a + b, False)

    def __radd__(self, other: object) -> DimVar:
        return self._with(other, lambda a, b: a + b, True)

    def __sub__(self, other: object) -> DimVar:
        return self._with(other, lambda a, b: a - b, False)

    def __rsub__(self, other: object) -> DimVar:
        return self._with(other, lambda a, b: a - b, True)

    def __mul__(self, other: object) -> DimVar:
        return self._with(other, lambda a, b: a * b, False)

    def __rmul__(self, other: object) -> DimVar:
        return self._with(other, lambda a, b: a * b, True)

    def __floordiv__(self, other: object) -> DimVar:
        return self._with(other, lambda a, b: a // b, False)

    def __mod__(self, other: object) -> DimVar:
        return self._with(other, lambda a, b: a % b, False)

    def __repr__(self) -> str:
        # Both ends of a range are one text, which names the dim; that of an expression does not.
        parts = dict.fromkeys([str(stated.condition) for stated in self.stated])
        named = [] if self.stated and isinstance(self.expr, Sym) else [repr(str(self.expr))]
        return f"dim({', '.join([*named, *parts])})"


@dataclass(frozen=True)
class DTypeVar:
    """A dtype that is one for all arguments that name it. Made by `dtype_var`.

    Attributes:
        name: its name.
        allowed: what it may be; anything if empty.
    """

    name: str
    allowed: tuple[DType, ...] = ()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class PolicedDType:
    """A dtype with what is said of the arithmetic on it: `bf16 @ accum(f32)`.

    Attributes:
        dtype: the dtype.
        policy: the fields that are said.
    """

    dtype: DType
    policy: Policy

    @property
    def changes(self) -> Policy | None:
        """The policy; None if all that it says is the accumulator that the dtype has anyhow."""
        from tessera.graph.ops.reduce import default_accumulator

        usual = Policy(accumulate=default_accumulator(self.dtype))
        return None if self.policy in (usual, Policy()) else self.policy

    def __str__(self) -> str:
        return f"{self.dtype} @ {self.policy.modifiers()}"

    __repr__ = __str__


DTypeSpec: TypeAlias = DType | DTypeVar | PolicedDType


@dataclass(frozen=True)
class TensorSpec:
    """What an annotation says of an array.

    Attributes:
        dims: an expression per dim; `...` for any number of dims that are as they are.
        dtype: its dtype; None for any.
        stated: conditions that came with its dims.
        declared: the dims that `dim` made.
        loc: where it stands.
    """

    dims: tuple[Dim | EllipsisType, ...]
    dtype: DTypeSpec | None
    stated: tuple[Stated, ...] = ()
    declared: tuple[DimVar, ...] = ()
    loc: loc.Loc = field(default=loc.Loc(), compare=False)

    @property
    def symbols(self) -> frozenset[str]:
        """The names in its dims."""
        found: frozenset[str] = frozenset()
        return found.union(*[symbols(d) for d in self.dims if not isinstance(d, EllipsisType)])

    def __or__(self, other: object) -> Choice:
        return Choice((self, other))

    def __ror__(self, other: object) -> Choice:
        return Choice((other, self))

    def __str__(self) -> str:
        parts = ["..." if isinstance(d, EllipsisType) else _quoted(d) for d in self.dims]
        parts += [] if self.dtype is None else [str(self.dtype)]
        return f"Tensor[{', '.join(parts)}]"

    __repr__ = __str__


@dataclass(frozen=True)
class Choice:
    """One of several annotations, as in `Tensor["B"] | None`."""

    options: tuple[object, ...]

    def __str__(self) -> str:
        return " | ".join([str(option) for option in self.options])

    def __or__(self, other: object) -> Choice:
        return Choice((*self.options, other))


def _quoted(d: Dim) -> str:
    return str(d) if isinstance(d, int) else f'"{d}"'


def _parse_dim(text: str) -> Dim:
    try:
        if "$" in text:
            raise ValueError("`$` is no letter of a name")
        return parse(text)
    except (ValueError, ZeroDivisionError) as error:
        raise OptionError(
            f"Tensor: the dim {text!r} cannot be read: {error}",
            loc=loc.current(),
            rule="a dim is an int, a name, or an expression of these with + - * // % min max",
            fix='as in `ts.Tensor["B", "S//2", "H*64"]`',
        ) from None


def tensor_spec(items: tuple[Any, ...]) -> TensorSpec:
    """The annotation of the items between the brackets of `Tensor[...]`."""
    given = list(items)
    if given and isinstance(given[0], type) and not _is_dtype(given[0]):
        given = given[1:]  # what type checkers see
    if given and isinstance(given[-1], str) and given[-1] in _DTYPE_NAMES:
        name = dtype_of(given[-1]).full_name
        raise OptionError(
            f"Tensor: the last dim is {given[-1]!r}, the name of a dtype",
            loc=loc.current(),
            rule="strings are dims, dtypes are objects",
            fix=f"write `ts.{name}`",
        )
    dims: list[Dim | EllipsisType] = []
    dtype: DTypeSpec | None = None
    stated: list[Stated] = []
    declared: list[DimVar] = []
    for k, item in enumerate(given):
        if isinstance(item, (DType, DTypeVar, PolicedDType)) or _is_dtype(item):
            if k != len(given) - 1:
                raise _bad_item(item, "the dtype is the last one")
            is_known = isinstance(item, (DTypeVar, PolicedDType))
            dtype = item if is_known else dtype_of(item)
        elif isinstance(item, str):
            dims.append(... if item == "..." else _parse_dim(item))
        elif isinstance(item, DimVar):
            dims.append(item.expr)
            stated += item.stated
            declared.append(item)
        elif item is ...:
            dims.append(...)
        elif isinstance(item, int) and not isinstance(item, bool) and item >= 0:
            dims.append(item)
        else:
            raise _bad_item(item, "a dim is an int of at least 0, a string, `ts.dim(...)` or `...`")
    if sum(isinstance(d, EllipsisType) for d in dims) > 1:
        raise _bad_item(..., "there is one `...` at most")
    return TensorSpec(tuple(dims), dtype, tuple(stated), tuple(declared), loc.current())


_DTYPE_NAMES: frozenset[str] = frozenset([n for d in ALL for n in (d.name, d.full_name)])
_PYTHON_DTYPES: frozenset[type] = frozenset((bool, int, float, complex))


def _is_dtype(item: object) -> bool:
    import numpy as np

    return (isinstance(item, type) and item in _PYTHON_DTYPES) or (
        isinstance(item, np.dtype) or (isinstance(item, type) and issubclass(item, np.generic))
    )


def _bad_item(item: object, rule: str) -> OptionError:
    return OptionError(
        f"Tensor: {'...' if item is ... else repr(item)} between the brackets",
        loc=loc.current(),
        rule=rule,
        fix='as in `ts.Tensor["B", "S", 128, ts.float32]`',
    )


if TYPE_CHECKING:
    from typing import Annotated as Tensor  # pyright: ignore[reportUnusedImport]
else:

    class Tensor:
        """The annotation of an array: its dims, and its dtype if it is to have one.

        Between the brackets stand, in order: for type checkers, the class (`ts.Array`), which has
        no other meaning; the dims: ints, names, expressions of names such as `"H*64"`, dims that
        `ts.dim` made, or one `...` for any number of others; last, a dtype, `ts.dtype_var(...)`, or
        nothing for any dtype.

        An annotated function under `ts.jit` is compiled once for all sizes of its names.

        Example:
            >>> import tessera as ts
            >>> @ts.jit
            ... def scores(q: ts.Tensor["S", "D"], k: ts.Tensor["T", "D"]) -> ts.Tensor["S", "T"]:
            ...     return q @ k.T
            >>> for s, t in ((2, 3), (5, 4)):
            ...     print(scores(ts.ones((s, 8)), ts.ones((t, 8))).shape)
            (2, 3)
            (5, 4)
            >>> scores.cache_size()
            1
        """

        @api_boundary
        def __new__(cls, *args, **kwargs):
            raise OptionError(
                "Tensor: it is called",
                loc=loc.current(),
                rule="it is an annotation, with brackets: its instances are arrays",
                fix="`ts.asarray(x)` makes an array",
            )

        @api_boundary
        def __class_getitem__(cls, items):
            return tensor_spec(items if isinstance(items, tuple) else (items,))


@api_boundary
def dim(
    name: str,
    low: int = 1,
    high: int | None = None,
    /,
    *,
    multiple_of: int = 1,
    anchors: Sequence[int] = (),
    tile: int = 1,
) -> DimVar:
    """A dim of annotations with its range.

    Args:
        name: its name.
        low: the least size.
        high: the greatest size; None for any.
        multiple_of: what divides every size.
        anchors: sizes for which there is an executable of their own, as fast as one that knows the
            size; all others share one.
        tile: sizes that it divides have an executable of their own.

    Returns:
        What stands between the brackets of `ts.Tensor[...]` where the name would. It takes part in
        arithmetic: `B * 2`.

    Raises:
        OptionError: the range is empty, or a size is none of it.

    Example:
        >>> import tessera as ts
        >>> B = ts.dim("B", 1, 4096, multiple_of=8)
        >>> ts.Tensor[B, B // 8, ts.float32]
        Tensor["B", "B // 8", f32]
    """
    wrong = _wrong_dim(name, low, high, multiple_of, tile, tuple(anchors))
    if wrong is not None:
        raise OptionError(
            f"dim: {name!r} {wrong[0]}", loc=loc.current(), rule=wrong[1],
            fix='as in `ts.dim("B", 1, 4096, multiple_of=8)`',
        )  # fmt: skip
    expr = sym(name)
    here = loc.current()
    found: list[Condition] = []
    if high is None:
        found.append(condition(expr, ">=", low))
    else:
        found.append(Condition(expr - low, Relation.LEAST, f"{name} in {low}..={high}"))
        found.append(condition(high, ">=", expr, f"{name} in {low}..={high}"))
    if multiple_of > 1:
        found.append(condition(expr % multiple_of, "==", 0))
    return DimVar(expr, tuple([Stated(c, here) for c in found]), tuple(anchors), tile)


def _wrong_dim(
    name: str, low: int, high: int | None, multiple_of: int, tile: int, anchors: tuple[int, ...]
) -> tuple[str, str] | None:
    try:
        is_name = isinstance(_parse_dim(name), Sym)
    except TesseraError:
        is_name = False
    if not is_name:
        return "is no name", "a dim has a name, which starts with a letter"
    if low < 0 or (high is not None and high < low):
        return f"is from {low} to {high}", "a range starts at 0 or above, and is not empty"
    if multiple_of < 1 or tile < 1:
        return f"is a multiple of {min(multiple_of, tile)}", "what divides a size is 1 or more"
    for size in anchors:
        if size < low or (high is not None and size > high) or size % multiple_of:
            return f"has the anchor {size}", "an anchor is one of its sizes"
    return None


@api_boundary
def dtype_var(name: str, *allowed: Any) -> DTypeVar:
    """A dtype of annotations that is one wherever its name stands.

    Args:
        name: its name.
        *allowed: the dtypes that it may be; any if there are none.

    Example:
        >>> import tessera as ts
        >>> T = ts.dtype_var("T", ts.float32, ts.bfloat16)
        >>> @ts.jit
        ... def add(x: ts.Tensor["N", T], y: ts.Tensor["N", T]):
        ...     return x + y
        >>> add(ts.ones(2), ts.ones(2)).dtype.full_name
        'float32'
    """
    return DTypeVar(name, tuple([dtype_of(d) for d in allowed]))


@api_boundary
def constrain(*conditions: str | DimVar) -> Callable[[F], F]:
    """A decorator that states conditions on the dims of a function's annotations.

    Args:
        *conditions: comparisons of dims, alone or in a chain, or ranges: `"D % 8 == 0"`,
            `"S <= 8192"`, `"1 <= B < 9"`, `"B in 1..=4096"`, `"H == D // 64"`; or dims of `ts.dim`.

    Returns:
        A decorator for the function, or for what `ts.jit` made of it.

    Raises:
        OptionError: a text is no condition, or the conditions contradict each other.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... @ts.constrain("D % 2 == 0")
        ... def halves(x: ts.Tensor["B", "D"]) -> ts.Tensor["B", 2, "D//2"]:
        ...     B, D = x.shape
        ...     return ts.reshape(x, (B, 2, D // 2))
        >>> halves(ts.ones((3, 4))).shape
        (3, 2, 2)
    """
    here = loc.current()
    stated: list[Stated] = []
    for each in conditions:
        if isinstance(each, DimVar):
            stated += each.stated
            continue
        try:
            found = parse_conditions(each)
        except (ValueError, ZeroDivisionError) as error:
            raise OptionError(
                f"constrain: {error}",
                loc=here,
                rule="a condition compares dims with ==, <=, <, >= or >, or is a range",
            ) from None
        stated += [Stated(c, here) for c in found]

    def wrap(fn: F) -> F:
        before: tuple[Stated, ...] = getattr(fn, CONDITIONS, ())
        setattr(fn, CONDITIONS, (*stated, *before))
        return fn

    return wrap
