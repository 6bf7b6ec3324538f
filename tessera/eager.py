"""Eager evaluation: each op at once, through the same pipeline as everything else.

An op is compiled once per class, attributes, dtypes, ranks and layout class, with its sizes as
symbolic dims, and the executable serves every size. Ops that only rearrange elements without
computing anything give views where strides can say it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from tessera.compile import lower as lower_graph
from tessera.config import config
from tessera.graph.array import Array
from tessera.graph.ops import rearrange as r
from tessera.graph.ops import reshape as s
from tessera.graph.ops.base import Family
from tessera.graph.ops.control import Control
from tessera.graph.ops.generate import Constant, Dense
from tessera.graph.trace import items_of
from tessera.ir.builder import Builder
from tessera.ir.core import Op, Value
from tessera.ir.hash import content_hash
from tessera.ir.intexpr import Dim, IntExpr, sym
from tessera.ir.loc import Loc, scoped
from tessera.ir.opdef import attr_hints
from tessera.ir.types import TensorType
from tessera.runtime.executable import Executable
from tessera.runtime.memory import aligned_empty


class SizeMap:
    """Gives symbols to sizes: equal sizes share one, 1 and 0 stay as they are."""

    def __init__(self) -> None:
        self.known: dict[int, IntExpr] = {}
        self.values: list[int] = []

    def fresh(self, size: int) -> IntExpr:
        """A new symbol for a size."""
        symbol = sym(f"d{len(self.values)}")
        self.values.append(size)
        return symbol

    def dim(self, size: int) -> Dim:
        """The symbol of a size of an operand."""
        if size <= 1:
            return size
        found = self.known.get(size)
        if found is None:
            found = self.known[size] = self.fresh(size)
        return found

    def shape(self, shape: Sequence[int]) -> tuple[Dim, ...]:
        """The symbols of a shape."""
        return tuple([self.dim(size) for size in shape])

    def attribute(self, value: Any) -> Any:
        """An attribute whose integers are sizes or positions."""
        if isinstance(value, tuple):
            return tuple([self.attribute(v) for v in items_of(value)])
        if not isinstance(value, int) or value <= 1:
            return value
        return self.known[value] if value in self.known else self.fresh(value)


_GENERIC: dict[type[Op], frozenset[str]] = {}


def generic_attrs(cls: type[Op]) -> frozenset[str]:
    """Names of the attributes that hold dims, which the generic executable takes at run time."""
    found = _GENERIC.get(cls)
    if found is None:
        found = frozenset(k for k, hint in attr_hints(cls).items() if "IntExpr" in str(hint))
        _GENERIC[cls] = found
    return found


def attrs_key(attrs: dict[str, Any]) -> Hashable:
    """Attributes as part of a cache key, where `1 == True == 1.0`, `-0.0 == 0.0` and `nan != nan`
    would mix programs up.
    """
    key: list[Hashable] = []
    for name in sorted(attrs):
        value: object = attrs[name]
        kind = type(value)
        key.append((name, kind, str(value) if kind in (float, complex) else value))
    return tuple(key)


ViewRule = Callable[[np.ndarray, dict[str, Any]], np.ndarray | None]


def _view_reshape(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray | None:
    out = x.reshape(attrs["shape"])
    return out if not x.size or np.may_share_memory(out, x) else None


def _view_broadcast(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    shape, dims = attrs["shape"], attrs["dims"]
    lead = [1] * len(shape)
    for k, d in enumerate(dims):
        lead[d] = x.shape[k]
    return np.broadcast_to(x.reshape(lead), shape)


def _view_slice(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    index = tuple(
        slice(a, b, c)
        for a, b, c in zip(attrs["start"], attrs["limit"], attrs["stride"], strict=True)
    )
    return x[index]


VIEWS: dict[type[Op], ViewRule] = {
    s.Reshape: _view_reshape,
    s.Broadcast: _view_broadcast,
    s.Transpose: lambda x, attrs: x.transpose(attrs["perm"]),
    s.Reverse: lambda x, attrs: np.flip(x, attrs["axes"]),
    r.Slice: _view_slice,
}


class Eager:
    """The engine that computes ops outside any trace."""

    def __init__(self) -> None:
        self._cache: dict[Hashable, Executable] = {}

    def evaluate(self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The results of one op."""
        if getattr(cls, "family", None) is Family.ELEMENTWISE:
            return self._elementwise(cls, operands, attrs)
        if cls is Constant:
            return _constant(attrs["value"], attrs.get("weak", False))
        flat: list[Array] = []
        groups: list[int | None] = []
        for item in operands:
            found = items_of(item)
            flat.extend(found)
            groups.append(len(found) if isinstance(item, (tuple, list)) else None)
        view = VIEWS.get(cls)
        if view is not None:
            checked = self._check(cls, flat, groups, attrs)
            data = view(flat[0].host, attrs)
            if data is not None:
                data.flags.writeable = False
                return Array(data, checked if checked.weak else None)
        if issubclass(cls, Control):
            return self._control(cls, flat, groups, attrs)
        return self._compute(cls, flat, groups, attrs)

    def _check(
        self, cls: type[Op], flat: list[Array], groups: list[int | None], attrs: dict[str, Any]
    ) -> TensorType:
        op = _build(cls, [Value(x.type) for x in flat], groups, attrs)
        type = op.result.type
        assert isinstance(type, TensorType)
        return type

    def _compute(
        self, cls: type[Op], flat: list[Array], groups: list[int | None], attrs: dict[str, Any]
    ) -> Any:
        sizes = SizeMap()
        shapes = [sizes.shape(x.host.shape) for x in flat]
        dims = generic_attrs(cls)
        generic = {k: sizes.attribute(v) if k in dims else v for k, v in attrs.items()}
        weak = tuple([x.weak for x in flat])
        key = (
            cls,
            tuple(groups),
            tuple(shapes),
            tuple([x.host.dtype for x in flat]),
            weak,
            attrs_key(generic),
            config.current().key(),
        )
        found = self._cache.get(key)
        if found is None:
            # The op on concrete sizes first: its errors are the user's.
            _build(cls, [Value(x.type) for x in flat], groups, attrs)
            types = [
                TensorType(sh, x.dtype, w) for sh, x, w in zip(shapes, flat, weak, strict=True)
            ]
            names = [f"d{k}" for k in range(len(sizes.values))]
            found = self._cache[key] = self._compile(cls, types, groups, generic, names)
        elif len(flat) > 1 or dims:
            _build(cls, [Value(x.type) for x in flat], groups, attrs)
        return _results(found.run([x.contiguous for x in flat], sizes.values))

    def _elementwise(
        self, cls: type[Op], operands: Sequence[Array], attrs: dict[str, Any]
    ) -> Array:
        """One result; all operands have one shape, so they are one-dimensional to the kernel, but
        for those that are one number repeated.
        """
        shape = operands[0].shape
        key: list[Hashable] = [cls, config.current().key()]
        if attrs:
            key.append(attrs_key(attrs))
        inputs: list[np.ndarray] = []
        for x in operands:
            if x.is_splat:
                key.append(_SPLAT)
                data = x.host[(..., *([0] * x.ndim))]
            else:
                data = x.contiguous
            inputs.append(data)
            key += (data.dtype, x.weak)
            if data.shape != shape and x.shape != shape:
                # The op's own check of its operands, whose error is the user's.
                cls(*[Value(x.type) for x in operands], **attrs)
        signature = tuple(key)
        found = self._cache.get(signature)
        if found is None:
            found = self._cache[signature] = self._compile_elementwise(cls, operands, attrs)
        result = aligned_empty(shape, found.dtypes[0])
        found.run_into(inputs, (result,), (result.size,))
        return Array(result)

    def _compile_elementwise(
        self, cls: type[Op], operands: Sequence[Array], attrs: dict[str, Any]
    ) -> Executable:
        # The op on concrete sizes first: its errors are the user's.
        cls(*[Value(x.type) for x in operands], **attrs)
        size = sym("d0")
        builder = Builder(
            [TensorType(() if x.is_splat else (size,), x.dtype, x.weak) for x in operands]
        )
        with scoped(Loc.unknown):
            values = [
                builder.add(s.Broadcast(arg, shape=(size,), dims=())).result if x.is_splat else arg
                for arg, x in zip(builder.args, operands, strict=True)
            ]
            op = builder.add(cls(*values, **attrs))
        func = builder.func(cls.name.split(".")[-1], op.results, ["d0"])
        return lower_graph(func).executable()

    def _compile(
        self,
        cls: type[Op],
        types: list[TensorType],
        groups: list[int | None],
        attrs: dict[str, Any],
        dims: list[str],
    ) -> Executable:
        builder = Builder(types)
        with scoped(Loc.unknown):
            op = builder.add(_build(cls, builder.args, groups, attrs))
        func = builder.func(cls.name.split(".")[-1], op.results, dims)
        return lower_graph(func).executable()

    def _control(
        self, cls: type[Op], flat: list[Array], groups: list[int | None], attrs: dict[str, Any]
    ) -> Any:
        """Ops with regions: compiled for their sizes, found again by content."""
        builder = Builder([x.type for x in flat])
        op = builder.add(_build(cls, builder.args, groups, attrs))
        func = builder.func(cls.name.split(".")[-1], op.results)
        key = (content_hash(func), config.current().key())
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = lower_graph(func).executable()
        return tuple([Array(x) for x in found.run([x.contiguous for x in flat])])


# In a key, before an operand that is one number repeated.
_SPLAT = "splat"


def _results(outputs: Sequence[np.ndarray]) -> Any:
    results = tuple([Array(x) for x in outputs])
    return results[0] if len(results) == 1 else results


def _constant(value: Dense, weak: bool) -> Array:
    """A constant needs no code, which would be compiled anew for each number."""
    return Array(value.array, TensorType(value.shape, value.dtype, weak=True) if weak else None)


def _build(
    cls: type[Op], values: Sequence[Value], groups: Sequence[int | None], attrs: dict[str, Any]
) -> Op:
    fields: list[Any] = []
    position = 0
    for count in groups:
        if count is None:
            fields.append(values[position])
            position += 1
        else:
            fields.append(tuple(values[position : position + count]))
            position += count
    return cls(*fields, **attrs)
