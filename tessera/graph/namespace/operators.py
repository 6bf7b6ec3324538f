"""The operators and methods of arrays, installed on `ArrayBase` for arrays and tracers alike.

They are the functions of the namespace. Operators take a short way where both operands are arrays
of one type: then there is nothing to promote or to broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tessera.dtypes import ALL, Kind
from tessera.errors import (
    AROUND,
    DTypeError,
    LeafError,
    MissingNameError,
    ShapeError,
    api_boundary,
)
from tessera.graph.array import Array, ArrayBase, view_of
from tessera.graph.array_protocols import RankError
from tessera.graph.device import Device, parse_device
from tessera.graph.engine import ENGINE
from tessera.graph.namespace import (
    data_types,
    elementwise,
    linear,
    manipulation,
    mathematics,
    searching,
    utility,
)
from tessera.graph.namespace.arguments import beside, is_sequence
from tessera.graph.namespace.foreign_names import ATTRIBUTES, advise
from tessera.graph.namespace.indexing import getitem
from tessera.graph.namespace.update import At
from tessera.graph.ops.arithmetic import Add, Div, Eq, Ge, Gt, Le, Lt, Mul, Ne, Sub
from tessera.graph.placement import block_until_ready, device_of, to_device
from tessera.graph.shortcut import Shortcut, composed, shortcut
from tessera.graph.trace import Tracer, bind, is_recording
from tessera.ir import loc
from tessera.ir.core import Op
from tessera.ir.intexpr import Dim, IntExpr, prod

_OPERANDS = (ArrayBase, bool, int, float, complex, np.ndarray, np.generic, IntExpr)

# What Python programs put beside arrays by mistake, and what has no operators for these.
_HELPLESS = frozenset({str, bytes, type(None), dict, set, frozenset, range, slice, type})

Binary = Callable[[Any, Any], Any]

# Anything may be compared: what is no array is not equal to one.
_EQUALITIES: tuple[Binary, ...] = (elementwise.equal, elementwise.not_equal)


def _declined(fn: Binary, other: object) -> Any:
    """Leaves an operator to the other operand, unless that is known to have none for it."""
    if is_sequence(other) or (type(other) in _HELPLESS and fn not in _EQUALITIES):
        found = "None" if other is None else f"a {type(other).__name__}"
        raise LeafError(
            f"{fn.__name__.lstrip('_')}: got {found} beside an array",
            loc=loc.current(),
            rule="operators take arrays and Python numbers",
            fix="make an array of it with `ts.asarray`"
            if is_sequence(other)
            else "convert it first, as with `float(text)`"
            if isinstance(other, str)
            else None,
        )
    return NotImplemented


def _operator(fn: Binary) -> Binary:
    def apply(self: Any, other: Any) -> Any:
        return fn(self, other) if isinstance(other, _OPERANDS) else _declined(fn, other)

    return apply


def _started(apply: Binary, cls: type[Op]) -> Binary:
    """An operator that the engine may compute natively, before anything is looked at.

    Within a policy that is one op where the policy leaves operands and results as they are, and the
    engine finds out by looking.
    """

    def call(self: Any, other: Any) -> Any:
        start = ENGINE[0].starters.get(cls)
        if start is not None and (found := start(self, other)) is not NotImplemented:
            return found
        return apply(self, other)

    call.__name__, call.__qualname__ = apply.__name__, apply.__qualname__
    return shortcut(call)


def _reflected(fn: Binary, cls: type[Op] | None = None) -> Binary:

    def apply(self: Any, other: Any) -> Any:
        start = None if cls is None else ENGINE[0].starters.get(cls)
        if start is not None and (found := start(other, self)) is not NotImplemented:
            return found
        return fn(other, self) if isinstance(other, _OPERANDS) else _declined(fn, other)

    return apply


def _arithmetic(fn: Binary, cls: type[Op], kinds: frozenset[Kind]) -> Binary:
    """An operator with a short way for arrays of one shape and one dtype of the given kinds, and
    for an array and a number.
    """
    dtypes = frozenset({d.np for d in ALL if d.kind in kinds})

    def apply(self: Any, other: Any) -> Any:
        if type(self) is Array and not AROUND:
            a = self.storage
            if a.dtype in dtypes:
                if type(other) is Array:
                    b = other.storage
                    if a.dtype is b.dtype and a.shape == b.shape and type(a) is type(b):
                        return bind(cls, self, other)
                elif type(other) in _REAL and (found := beside(self, other)) is not None:
                    return bind(cls, self, found)
        return fn(self, other) if isinstance(other, _OPERANDS) else _declined(fn, other)

    return apply


# Numbers that need not be looked at beside arrays of floats.
_REAL = (float, int)

_INEXACT = frozenset({Kind.FLOAT, Kind.COMPLEX})
_NUMERIC = _INEXACT | {Kind.INT, Kind.UINT}

_ARITHMETIC: dict[str, tuple[Binary, type[Op], frozenset[Kind]]] = {
    "add": (elementwise.add, Add, _NUMERIC),
    "sub": (elementwise.subtract, Sub, _NUMERIC),
    "mul": (elementwise.multiply, Mul, _NUMERIC),
    "truediv": (elementwise.divide, Div, _INEXACT),
}

_BINARY: dict[str, Binary] = {
    "floordiv": elementwise.floor_divide,
    "mod": elementwise.remainder,
    "pow": elementwise.pow,
    "matmul": linear.matmul,
    "and": elementwise.bitwise_and,
    "or": elementwise.bitwise_or,
    "xor": elementwise.bitwise_xor,
    "lshift": elementwise.bitwise_left_shift,
    "rshift": elementwise.bitwise_right_shift,
}

_COMPARISONS: dict[str, tuple[Binary, type[Op]]] = {
    "eq": (elementwise.equal, Eq),
    "ne": (elementwise.not_equal, Ne),
    "lt": (elementwise.less, Lt),
    "le": (elementwise.less_equal, Le),
    "gt": (elementwise.greater, Gt),
    "ge": (elementwise.greater_equal, Ge),
}

PLACES: dict[type[Op], int] = {
    cls: place for place, cls in enumerate((Add, Sub, Mul, Div, Lt, Le, Eq, Ne, Gt, Ge))
}
"""Where the operators of these ops have their words in `engine.OPERATORS`: comparisons in the order
of Python's numbers for them."""

_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": elementwise.negative,
    "pos": elementwise.positive,
    "abs": elementwise.abs,
    "invert": elementwise.bitwise_invert,
}


def _divmod(x: Any, y: Any) -> Any:
    return elementwise.floor_divide(x, y), elementwise.remainder(x, y)


def _round(x: Any, ndigits: int | None = None, /) -> Any:
    """Python's `round`: to even at ties. Integers have no digits after the point."""
    if not ndigits:
        return mathematics.round(x)
    if not x.dtype.is_inexact:
        if ndigits > 0:
            return elementwise.positive(x)
        raise DTypeError(
            f"round: {ndigits} digits of {x.type.strong()}",
            loc=loc.current(),
            rule="integers are rounded to no less than one",
            fix="convert it to a floating-point dtype first",
        )
    scale = 10.0 ** abs(ndigits)
    if ndigits < 0:
        return mathematics.round(x / scale) * scale
    scaled = x * scale
    # Numbers that are too large to be scaled have no digits after the point.
    return searching.where(elementwise.isfinite(scaled), mathematics.round(scaled) / scale, x)


def _contains(x: Any, value: Any, /) -> bool:
    found: Any = utility.any(elementwise.equal(x, value))
    if isinstance(found, Tracer):
        found = found.concretize("`in`", "use `ts.any(x == value)`, which is an array")
    return bool(found)


def _transposed(x: Any) -> Any:
    if type(x) is Array and not is_recording():
        data = x.storage
        if type(data) is np.ndarray and data.ndim == 2:
            return view_of(data.T)
    return _turned(x)


@api_boundary
def _turned(x: Any) -> Any:
    if x.ndim != 2:
        raise ShapeError(
            f"T: the array is {x.type.strong()}",
            loc=loc.current(),
            rule="`x.T` is the transpose of a matrix, an array with two dims",
            fix="use `x.mT` for the last two dims, or `ts.permute_dims`",
        )
    return manipulation.matrix_transpose(x)


def _iterate(x: Any) -> Iterator[Any]:
    if not x.ndim:
        raise RankError(
            f"iteration over an array of type {x.type.strong()}",
            loc=loc.current(),
            rule="an array without dims has no items",
        )
    return iter(manipulation.unstack(x))


def _size(x: Any) -> Dim:
    return prod(x.shape)


def _itemsize(x: Any) -> int:
    return x.dtype.itemsize


def _nbytes(x: Any) -> Dim:
    return _size(x) * x.dtype.itemsize


def _to_device(x: Any, device: Device | str, /, *, stream: object = None) -> Any:
    return to_device("to_device", x, parse_device("to_device", device))


def _block_until_ready(x: Any) -> Any:
    """Waits until the elements are computed; see `ts.block_until_ready`."""
    return block_until_ready(x)


def _astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Any:
    return data_types.astype(x, dtype, copy=copy)


def _length(x: Any) -> int:
    if not x.ndim:
        raise RankError(
            f"len() of an array of type {x.type.strong()}",
            loc=loc.current(),
            rule="an array without dims has no length",
        )
    size = x.shape[0]
    if not isinstance(size, int):
        raise RankError(
            f"len() of an array of type {x.type.strong()}",
            loc=loc.current(),
            rule="Python wants a number, and the length of this array is symbolic",
            fix="use `x.shape[0]`",
        )
    return size


def _namespace(x: Any, *, api_version: str | None = None) -> Any:
    return Array(np.empty(0)).__array_namespace__(api_version=api_version)


def _unknown(x: Any, name: str) -> Any:
    text = f"{type(x).__name__!r} object has no attribute {name!r}"
    if name.startswith("_"):
        raise AttributeError(text)

    def fix() -> str | None:
        if name in ATTRIBUTES or name not in dir(_namespace(x)):
            return advise(name, ATTRIBUTES, [n for n in dir(x) if n[0] != "_"], "`x.{}`")
        return f"use the function `ts.{name}(x, ...)`"

    raise MissingNameError(text, loc=loc.current(), advise=fix)


def _format(x: Tracer, spec: str) -> str:
    if not spec:
        return repr(x)
    fix = "print it with `ts.debug.print`, or return it"
    return format(x.concretize(f"the format {spec!r}", fix), spec)


def _by_value(name: str, fix: str) -> Callable[..., Any]:
    """A method that a tracer has if its value is known: what the concrete array does."""

    def apply(self: Tracer, *args: Any, **options: Any) -> Any:
        found: Any = self.concretize(f"`{name}()`", fix)
        return getattr(found, name)(*args, **options)

    return apply


_BY_VALUE = {
    "item": "keep it an array",
    "tolist": "keep it an array, or return it and convert it outside",
    "__dlpack__": "return the array and export it outside",
    "__dlpack_device__": "return the array and export it outside",
}


def _method(name: str, fn: Any) -> Any:
    fn.__name__, fn.__qualname__ = name, f"ArrayBase.{name}"
    return api_boundary(fn)


def install() -> None:
    """Completes `ArrayBase`."""
    methods: dict[str, Any] = {}
    for name, (fn, cls, kinds) in _ARITHMETIC.items():
        methods[f"__{name}__"] = _arithmetic(fn, cls, kinds)
        methods[f"__r{name}__"] = _reflected(fn, cls)
    for name, fn in (*_BINARY.items(), ("divmod", _divmod)):
        methods[f"__{name}__"] = _operator(fn)
        methods[f"__r{name}__"] = _reflected(fn)
    methods.update({f"__{name}__": _operator(fn) for name, (fn, _) in _COMPARISONS.items()})
    methods.update({"__iter__": _iterate, "to_device": _to_device, "astype": _astype})
    methods["block_until_ready"] = _block_until_ready
    methods.update({"__round__": _round, "__contains__": _contains})
    methods.update({"__len__": _length, "__array_namespace__": _namespace})
    for name, fn in methods.items():
        setattr(ArrayBase, name, _method(name, fn))
    started = [(name, cls) for name, (_, cls, _) in _ARITHMETIC.items()]
    for name, cls in [*started, *[(name, cls) for name, (_, cls) in _COMPARISONS.items()]]:
        setattr(ArrayBase, f"__{name}__", _started(getattr(ArrayBase, f"__{name}__"), cls))
    reflected = {f"r{name}": fn for name, (fn, _, _) in _ARITHMETIC.items()}
    reflected |= {f"r{name}": fn for name, fn in _BINARY.items()}
    for name, fn in {**_BINARY, **reflected}.items():
        told_by_numbers = isinstance(fn, Shortcut) and fn.told_by_numbers
        method = Shortcut(getattr(ArrayBase, f"__{name}__"), told_by_numbers)
        setattr(ArrayBase, f"__{name}__", method)
    methods = {name: _by_value(name, fix) for name, fix in _BY_VALUE.items()}
    for name, fn in {**methods, "__format__": _format}.items():
        setattr(Tracer, name, _method(name, fn))
    for name, fn in _UNARY.items():
        setattr(ArrayBase, f"__{name}__", fn)
    ArrayBase.__getitem__ = getitem
    setattr(ArrayBase, "__getattr__", api_boundary(_unknown))  # noqa: B010
    properties: dict[str, Callable[[Any], Any]] = {
        "T": composed(_transposed),
        "mT": manipulation.matrix_transpose,
        "size": _size,
        "itemsize": _itemsize,
        "nbytes": _nbytes,
        "at": At,
        "device": device_of,
    }
    for name, fn in properties.items():
        setattr(ArrayBase, name, property(fn))
