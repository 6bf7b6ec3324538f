"""Functions of several ops on large arrays, as one program.

`ts.softmax(x)` outside of any trace is five ops, each of which reads and writes all the elements.
For large arrays the function is traced instead, with symbols for sizes, and what is compiled serves
all of them. It is so from the first call on, as one program rounds otherwise than several do:
results are the same each time. Convolutions are compiled for the sizes that they have
(`graph/calls.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tessera.dtypes import DType, iinfo
from tessera.eager_order import Spaces, as_it_lies, inverse, is_apart, order_of, spaced, turned
from tessera.eager_plans import Compiler, Plan, drop_oldest
from tessera.eager_repeats import SHORT, WORTH
from tessera.errors import TesseraError
from tessera.graph import calls
from tessera.graph.array import Array, ArrayBase
from tessera.graph.device import CPU, default_device
from tessera.graph.ops import rearrange as r
from tessera.graph.ops import reshape as s
from tessera.graph.ops.control import Control
from tessera.graph.ops.generate import Constant
from tessera.graph.ops.hostcall import HostCall
from tessera.graph.ops.library import LibraryCall
from tessera.graph.shortcut import Shortcut
from tessera.graph.trace import bind
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Func, Op
from tessera.ir.intexpr import Dim, evaluate, sym
from tessera.ir.types import TensorType, Type
from tessera.ir.walk import walk
from tessera.runtime.dispatch import direct
from tessera.runtime.dispatch.structure import class_of

_MOST_LEAVES = 16

_MOST_PLANS = 256

_MOST_PROGRAMS = 8
"""Programs of a function for arrays of some kinds. A number that is another one in each call, as a
slope that grows, is not compiled each time."""

_FEW = 2
"""Ops from which one program for all is better than one for each."""

_MOVES: tuple[type[Op], ...] = (s.Reshape, s.Broadcast, s.Transpose, s.Reverse, r.Slice, Constant)
"""Ops that compute nothing."""

_REFUSED: tuple[type[Op], ...] = (Control, HostCall, LibraryCall)

_FIXED = (str, type(None))
_NUMBERS = (int, float, bool)


@dataclass(frozen=True, slots=True)
class _Program:
    """A function for arguments of some kinds.

    Attributes:
        run: the compiled program.
        captured: what it reads besides the arguments.
        names: of the sizes in their order.
        types: of the results.
        make: makes the result of a tuple of arrays; None for the only one itself.
        plans: what a run takes, by the values of the sizes.
    """

    run: Any
    captured: Sequence[Array]
    names: Sequence[str]
    types: Sequence[Type]
    make: Callable[[Any], Any] | None
    plans: dict[tuple[int, ...], Plan] = field(default_factory=dict[Any, Any])


class _Unknown(Exception):
    """Arguments, or a result, of which no program is made."""


class _Arguments:
    """The arguments of a call, in which arrays are told from what says what is computed.

    Attributes:
        arrays: in their order.
        dims: the sizes of each, or symbols of them: equal ones share one.
        orders: in which each lies in memory; None for the order of its dims.
        spaces: how each lies among other elements in that order; None where it is alone.
        sizes: the values of the symbols.
        kinds: what tells programs for arrays apart.
        fixed: what says what is computed.
        knows_sizes: whether programs are for the sizes that there are.
        is_whole: whether they are for arrays of any size.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], shortcut: Shortcut) -> None:
        self.arrays: list[Array] = []
        self.dims: list[tuple[Dim, ...]] = []
        self.orders: list[tuple[int, ...] | None] = []
        self.spaces: list[Spaces | None] = []
        self.sizes: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._told_by_numbers = shortcut.told_by_numbers
        self.knows_sizes = shortcut.for_sizes is not None
        self.is_whole = shortcut.is_whole
        self._args = args
        self.fixed: list[Hashable] = []
        kinds = [self._kind(x) for x in args]
        self._named = {name: x for name, x in kwargs.items() if class_of(x) is Array}
        kinds += [(name, self._leaf(x)) for name, x in self._named.items()]
        self.kinds: tuple[Hashable, ...] = tuple(kinds)
        others = [(name, x) for name, x in kwargs.items() if name not in self._named]
        self.fixed += [(name, self._fixed(x)) for name, x in others]

    def _kind(self, x: Any) -> Hashable:
        kind = class_of(x)
        if kind is Array:
            return self._leaf(x)
        if kind in (list, tuple) and x and class_of(x[0]) is Array:
            return (kind, *[self._kind(item) for item in x])
        if kind in _NUMBERS and not self._told_by_numbers:
            return self._leaf(self._number(x))
        self.fixed.append(self._fixed(x))
        return None

    def _number(self, x: float) -> Array:
        """A number as an operand beside arrays of one dtype, which is then the number's."""
        dtypes = {a.dtype for a in self._args if class_of(a) is Array}
        if len(dtypes) != 1 or class_of(x) is bool:
            raise _Unknown
        (dtype,) = dtypes
        # What does not fit is an error, which the function itself has the words for.
        if not dtype.is_float:
            limits = iinfo(dtype) if dtype.is_integer else None
            if limits is None or class_of(x) is float or not limits.min <= x <= limits.max:
                raise _Unknown
        try:
            with np.errstate(all="ignore"):
                data = np.asarray(x).astype(dtype.np)
        except OverflowError:
            raise _Unknown from None
        return Array(data, TensorType((), dtype, weak=True))

    def _fixed(self, x: Any) -> Hashable:
        kind = class_of(x)
        if isinstance(x, (tuple, list)):
            return kind, *[self._fixed(item) for item in cast("Sequence[Any]", x)]
        if kind in _NUMBERS:
            return kind, repr(x)  # 0.0 and -0.0 are equal
        if kind in _FIXED or kind is DType:
            return x
        raise _Unknown

    def _leaf(self, x: Array) -> Hashable:
        data: Any = x.storage
        if type(data) is not np.ndarray or not data.size or (x.weak and data.ndim):
            raise _Unknown
        if len(self.arrays) == _MOST_LEAVES or (data.size > 1 and 0 in data.strides):
            raise _Unknown
        last = data.ndim - 1
        dims: list[Dim] = []
        for k, n in enumerate(data.shape):
            is_short = k == last and n < SHORT and not self.is_whole
            is_known = self.knows_sizes or n == 1 or is_short
            dims.append(n if is_known else sym(self._name(n)))
        order = order_of(data)
        lying = x if order is None else turned(x, order)
        found = None if self.knows_sizes else spaced(lying)
        if found is not None:
            self.sizes.update(zip(found[0].names(len(self.arrays)), found[1], strict=True))
        elif is_apart(lying.storage):
            order = None  # it is copied
        own = found and found[0]
        self.arrays.append(x if order is None else lying)
        self.dims.append(tuple(dims))
        self.orders.append(order)
        self.spaces.append(own)
        return x.dtype, x.weak, tuple(dims), order, own

    def _name(self, size: int) -> str:
        name = self._names.get(size)
        if name is None:
            name = self._names[size] = f"d{len(self._names)}"
            self.sizes[name] = size
        return name

    @property
    def are_large(self) -> bool:
        """Whether some array is large enough for one program."""
        least = calls.WORTH if self.knows_sizes else WORTH
        return self.is_whole or any([x.storage.size >= least for x in self.arrays])

    def types(self) -> list[TensorType]:
        """Of the parameters of a program."""
        found: list[TensorType] = []
        for k, (x, own) in enumerate(zip(self.arrays, self.spaces, strict=True)):
            dims = self._lying(k)
            shape = dims if own is None else own.shape(dims, k)
            found.append(TensorType(shape, x.dtype, x.weak))
        return found

    def _lying(self, k: int) -> tuple[Dim, ...]:
        dims, order = self.dims[k], self.orders[k]
        return dims if order is None else tuple([dims[d] for d in order])

    def _read(self, k: int, x: Any) -> Any:
        own, order = self.spaces[k], self.orders[k]
        found = x if own is None else own.read(bind, x, self._lying(k))
        return found if order is None else bind(s.Transpose, found, perm=inverse(order))

    def filled(self, params: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The positional arguments, and arrays by name, with parameters in the place of arrays."""
        operands = iter([self._read(k, x) for k, x in enumerate(params)])
        args = [self._fill(x, operands) for x in self._args]
        return args, {name: next(operands) for name in self._named}

    def _fill(self, x: Any, operands: Iterator[Any]) -> Any:
        kind = class_of(x)
        if kind in (list, tuple) and x and class_of(x[0]) is Array:
            items: list[Any] = [self._fill(item, operands) for item in x]
            return items if kind is list else tuple(items)
        is_operand = kind is Array or (kind in _NUMBERS and not self._told_by_numbers)
        return next(operands) if is_operand else x

    def inputs(self) -> list[np.ndarray]:
        """What a program reads."""
        pairs = zip(self.arrays, self.spaces, strict=True)
        return [as_it_lies(x, own) for x, own in pairs]


def _results_of(result: Any) -> tuple[list[Any], Callable[[Any], Any] | None]:
    """The arrays of a result, and what makes it of a tuple of them, or None."""
    if isinstance(result, ArrayBase):
        return [result], None
    cls = class_of(result)
    if not isinstance(result, (tuple, list)):
        raise _Unknown
    found: list[Any] = [*result]
    if not found or not all([isinstance(x, ArrayBase) for x in found]):
        raise _Unknown
    return found, cls if cls in (tuple, list) else cls._make


def _is_worth(func: Func, knows_sizes: bool) -> bool:
    """Whether a program is better than one for each op."""
    ops = [*walk(func.body)]
    if any([isinstance(op, _REFUSED) for op in ops]):
        return False
    count = len([op for op in ops if not isinstance(op, _MOVES)])
    if count == 0:
        # What is repeated would be copied element by element.
        return any([isinstance(op, s.Broadcast) for op in ops])
    # Parts that are joined would be copied first.
    is_joined = {r.Slice, r.Concatenate} <= {type(op) for op in ops}
    return knows_sizes or is_joined or count >= _FEW


class Functions:
    """The programs of functions of several ops.

    Args:
        compiler: makes them.

    Attributes:
        sized: the programs for known sizes, as the others are kept.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        # By the kinds of arrays, and then by what says what is computed.
        self._programs: dict[Hashable, dict[Hashable, _Program | None]] = {}
        self.sized: dict[Hashable, dict[Hashable, _Program | None]] = {}

    def call(self, shortcut: Shortcut, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function gives, by one program; NotImplemented where there is none."""
        try:
            given = _Arguments(args, kwargs, shortcut)
        except _Unknown:
            return NotImplemented
        if not given.are_large or default_device() is not CPU:
            return NotImplemented
        kinds = (shortcut, self._compiler.settings_key(), given.kinds)
        programs = self._programs_of(kinds, given.knows_sizes)
        fixed = tuple(given.fixed)
        if fixed not in programs and len(programs) < _MOST_PROGRAMS:
            programs[fixed] = self._program(shortcut, given, kwargs)
        program = programs.get(fixed)
        if program is None:
            return NotImplemented
        values = tuple([given.sizes[name] for name in program.names])
        plan = program.plans.get(values) or self._add(program, values, given.sizes)
        if any(given.spaces):
            direct.noted(None)
        found = plan.run([*[x.contiguous for x in program.captured], *given.inputs()])
        if program.make is None:
            return found
        return program.make(found if isinstance(found, tuple) else (found,))

    def _programs_of(
        self, kinds: Hashable, knows_sizes: bool
    ) -> dict[Hashable, _Program | None]:
        if not knows_sizes:
            return self._programs.setdefault(kinds, {})
        found = self.sized.get(kinds)
        if found is None:
            found = self.sized[kinds] = {}
            drop_oldest(self.sized)
        return found

    def _add(self, program: _Program, values: tuple[int, ...], sizes: dict[str, int]) -> Plan:
        types: list[Type] = []
        for t in program.types:
            assert isinstance(t, TensorType)
            types.append(t.with_shape([evaluate(d, sizes) for d in t.shape]))
        if len(program.plans) >= _MOST_PLANS:
            program.plans.clear()
        plan = program.plans[values] = self._compiler.plan(program.run, types, [*values])
        return plan

    def _program(
        self, shortcut: Shortcut, given: _Arguments, kwargs: dict[str, Any]
    ) -> _Program | None:
        make: list[Any] = []

        def run(*params: Any) -> Sequence[Any]:
            args, named = given.filled(params)
            found, how = _results_of(shortcut.function(*args, **{**kwargs, **named}))
            make.append(how)
            return found

        try:
            func, captured = trace_function(run, given.types(), "jit", shortcut.__name__)
            if not _is_worth(func, given.knows_sizes):
                return None
            program = self._compiler.compiled(func)
        except (_Unknown, TesseraError, TypeError, ValueError):
            # The function itself says what is wrong, or wants to know more than a trace does.
            return None
        types = [v.type for v in func.outputs]
        return _Program(program, captured, func.dims, types, make[0])
