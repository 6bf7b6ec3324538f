"""What tells calls apart that a traced function makes; see `steps.py`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import Any, cast

import numpy as np

from tessera.dtypes import DType
from tessera.graph.array import Array
from tessera.graph.ops.generate import Dense
from tessera.graph.trace import Trace, Tracer
from tessera.ir.core import Block, Func, Value
from tessera.ir.hash import content_hash
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import TensorType
from tessera.ir.walk import walk


class Deferred(Tracer):
    """A tracer in a walk, whose value is computed when somebody asks for it."""

    __slots__ = ()

    def __init__(self, trace: Trace, value: Value) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.trace = trace
        self.value = value

    @property
    def concrete(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The array, or the tracer of an outer trace, that it carries, if its trace has values."""
        trace = self.trace
        if trace.walk is not None:
            trace.walk.catch_up()
        return trace.known.get(self.value)


class _UnknownError(Exception):
    """An argument that no key is made of."""


_TOLD = (int, bool, str, DType, type)


def plain_key(
    trace: Trace, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Hashable:
    """The key of a call as `Keys` makes it, in less time, where all arguments are values of the
    trace, or say what is computed; None for other calls."""
    key: list[Hashable] = [function]
    is_traced = False
    captured = trace.captured
    for x in args:
        cls = x.__class__
        if (cls is Deferred or cls is Tracer) and x.trace is trace:
            is_traced = True
            key.append(x.value)
        elif cls is Array and (found := captured.get(id(x))) is not None:
            key.append(found[1])
        elif cls in _TOLD:
            key.append((cls, x))
        else:
            return None
    for name, x in kwargs.items():
        if x.__class__ not in _TOLD:
            return None
        key.append((name, (x.__class__, x)))
    return tuple(key) if is_traced else None


class Keys:
    """What tells the arguments of a call apart.

    Args:
        trace: the trace whose values they are.

    Attributes:
        is_traced: whether there is a traced value among them.
        has_captured: whether there is an array, or a traced value of another trace.
        new: what the trace has not captured yet.
    """

    __slots__ = ("_trace", "has_captured", "is_traced", "new")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.is_traced = False
        self.has_captured = False
        self.new: list[Any] = []

    def of_call(
        self, function: Hashable, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Hashable:
        """Of a call; None if there is no key."""
        try:
            found = (function, *[self.of(x) for x in args])
            return (*found, *[(name, self.of(x)) for name, x in kwargs.items()])
        except _UnknownError:
            return None

    def of(self, x: Any) -> Hashable:
        """Of an argument.

        Raises:
            _UnknownError: there is no key.
        """
        cls = x.__class__
        if cls is Deferred or cls is Tracer:
            if x.trace is not self._trace:
                return self._of_captured(x)
            self.is_traced = True
            return x.value
        if cls is Array:
            return self._of_captured(x)
        if cls is float:
            return cls, x or str(x)  # there are two zeros
        if cls in _TOLD:
            return cls, x
        if x is None or x is ...:
            return x
        if cls is tuple or cls is list:
            return cls, *[self.of(item) for item in x]
        if cls is slice:
            return cls, self.of(x.start), self.of(x.stop), self.of(x.step)
        if isinstance(x, (Enum, ScalarFn, TensorType)):
            return cast(Hashable, x)
        if cls is Block:
            return _of_region(x)
        raise _UnknownError

    def _of_captured(self, x: Any) -> Hashable:
        self.has_captured = True
        found = self._trace.captured.get(id(x))
        if found is not None:
            return found[1]
        for k, one in enumerate(self.new):
            if one is x:
                return k
        is_array = type(x) is Array
        if not (type(x.storage) is np.ndarray if is_array else x.trace.alive):
            raise _UnknownError
        self.new.append(x)
        if is_array:
            return x.storage.shape, x.storage.dtype, x.weak
        return x.type


_REGIONS: dict[int, tuple[Block, str]] = {}
"""Hashes of regions that came before: a jitted function has the same one each time."""

_MOST_REGIONS = 256


def _of_region(block: Block) -> Hashable:
    """What tells a region apart: its content, if that is told by its text."""
    found = _REGIONS.get(id(block))
    if found is None:
        values = [x for op in walk(block) for x in op.attrs.values()]
        if not all(map(_is_told, values)):
            raise _UnknownError
        if len(_REGIONS) >= _MOST_REGIONS:
            _REGIONS.clear()
        found = _REGIONS[id(block)] = block, content_hash(Func("region", block))
    return Block, found[1]


def _is_told(x: object) -> bool:
    """Whether the text of an attribute says all of it: a function of the user has a name alone."""
    if isinstance(x, tuple):
        return all(map(_is_told, cast("tuple[object, ...]", x)))
    return x is None or isinstance(x, (*_TOLD, float, complex, Enum, ScalarFn, TensorType, Dense))
