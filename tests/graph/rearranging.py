"""Random rearranging ops, and what they compute according to `sources` alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.dtypes import DType, bool_, dtype_of, float32, int8, int32, int64, uint8, uint64
from tessera.graph.ops.base import Rearrange
from tessera.graph.ops.checkpoint import Name
from tessera.graph.ops.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from tessera.graph.ops.gather import Gather, IndexMode
from tessera.graph.ops.rearrange import (
    Broadcast,
    Concatenate,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from tessera.graph.ops.windows import Windows
from tessera.ir.core import Op, Value
from tessera.ir.intexpr import Dim, IntExpr, evaluate, substitute, sym, symbols
from tessera.ir.opdef import FieldKind
from tessera.ir.types import TensorType

SIZES = (0, 1, 1, 2, 3, 4, 5, 7)


@dataclass
class Case:
    """An op class, its operands (grouped as its fields are) and attributes."""

    cls: type[Rearrange]
    operands: list[Any]
    attrs: dict[str, Any]

    @property
    def arrays(self) -> list[np.ndarray]:
        """The operands, flat."""
        return [
            x for item in self.operands for x in (item if isinstance(item, list) else [item])
        ]

    def op(self, rename: Callable[[Dim], Dim] = lambda dim: dim) -> Rearrange:
        """The op; `rename` replaces each dim of operand types and attributes."""

        def value(x: np.ndarray) -> Value:
            return Value(TensorType(tuple([rename(d) for d in x.shape]), dtype_of(x.dtype)))

        groups = [[value(x) for x in i] if isinstance(i, list) else value(i) for i in self.operands]
        attrs = {
            name: tuple([rename(d) for d in found]) if name in DIM_ATTRS else found
            for name, found in self.attrs.items()
        }
        return self.cls(*groups, **attrs)


DIM_ATTRS = frozenset({"shape", "start", "limit", "stride", "lo", "hi", "interior", "sizes"})


def make(cls: type[Op], *operands: Any, **attrs: Any) -> Any:
    """An op on operands of the given types (or lists of types)."""
    values = [[Value(t) for t in i] if isinstance(i, list) else Value(i) for i in operands]
    return cls(*values, **attrs)


def apply_sources(
    op: Rearrange, arrays: Sequence[np.ndarray], dims: Mapping[str, int] | None = None
) -> np.ndarray:
    """The result of `op`, element by element from where `sources` says it comes.

    Args:
        op: the op; its types may be symbolic.
        arrays: the operands, flat.
        dims: values of the symbols.
    """
    dims = dims or {}
    (result,) = op.results
    assert isinstance(result.type, TensorType)
    shape = tuple([int(evaluate(d, dims)) for d in result.type.shape])
    index = tuple([sym(f"i{k}") for k in range(len(shape))])
    env: dict[str, Any] = {**dims}
    env.update({f"i{k}": grid for k, grid in enumerate(np.indices(shape, dtype=np.int64))})
    out = np.zeros(shape, result.type.dtype.np)
    todo = np.ones(shape, np.bool_)
    for source in op.sources(index):
        for name in sorted({s for e in (*source.index, *source.where) for s in symbols(e)}):
            if name.startswith("$") and name not in env:
                k = int(name[1:])
                place = [evaluate(e, env) for e in op.dynamic_index(k, index)]
                # Python's integers, so that no index dtype limits the arithmetic
                found = np.asarray(arrays[k][tuple(place)])
                values = np.fromiter(found.ravel().tolist(), object, found.size)
                env[name] = np.broadcast_to(values.reshape(found.shape), shape)
        applies = todo.copy()
        for condition in source.where:
            applies &= np.broadcast_to(np.asarray(evaluate(condition, env)) >= 0, shape)
        if source.operand is None:
            out[applies] = source.fill
        else:
            x = arrays[source.operand]
            where = [
                np.broadcast_to(np.asarray(evaluate(e, env)), shape)[applies].astype(np.int64)
                for e in source.index
            ]
            for i, dim in zip(where, x.shape, strict=True):
                assert ((i >= 0) & (i < dim)).all(), (op, source)
            out[applies] = x[tuple(where)]
        todo &= ~applies
    assert not todo.any(), f"{op} has elements without a source"
    return out


def symbolic(case: Case, rng: np.random.Generator) -> tuple[Rearrange, dict[str, int]]:
    """The op with symbols for its sizes, and their values.

    A number n >= 2 becomes `S + (n - S)`, a size of its own symbol, or stays, the same everywhere.
    """
    base = int(rng.integers(0, 4))
    env = {"S": base}
    names: dict[int, Dim] = {}

    def rename(dim: Dim) -> Dim:
        assert isinstance(dim, int)
        if dim < 2:
            return dim
        if dim not in names:
            kind = rng.integers(0, 3)
            own = f"D{dim}"
            if kind == 2:
                env[own] = dim
            options: list[Dim] = [dim, sym("S") + (dim - base), sym(own)]
            names[dim] = options[kind]
        return names[dim]

    return case.op(rename), env


def concrete(op: Rearrange, dims: Mapping[str, int]) -> Rearrange:
    """The op with the symbols of its types and attributes replaced by numbers."""

    def number(dim: Dim) -> int:
        found = substitute(dim, dims)
        assert isinstance(found, int)
        return found

    def value(v: Value) -> Value:
        assert isinstance(v.type, TensorType)
        return Value(v.type.with_shape([number(d) for d in v.type.shape]))

    fields: dict[str, Any] = {}
    for field in op.fields:
        old = op.__dict__[field.name]
        if field.kind is FieldKind.OPERAND:
            fields[field.name] = value(old)
        elif field.kind is FieldKind.OPERANDS:
            fields[field.name] = [value(v) for v in old]
        elif field.name in DIM_ATTRS:
            fields[field.name] = tuple([number(d) for d in old])
        else:
            assert not isinstance(old, IntExpr)
            fields[field.name] = old
    return type(op)(**fields)


# --- random cases -----------------------------------------------------------------------------


def random_shape(rng: np.random.Generator, most: int = 4) -> tuple[int, ...]:
    """A shape of rank 0 to `most`."""
    return tuple([int(n) for n in rng.choice(SIZES, rng.integers(0, most + 1))])


def numbered(rng: np.random.Generator, shape: Sequence[int], dtype: DType = float32) -> np.ndarray:
    """An array with distinct elements, where the dtype has enough."""
    count = int(np.prod(shape, dtype=np.int64))
    return (rng.permutation(count) + 1).reshape(shape).astype(dtype.np)


def _broadcast(rng: np.random.Generator) -> Case:
    shape = random_shape(rng)
    kept = [k for k in range(len(shape)) if rng.random() < 0.6]
    x = numbered(rng, [shape[k] if rng.random() < 0.7 else 1 for k in kept])
    return Case(Broadcast, [x], {"shape": shape, "dims": tuple(kept)})


def _factors(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    dims: list[int] = []
    while count > 1:
        divisors = [d for d in range(2, count + 1) if count % d == 0]
        dims.append(int(rng.choice(divisors)))
        count //= dims[-1]
    for _ in range(rng.integers(0, 3)):
        dims.insert(int(rng.integers(0, len(dims) + 1)), 1)
    return tuple(dims)


def _reshape(rng: np.random.Generator) -> Case:
    if rng.random() < 0.1:
        return Case(Reshape, [numbered(rng, (3, 0, 2))], {"shape": (0, 5)})
    if rng.random() < 0.5:  # common outer dims and a common inner one around a reshaped middle
        head, tail = _factors(rng, int(rng.integers(1, 7))), _factors(rng, int(rng.integers(1, 7)))
        middle = int(rng.choice([1, 4, 6, 12]))
        before = (*head, *_factors(rng, middle), *tail)
        after = (*head, *_factors(rng, middle), *tail)
    else:
        count = int(rng.choice([1, 2, 7, 12, 24, 36]))
        before, after = _factors(rng, count), _factors(rng, count)
    return Case(Reshape, [numbered(rng, before)], {"shape": after})


def _transpose(rng: np.random.Generator) -> Case:
    shape = random_shape(rng)
    perm = tuple([int(p) for p in rng.permutation(len(shape))])
    return Case(Transpose, [numbered(rng, shape)], {"perm": perm})


def _slice(rng: np.random.Generator) -> Case:
    shape = random_shape(rng)
    start = tuple([int(rng.integers(0, n + 1)) for n in shape])
    limit = tuple([int(rng.integers(a, n + 1)) for a, n in zip(start, shape, strict=True)])
    stride = tuple([int(rng.integers(1, 4)) for _ in shape])
    attrs = {"start": start, "limit": limit, "stride": stride}
    return Case(Slice, [numbered(rng, shape)], attrs)


def _reverse(rng: np.random.Generator) -> Case:
    shape = random_shape(rng)
    axes = tuple([k for k in range(len(shape)) if rng.random() < 0.5])
    return Case(Reverse, [numbered(rng, shape)], {"axes": axes})


def _pad(rng: np.random.Generator) -> Case:
    shape = random_shape(rng, 3)

    def amounts(most: int) -> tuple[int, ...]:
        return tuple([int(n) for n in rng.integers(0, most, len(shape))])

    attrs = {"lo": amounts(4), "hi": amounts(4)}
    if rng.random() < 0.6:
        attrs["interior"] = amounts(3)
    return Case(Pad, [numbered(rng, shape), np.asarray(-1, np.float32)], attrs)


def _concatenate(rng: np.random.Generator) -> Case:
    shape = [*random_shape(rng, 3), 1]
    axis = int(rng.integers(0, len(shape)))
    xs: list[np.ndarray] = []
    for _ in range(rng.integers(1, 5)):
        shape[axis] = int(rng.choice(SIZES))
        xs.append(numbered(rng, shape) + 1000 * len(xs))
    return Case(Concatenate, [xs], {"axis": axis})


def _starts(rng: np.random.Generator, outer: tuple[int, ...], count: int) -> list[np.ndarray]:
    return [np.asarray(rng.integers(-3, 9, outer), rng.choice(["i4", "i8"])) for _ in range(count)]


def _dynamic_slice(rng: np.random.Generator) -> Case:
    outer, shape = random_shape(rng, 1), random_shape(rng, 3)
    sizes = tuple([int(rng.integers(0, n + 1)) for n in shape])
    x = numbered(rng, outer + shape)
    return Case(DynamicSlice, [x, _starts(rng, outer, len(shape))], {"sizes": sizes})


def _dynamic_update_slice(rng: np.random.Generator) -> Case:
    outer, shape = random_shape(rng, 1), random_shape(rng, 3)
    sizes = tuple([int(rng.integers(0, n + 1)) for n in shape])
    x, update = numbered(rng, outer + shape), -numbered(rng, outer + sizes)
    return Case(DynamicUpdateSlice, [x, update, _starts(rng, outer, len(shape))], {})


def random_indices(
    rng: np.random.Generator, shape: tuple[int, ...], dims: Sequence[int], inside: bool
) -> list[np.ndarray]:
    """One index array per dim; not `inside` means that some lie out of range."""
    found: list[np.ndarray] = []
    for dim in dims:
        dtype = (int32, int64, int8, uint8, uint64)[int(rng.integers(0, 5))]
        low = 0 if inside or dtype in (uint8, uint64) else -2
        high = max(dim, 1) if inside else dim + 3
        found.append(rng.integers(low, high, shape).astype(dtype.np))
        if not inside and dtype is uint64 and found[-1].size:
            found[-1].flat[0] = np.iinfo(np.uint64).max
    return found


def _gather(rng: np.random.Generator) -> Case:
    mode = IndexMode(rng.choice([m.value for m in IndexMode if m is not IndexMode.RAISE]))
    dtype = (float32, int32, bool_)[int(rng.integers(0, 3))]
    shape, outer = random_shape(rng), random_shape(rng, 2)
    if mode in (IndexMode.CLIP, IndexMode.PROMISE):
        shape = tuple([n or 2 for n in shape])
    axes = [int(k) for k in rng.permutation(len(shape))[: rng.integers(0, len(shape) + 1)]]
    dims = [shape[k] for k in axes]
    indices = random_indices(rng, outer, dims, mode is IndexMode.PROMISE)
    attrs = {"axes": tuple(axes), "mode": mode}
    return Case(Gather, [numbered(rng, shape, dtype), indices], attrs)


def _windows(rng: np.random.Generator) -> Case:
    count = int(rng.integers(0, 3))
    sizes = tuple([int(n) for n in rng.integers(1, 4, count)])
    step, dilation = (tuple([int(n) for n in rng.integers(1, 4, count)]) for _ in range(2))
    shape = [*random_shape(rng, 1), *[0] * count]
    axes = tuple([int(k) for k in rng.permutation(len(shape))[:count]])
    for axis, size, apart in zip(axes, sizes, dilation, strict=True):
        shape[axis] = (size - 1) * apart + int(rng.integers(0, 6))
    for k in range(len(shape)):
        if k not in axes:
            shape[k] = int(rng.choice(SIZES))
    attrs = {"axes": axes, "step": step, "dilation": dilation}
    return Case(Windows, [numbered(rng, (*shape, *sizes))], attrs)


def _name(rng: np.random.Generator) -> Case:
    return Case(Name, [numbered(rng, random_shape(rng), float32)], {"label": "scores"})


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "reverse": _reverse,
    "pad": _pad,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "name": _name,
    "windows": _windows,
}
