"""A few calls of every Graph primitive, for tests of the transforms.

`SAMPLES` maps each op class to calls of it. Arguments are chosen away from kinks and poles, so that
differences of small steps are derivatives, and so that examples a little different (`example`) are
as good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import tessera as ts
from tessera.graph.ops import cumulative, elementwise, precision, reduce
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.blocks import Blocks
from tessera.graph.ops.checkpoint import Barrier, Checkpoint, Name
from tessera.graph.ops.collective import AllGather, AxisIndex, AxisReduce, Permute
from tessera.graph.ops.contract import DotGeneral, dot_general
from tessera.graph.ops.control import Call, Cond, While
from tessera.graph.ops.custom import CustomCall, CustomLinear
from tessera.graph.ops.dynamic_slice import (
    DynamicSlice,
    DynamicUpdateSlice,
    dynamic_slice,
    dynamic_update_slice,
)
from tessera.graph.ops.gather import Combine, Gather, IndexMode, Scatter, gather, scatter
from tessera.graph.ops.generate import Constant, Iota, RandomBits, constant, iota, random_bits
from tessera.graph.ops.hostcall import HostCall
from tessera.graph.ops.largest import Largest
from tessera.graph.ops.quantize import Dequantize, Format, Quantize, dequantize, quantize
from tessera.graph.ops.rearrange import (
    Broadcast,
    Concatenate,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
    broadcast,
    concatenate,
    pad,
    reshape,
    reverse,
    slice_,
    transpose,
)
from tessera.graph.ops.refs import RefGet, RefSet
from tessera.graph.ops.round_blocks import RoundBlocks
from tessera.graph.ops.scan import INDEX, Scan, Unwritten
from tessera.graph.ops.sort import Sort, sort
from tessera.graph.ops.windows import Windows, windows
from tessera.graph.trace import as_tuple, bind
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Block, Op
from tessera.ir.numerics import Rounding
from tests.numerics.library_samples import add_samples


@dataclass(frozen=True)
class Sample:
    """One call.

    Attributes:
        fn: takes arrays, returns an array or a tuple of them, by binding the op.
        xs: its arguments.
        label: what tells it from other samples of the op.
        reverse: whether it has a derivative in reverse mode.
    """

    fn: Callable[..., Any]
    xs: tuple[np.ndarray, ...]
    label: str = ""
    reverse: bool = True

    @property
    def differentiated(self) -> list[int]:
        """The arguments that carry tangents."""
        return [k for k, x in enumerate(self.xs) if x.dtype.kind in "fc"]


SAMPLES: dict[type[GraphOp], list[Sample]] = {}


def add(cls: type[GraphOp], fn: Callable[..., Any], *xs: Any, **options: Any) -> None:
    """Adds a sample."""
    arrays = tuple([np.asarray(x) for x in xs])
    SAMPLES.setdefault(cls, []).append(Sample(fn, arrays, **options))


def graph_ops() -> list[type[GraphOp]]:
    """Every primitive, by name."""
    found = [c for c in Op.registry.values() if issubclass(c, GraphOp)]
    return sorted([c for c in found if c.__module__.startswith("tessera.")], key=lambda c: c.name)


APART = {
    *(CustomLinear, HostCall, AxisReduce, AllGather, Permute, AxisIndex, Unwritten, Blocks),
    *(RoundBlocks, RefGet, RefSet),
}
"""Ops that are no functions of arrays alone: tests/api/test_custom.py, tests/debug,
tests/api/test_collectives.py, tests/differential/test_control_flow.py. Or ops of passes:
tests/differential/test_blocks.py. Or of float32 alone: tests/precision/test_policies.py. Or of
state: tests/api/test_rules_with_effects.py.
"""


def cases(differentiable: bool | None = None) -> list[tuple[type[GraphOp], Sample]]:
    """Samples of all ops, of those that are differentiable, or of those that are not."""
    return [
        (cls, sample)
        for cls in graph_ops()
        if differentiable is None or cls.differentiable is differentiable
        for sample in SAMPLES.get(cls, [])
    ]


def case_id(case: Any) -> str:
    """The name of a case in the list of tests."""
    cls, sample = case
    return f"{cls.name.removeprefix('graph.')}{sample.label and '-' + sample.label}"


def example(x: np.ndarray, k: int) -> np.ndarray:
    """Another argument like `x`, the k-th one."""
    if k == 0:
        return x
    if x.dtype.kind == "b":
        return np.roll(x.ravel(), k).reshape(x.shape) ^ (x.ndim == 0 and k % 2 == 1)
    if x.dtype.kind in "iu":
        moved = np.roll(x.ravel(), k).reshape(x.shape)
        return moved if x.ndim else (x + k).astype(x.dtype)
    rng = np.random.default_rng(1000 + k)
    return np.asarray(x * (1 + 0.01 * rng.uniform(-1, 1, x.shape))).astype(x.dtype)


def values(seed: int, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Numbers between two others, in random order and well apart from each other."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape))
    line = np.linspace(low, high, count) if count > 1 else np.full(count, (low + high) / 2)
    return rng.permutation(line).reshape(shape)


def complex_values(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Complex numbers in the upper right quarter of the plane, away from its edges."""
    return values(seed, shape, 0.3, 1.4) + 1j * values(seed + 1, shape, 0.2, 0.9)


# --- elementwise ------------------------------------------------------------------------------

UNARY: dict[str, tuple[float, float]] = {
    "neg": (-2, 2),
    "abs": (-2, 2),
    "sign": (-2, 2),
    "square": (-2, 2),
    "real": (-2, 2),
    "imag": (-2, 2),
    "conj": (-2, 2),
    "floor": (-2.3, 2.4),
    "ceil": (-2.3, 2.4),
    "trunc": (-2.3, 2.4),
    "round": (-2.3, 2.4),
    "isnan": (-2, 2),
    "isinf": (-2, 2),
    "isfinite": (-2, 2),
    "signbit": (-2, 2),
    "exp": (-2, 2),
    "exp2": (-2, 2),
    "expm1": (-2, 2),
    "log": (0.3, 3),
    "log1p": (-0.7, 3),
    "log2": (0.3, 3),
    "log10": (0.3, 3),
    "sqrt": (0.3, 3),
    "rsqrt": (0.3, 3),
    "cbrt": (0.3, 3),
    "sin": (-2, 2),
    "cos": (-2, 2),
    "tan": (-1.1, 1.1),
    "asin": (-0.8, 0.8),
    "acos": (-0.8, 0.8),
    "atan": (-2, 2),
    "sinh": (-2, 2),
    "cosh": (-2, 2),
    "tanh": (-2, 2),
    "asinh": (-2, 2),
    "acosh": (1.3, 3),
    "atanh": (-0.8, 0.8),
    "erf": (-1.5, 1.5),
    "erfc": (-1.5, 1.5),
    "erfinv": (-0.8, 0.8),
    "lgamma": (0.4, 4),
    "digamma": (0.4, 4),
    "sigmoid": (-2, 2),
}
COMPLEX_UNARY = frozenset(
    {
        *("neg", "abs", "sign", "square", "real", "imag", "conj", "isnan"),
        *("exp", "expm1", "log", "log1p", "sqrt"),
        *("sin", "cos", "tan", "asin", "acos", "atan"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    }
)
BINARY = frozenset(
    {
        *("add", "sub", "mul", "div", "pow", "min", "max", "mod", "rem", "floordiv"),
        *("hypot", "logaddexp", "atan2", "copysign", "complex", "nextafter"),
        *("eq", "ne", "lt", "le", "gt", "ge"),
    }
)
COMPLEX_BINARY = frozenset({"add", "sub", "mul", "div", "pow", "eq", "ne"})


def _elementwise() -> None:
    for cls in graph_ops():
        row = cls.__dict__.get("scalar", "")
        if not issubclass(cls, elementwise.Elementwise) or not row:
            continue
        fn: Any = partial(bind, cls)
        if row in UNARY:
            add(cls, fn, values(1, (2, 3), *UNARY[row]))
        if row in COMPLEX_UNARY:
            add(cls, fn, complex_values(2, (2, 3)), label="complex")
        if row in BINARY:
            # The quotients of these are not near integers, where mod and rem jump.
            add(cls, fn, values(3, (2, 3), 1.7, 3.1), values(4, (2, 3), 0.61, 1.13))
        if row in COMPLEX_BINARY:
            add(cls, fn, complex_values(5, (3,)), complex_values(7, (3,)), label="complex")
        if row in ("and", "or", "xor", "shl", "shr", "trunc_div", "mulhi", "mod"):
            add(cls, fn, np.array([12, 7, -5]), np.array([3, 5, 2]), label="int")
        if row in ("and", "or", "xor"):
            add(cls, fn, np.array([True, False]), np.array([True, True]), label="bool")
        if row in ("not", "clz", "popcount"):
            add(cls, fn, np.array([12, 7, 5], np.int32), label="int")
    x, y = values(8, (2, 3), -2, 2), values(9, (2, 3), 0.5, 1.5)
    add(e.Fma, e.fma, x, y, values(10, (2, 3), -1, 1))
    add(e.Select, e.select, np.array([[True, False, True], [False, False, True]]), x, y)
    add(e.Select, lambda c, x: e.select(c, x, 2.0), np.array([True, False]), x[0, :2], label="one")
    add(e.Cast, lambda x: e.cast(x, ts.complex128), x, label="complex")
    add(e.Cast, lambda x: e.cast(x, ts.float64), complex_values(11, (3,)), label="real")
    add(e.Cast, lambda x: (e.cast(x, ts.int32), e.cast(x, ts.float64)), x, label="int")
    add(e.Bitcast, lambda x: e.bitcast(x, ts.int64), x)
    # Rounded to their own format numbers stay, so that the derivative is what differences say.
    own = ts.float64
    add(precision.RoundTo, lambda x: precision.round_to(x, own, Rounding.UP), x)
    add(precision.RoundStochastic, lambda x: precision.round_stochastic(x, 0.5, own), x)
    add(precision.Saturate, lambda x: precision.saturate(x * 400.0, ts.float8_e4m3fn), x)
    add(precision.Flush, lambda x: precision.flush(x, ts.float16), x)


# --- rearranging, generating ------------------------------------------------------------------


def _rearranging() -> None:
    x = values(20, (2, 3), -2, 2)
    add(Broadcast, lambda x: broadcast(x, (4, 2, 3), (1, 2)), x)
    add(Broadcast, lambda x: broadcast(x, (2, 3), (0, 1)), x[:, :1], label="ones")
    add(Reshape, lambda x: reshape(x, (3, 2)), x)
    add(Reshape, lambda x: reshape(x, (1, 6, 1)), x, label="ones")
    add(Transpose, lambda x: transpose(x, (2, 0, 1)), values(21, (2, 1, 3), -2, 2))
    add(Reverse, lambda x: reverse(x, (1,)), x)
    add(Slice, lambda x: slice_(x, (0, 1), (2, 5), (1, 3)), values(22, (3, 6), -2, 2))
    add(Pad, lambda x, v: pad(x, v, (1, 0), (0, 2), (0, 1)), x, np.float64(0.5))
    add(Pad, lambda x: pad(x, 0, (0,), (3,), (2,)), np.zeros(0), label="empty")
    add(Pad, lambda x: pad(x, 1, (2, 0), (0, 1)), x, label="no interior")
    add(
        Concatenate,
        lambda *xs: concatenate(xs, 1),
        x,
        values(23, (2, 1), -2, 2),
        values(24, (2, 2), -2, 2),
    )
    line = values(25, (2, 7), -2, 2)
    add(Windows, lambda x: windows(x, (1,), (2,), (2,), (3,)), line)
    add(Windows, lambda x: windows(x, (1, 0), (3, 2), (1, 1), (2, 1)), line, label="two")
    add(Constant, lambda x: e.mul(x, constant(np.full((2, 3), 1.5), ts.float64)), x)
    add(Iota, lambda x: e.mul(x, iota((2, 3), 1, ts.float64)), x)
    add(RandomBits, lambda k: random_bits(k, (2, 3)), np.array([3, 4], np.uint32))
    add(
        RandomBits,
        lambda k: random_bits(k, (2, 3)),
        np.array([3, 4, 5, 6], np.uint32),
        label="of a sequence",
    )


# --- reductions, scans, sorting, contraction --------------------------------------------------


def _reducing() -> None:
    x = values(30, (2, 3), 0.4, 2)
    for cls in (reduce.Sum, reduce.Prod, reduce.Max, reduce.Min):
        add(cls, partial(bind, cls, axes=(1,)), x)
        add(cls, partial(bind, cls, axes=(0, 1)), x, label="all")
    z = complex_values(31, (2, 3))
    add(reduce.Sum, partial(bind, reduce.Sum, axes=(0,)), z, label="complex")
    add(reduce.Prod, partial(bind, reduce.Prod, axes=(1,)), z, label="complex")
    zeros = np.array([[0.0, 0.5, 2.0], [0.0, 0.0, 1.5]])
    add(reduce.Prod, partial(bind, reduce.Prod, axes=(1,)), zeros, label="zeros")
    for cls in (reduce.Any_, reduce.All):
        add(cls, partial(bind, cls, axes=(0,)), np.array([[True, False], [True, True]]))
    for cls in (reduce.ArgMax, reduce.ArgMin):
        add(cls, partial(bind, cls, axis=0), x)
    for cls in (
        cumulative.CumSum,
        cumulative.CumProd,
        cumulative.CumMax,
        cumulative.CumMin,
        cumulative.CumLogSumExp,
    ):
        add(cls, partial(bind, cls, axis=1), values(32, (2, 4), 0.4, 2))
        add(cls, partial(bind, cls, axis=0, reverse=True), values(33, (3,), 0.4, 2), label="rev")
    add(cumulative.CumProd, partial(bind, cumulative.CumProd, axis=1), zeros, label="zeros")
    add(Sort, lambda x: sort((x,), 1), values(34, (2, 4), -2, 2))
    add(Largest, lambda x: bind(Largest, x, k=3), values(35, (2, 5), -2, 2))
    add(
        Sort,
        lambda k, x, n: sort((k, x, n), 0, descending=True),
        values(35, (4,), -2, 2),
        values(36, (4,), -2, 2),
        np.arange(4),
        label="many",
    )
    a, b = values(37, (2, 3), -2, 2), values(38, (3, 4), -2, 2)
    add(DotGeneral, lambda a, b: dot_general(a, b, ((1,), (0,))), a, b)
    add(
        DotGeneral,
        lambda a, b: dot_general(a, b, ((1, 3), (2, 0)), ((2,), (1,))),
        values(39, (2, 3, 2, 2), -1, 1),
        values(40, (2, 2, 3), -1, 1),
        label="batch",
    )
    add(DotGeneral, lambda a, b: dot_general(a, b, ((), ())), a[0], b[0], label="outer")
    add(
        DotGeneral,
        lambda a, b: dot_general(a, b, ((1, 0), (0, 1)), dtype=ts.float64),
        a,
        values(45, (3, 2), -2, 2),
        label="all",
    )
    add(
        DotGeneral,
        lambda a, b: dot_general(a, b, ((0,), (0,))),
        complex_values(41, (3, 2)),
        complex_values(43, (3,)),
        label="complex",
    )


# --- computed positions -----------------------------------------------------------------------


def _indexing() -> None:
    x = values(50, (4, 3), -2, 2)
    i, j = np.int32(1), np.int64(0)
    add(DynamicSlice, lambda x, i, j: dynamic_slice(x, (i, j), (2, 2)), x, i, j)
    add(
        DynamicSlice,
        lambda x, i, j: dynamic_slice(x, (i, j), (2, 2)),
        x,
        np.int8(-3),
        np.uint8(7),
        label="clamped",
    )
    add(
        DynamicUpdateSlice,
        lambda x, u, i: dynamic_update_slice(x, u, (i, i)),
        x,
        values(53, (3, 1), -2, 2),
        np.int64(9),
        label="clamped",
    )
    add(
        DynamicUpdateSlice,
        lambda x, u, i, j: dynamic_update_slice(x, u, (i, j)),
        x,
        values(51, (2, 2), -2, 2),
        i,
        j,
    )
    rows = np.array([2, 0, 2])
    add(Gather, lambda x, i: gather(x, (i,), (0,), IndexMode.CLIP), x, rows)
    add(
        Gather,
        lambda x, i, j: gather(x, (i, j), (0, 1), IndexMode.DROP),
        x,
        np.array([[1, 7], [3, 0]]),
        np.array([[0, 1], [2, 2]], np.int32),
        label="drop",
    )
    outside = np.array([[-1, 7], [3, 0]])
    for mode in (IndexMode.CLIP, IndexMode.FILL):
        add(
            Gather,
            lambda x, i, mode=mode: e.select(
                # The NaN that is filled in has no differences.
                e.isnan(y := gather(x, (i,), (1,), mode)),
                0.5,
                y,
            ),
            x,
            outside,
            label=f"outside-{mode.value}",
        )
    add(
        Gather,
        lambda x, i, j: gather(x, (j, i), (2, 0), IndexMode.PROMISE),
        values(54, (2, 3, 4), -2, 2),
        np.array([1, 0, 1]),
        np.array([3, 3, 0]),
        label="axes",
    )
    add(Gather, lambda x: gather(x, (), (), IndexMode.CLIP), x, label="none")
    updates = values(52, (3, 3), -1.9, 2.1)
    distinct = np.array([2, 0, 3])
    for combine in Combine:
        unique = combine is Combine.MUL
        add(
            Scatter,
            partial(_scatter, combine, unique),
            x,
            updates,
            distinct if unique else rows,
            label=combine.value,
        )
        add(
            Scatter,
            lambda x, u, i, j, c=combine: scatter(
                x, u, (i, j), (2, 0), c, IndexMode.CLIP, c is Combine.MUL
            ),
            values(55, (2, 3, 4), -2, 2),
            values(56, (3, 3), -1.9, 2.1),
            np.array([3, 9, 0]),
            np.array([-1, 1, 1]),
            label=f"{combine.value}-clip",
        )
    add(
        Scatter,
        lambda x, i: scatter(
            x, ts.full((3, 3), 1.5, dtype=ts.float64), (i,), (0,), Combine.MUL, IndexMode.DROP
        ),
        x,
        np.array([2, 9, 2]),
        label="mul-repeated",
    )
    add(
        Scatter,
        lambda x, u: scatter(x, u, (), (), Combine.ADD),
        x,
        values(57, (4, 3), -2, 2),
        label="none",
    )


def _scatter(combine: Combine, unique: bool, x: Any, u: Any, i: Any) -> Any:
    return scatter(x, u, (i,), (0,), combine, IndexMode.DROP, unique)


# --- control ----------------------------------------------------------------------------------


def region(fn: Callable[..., Sequence[Any]], args: Sequence[Any]) -> Block:
    """A closed region that computes `fn`."""
    func, captured = trace_function(fn, [x.type.strong() for x in args], "jit", "region")
    assert not captured
    return func.body


def cond(pred: Any, then: Any, otherwise: Any, *args: Any) -> tuple[Any, ...]:
    """A conditional over two functions of `args`, which return lists."""
    blocks = {"then": region(then, args), "otherwise": region(otherwise, args)}
    return as_tuple(bind(Cond, pred, tuple(args), **blocks))


def while_(going: Any, body: Any, consts: Sequence[Any], init: Sequence[Any]) -> tuple[Any, ...]:
    """A loop; both functions take `consts`, then the carried values; `body` returns a list."""
    args = (*consts, *init)
    blocks = {"cond": region(lambda *a: [going(*a)], args), "body": region(body, args)}
    return as_tuple(bind(While, tuple(consts), tuple(init), **blocks))


def scan_(body: Any, consts: Any, init: Any, xs: Any, **options: Any) -> tuple[Any, ...]:
    """A loop over slices; `body` takes the number of the step, constants, carried values, slices,
    and returns a list."""
    types = [INDEX, *[x.type.strong() for x in (*consts, *init)]]
    types += [x.type.strong().with_shape(x.shape[1:]) for x in xs]
    func, captured = trace_function(body, types, "scan", "body")
    assert not captured
    return as_tuple(bind(Scan, consts, init, xs, length=xs[0].shape[0], **options, body=func.body))


def call(fn: Callable[..., Sequence[Any]], *args: Any) -> tuple[Any, ...]:
    """A call of a function, which returns a list and may use arrays of its closure."""
    func, captured = trace_function(fn, [x.type.strong() for x in args], "jit", "f")
    return as_tuple(bind(Call, (*captured, *args), label="f", body=func.body))


def _control() -> None:
    x, y = values(60, (3,), 0.4, 1.5), values(61, (3,), 0.4, 1.5)
    add(Call, lambda x, y: call(lambda x, y: [x * y, ts.sin(x)], x, y), x, y)

    def branches(pred: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return cond(pred, lambda x, y: [ts.sin(x) * y, x], lambda x, y: [y * y * y, y], x, y)

    @ts.custom_jvp
    def ruled(x: Any, y: Any) -> Any:
        return ts.sin(x) * y, y * y

    @ruled.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        return ruled(x, y), (ts.cos(x) * y * dx + ts.sin(x) * dy, 2 * y * dy)

    add(CustomCall, lambda x, y: [*ruled(x, y)], x, y)

    kept = ts.checkpoint(lambda x, y: [ts.sin(ts.cos(x)) * y, ts.exp(x)])
    add(Checkpoint, kept, x, y)
    add(Barrier, lambda x, y: as_tuple(bind(Barrier, (x, y))), x, y)
    add(Name, lambda x: ts.checkpoint_name(x, "x"), x)

    for pred in (True, False):
        add(Cond, branches, np.bool_(pred), x, y, label=str(pred).lower())

    def power(n: Any, a: Any, x: Any) -> tuple[Any, ...]:
        """x * a**n + ..., with n known when it runs only."""
        return while_(
            lambda a, k, x: e.gt(k, 0),
            lambda a, k, x: [k - 1, a * ts.sin(x) + x],
            (a,),
            (n, x),
        )

    add(While, power, np.int64(3), y, x, reverse=False)

    def halving(x: Any) -> tuple[Any, ...]:
        """How often depends on the differentiated values."""
        return while_(lambda x: e.gt(ts.sum(x * x), 1.0), lambda x: [x * 0.5], (), (x,))

    add(While, halving, x, label="halving", reverse=False)

    def turns(a: Any, c: Any, xs: Any, **options: Any) -> tuple[Any, ...]:
        """A number of the step, a constant, a carried value, and slices."""
        return scan_(
            lambda i, a, c, x: [ts.sin(c) * a + x, c * x * ts.astype(i, ts.float64)],
            (a,),
            (c,),
            (xs,),
            **options,
        )

    xs = values(62, (4, 3), 0.4, 1.5)
    add(Scan, turns, x, y, xs)
    add(Scan, partial(turns, reverse=True, unroll=3), x, y, xs, label="reverse")
    add(Scan, turns, x, y, xs[:0], label="empty")


def _quantizing() -> None:
    x, scale = values(70, (4, 6), -3, 3), values(71, (4, 1), 0.02, 0.05)
    add(Quantize, lambda x, s: quantize(x, s, None, Format.INT8, (1, 0)), x, scale)
    add(
        Quantize,
        lambda x, s, z: quantize(x, s, z, Format.UINT8, (2, 1)),
        x,
        values(72, (2, 6), 0.02, 0.05),
        np.arange(12, dtype=np.uint8).reshape(2, 6),
        label="zero",
    )
    for format, block in ((Format.E4M3, (0, 0)), (Format.E5M2, (0, 0)), (Format.E2M1, (0, 0))):
        fn = partial(quantize, zero=None, format=format, block=block)
        add(Quantize, fn, x, scale[:1], label=format.value)
    stored = np.arange(-12, 12, dtype=np.int8).reshape(4, 6)

    def double(q: Any, s: Any, z: Any = None, block: Any = (1, 0)) -> Any:
        return dequantize(q, s, z, Format.INT8, block, ts.float64)

    add(Dequantize, double, stored, scale)
    tiles = values(73, (2, 2), 0.2, 2)
    add(Dequantize, partial(double, block=(2, 3)), stored, tiles, label="tiles")
    zero = np.asarray([[1, 2, 3, 4, 5, 6]], np.int8)
    apart = partial(double, block=(0, 1))
    add(Dequantize, apart, stored, values(74, (1, 6), 0.2, 2), zero, label="zero")


_elementwise()
_quantizing()
_rearranging()
_reducing()
_indexing()
_control()
add_samples(add)
