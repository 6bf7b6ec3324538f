"""Random programs over every family, and all the ways to run one.

A program is a list of steps; each step is a function of earlier values. Steps look only at types,
so the same program can be traced with static or with symbolic dims. Ops that jump (comparisons,
rounding, sorting, arg-reductions, casts to integers) are applied to *exact* values only: inputs,
integers, and what is computed from them without rounding; else two correct implementations could
differ by a whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera import dtypes as dt
from tessera.dtypes import DType, Kind
from tessera.errors import ShapeError
from tessera.graph.ops import (
    arithmetic,  # noqa: F401
    contract,
    cumulative,
    dynamic_slice,
    elementwise,
    gather,
    rearrange,
)
from tessera.graph.ops import reduce as red
from tessera.graph.ops import sort as sorting
from tessera.graph.ops.control import Cond, While
from tessera.graph.ops.generate import iota, random_bits
from tessera.graph.ops.reshape import full
from tessera.graph.ops.scan import INDEX, Scan
from tessera.graph.trace import Trace, active, as_tuple, bind
from tessera.graph.transforms.evaluate import trace_function
from tessera.ir.core import Func
from tessera.ir.intexpr import Dim, sym
from tessera.ir.types import TensorType

SIZES = (0, 1, 2, 3, 5, 7, 16, 17, 33, 64, 100)
WEIGHTS = np.array([1, 2, 2, 3, 3, 2, 2, 3, 2, 1, 1], float)

FLOATS = (dt.float32, dt.float32, dt.float32, dt.float64, dt.float16, dt.bfloat16)
INTS = (dt.int32, dt.int64, dt.int8, dt.uint8, dt.uint32, dt.int16)
DTYPES = (*FLOATS, *INTS, dt.bool_, dt.complex64)


@dataclass
class Item:
    """A value of the program while it is generated.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        exact: whether every correct implementation gives the same bits.
        bound: a bound on its magnitude, to keep values tame.
    """

    shape: tuple[int, ...]
    dtype: DType
    exact: bool
    bound: float


Step = Callable[[list[Any]], Any]


@dataclass
class Program:
    """A generated program.

    Attributes:
        inputs: shape and dtype of each input.
        steps: each appends one value.
        outputs: positions of the outputs.
        names: what the steps do, for messages.
    """

    inputs: list[Item]
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Applies the program to arrays or tracers."""
        pool = list(values)
        for step in self.steps:
            pool.append(step(pool))
        return [pool[k] for k in self.outputs]

    def graph(self, symbolic: bool = False) -> Func:
        """The traced Graph, with the sizes as symbols where asked (equal sizes share one; 0 and 1
        too are symbols).
        """
        types = [
            TensorType(symbolic_shape(x.shape) if symbolic else x.shape, x.dtype)
            for x in self.inputs
        ]
        with active(Trace("jit", "program", staging=True)) as trace:
            outputs = self.run([trace.input(t) for t in types])
            graph, captured = trace.finish(outputs, "program")
        assert not captured
        return graph

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Random inputs."""
        return [random_array(rng, x.shape, x.dtype) for x in self.inputs]


def symbolic_shape(shape: tuple[int, ...]) -> tuple[Dim, ...]:
    """One symbol per size."""
    return tuple(sym(f"n{size}") for size in shape)


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Values of moderate size."""
    return np.asarray(_random_values(rng, shape, dtype))


def _random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Any:
    if dtype.kind is Kind.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind is Kind.UINT:
        return rng.integers(0, 7, shape).astype(dtype.np)
    if dtype.kind is Kind.INT:
        return rng.integers(-6, 7, shape).astype(dtype.np)
    if dtype.kind is Kind.COMPLEX:
        return (rng.uniform(-2, 2, shape) + 1j * rng.uniform(-2, 2, shape)).astype(dtype.np)
    return rng.uniform(-2, 2, shape).astype(dtype.np)


class Generator:
    """Builds one program."""

    def __init__(self, rng: np.random.Generator, symbolic: bool) -> None:
        self.rng = rng
        self.symbolic = symbolic
        self.items: list[Item] = []
        self.program = Program([])

    # --- choices ---

    def size(self) -> int:
        return int(self.rng.choice(SIZES, p=WEIGHTS / WEIGHTS.sum()))

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = int(self.rng.integers(0, 4)) if rank is None else rank
        shape = tuple(self.size() for _ in range(rank))
        return shape if np.prod(shape) <= 300 else self.shape(rank)

    def one_of(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def pick(self, test: Callable[[Item], bool]) -> int | None:
        found = [k for k, x in enumerate(self.items) if test(x)]
        return self.one_of(found) if found else None

    def input(self, shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> int:
        """A new input; inputs come before all steps, so positions shift."""
        dtype = dtype or self.one_of(DTYPES)
        item = Item(self.shape() if shape is None else shape, dtype, True, 6.0)
        assert not self.program.steps
        self.program.inputs.append(item)
        self.items.append(item)
        return len(self.items) - 1

    def add(self, name: str, item: Item, step: Step) -> int:
        self.program.steps.append(step)
        self.program.names.append(name)
        self.items.append(item)
        return len(self.items) - 1

    # --- generation ---

    def generate(self, steps: int) -> Program:
        """Some inputs, then steps."""
        base = self.shape(int(self.rng.integers(1, 4)))
        dtype = self.one_of(DTYPES)
        self.input(base, dtype)
        self.input(base, dtype)
        for _ in range(int(self.rng.integers(1, 3))):
            self.input()
        for _ in range(steps):
            for _ in range(20):
                if self.one_of(RULES)(self):
                    break
        used = len(self.program.inputs)
        last = range(used, len(self.items))
        count = min(len(last), int(self.rng.integers(1, 4)))
        picks = sorted(
            self.rng.choice(np.arange(used, len(self.items)), count, replace=False).tolist()
        )
        self.program.outputs = [int(k) for k in picks] or [0]
        return self.program


Rule = Callable[[Generator], bool]


def is_float(x: Item) -> bool:
    return x.dtype.kind is Kind.FLOAT


def is_number(x: Item) -> bool:
    return x.dtype.kind is not Kind.BOOL and x.dtype.kind is not Kind.COMPLEX


def unary(g: Generator) -> bool:
    k = g.pick(lambda x: is_float(x) and x.bound < 20)
    if k is None:
        return False
    item = g.items[k]
    name = g.one_of(
        (
            "exp",
            "tanh",
            "sin",
            "cos",
            "sigmoid",
            "atan",
            "erf",
            "square",
            "abs",
            "neg",
            "expm1",
            "sign_free",
        )
    )
    if name == "sign_free":
        g.add(
            "sqrt(abs)",
            Item(item.shape, item.dtype, False, 5.0),
            lambda v: call("sqrt", call("abs", v[k])),
        )
        return True
    if name == "exp" and item.bound > 8:
        return False
    exact = item.exact and name in ("abs", "neg")
    bound = {
        "exp": np.exp(min(item.bound, 8)),
        "expm1": np.exp(min(item.bound, 8)),
        "square": item.bound**2,
    }.get(name, max(item.bound, 1.0))
    if name == "expm1" and item.bound > 8:
        return False
    g.add(name, Item(item.shape, item.dtype, exact, float(bound)), lambda v: call(name, v[k]))
    return True


def call(name: str, *args: Any) -> Any:
    """Binds an elementwise primitive by name."""
    from tessera.ir.core import Op

    return bind(Op.registry[f"graph.{name}"], *args)


def binary(g: Generator) -> bool:
    k = g.pick(lambda x: x.bound < 1e3 and x.dtype.kind is not Kind.BOOL)
    if k is None:
        return False
    a = g.items[k]
    j = g.pick(lambda x: x.shape == a.shape and x.dtype is a.dtype and x.bound < 1e3)
    assert j is not None
    b = g.items[j]
    names = ["add", "sub", "mul"]
    if a.dtype.kind is not Kind.COMPLEX:
        names += ["max", "min"]
    if a.dtype.kind in (Kind.INT, Kind.UINT):
        names += ["and", "or", "xor", "floordiv", "mod", "shl", "shr"]
    name = g.one_of(names)
    bound = {"add": a.bound + b.bound, "sub": a.bound + b.bound, "mul": a.bound * b.bound}.get(
        name, 2 * max(a.bound, b.bound)
    )
    whole = a.dtype.kind in (Kind.INT, Kind.UINT)
    exact = a.exact and b.exact and (whole or name in ("max", "min"))
    g.add(
        name,
        Item(a.shape, a.dtype, exact, 6.0 if whole else bound),
        lambda v: call(name, v[k], v[j]),
    )
    return True


def compare(g: Generator) -> bool:
    k = g.pick(lambda x: x.exact and is_number(x))
    if k is None:
        return False
    a = g.items[k]
    j = g.pick(lambda x: x.exact and x.shape == a.shape and x.dtype is a.dtype)
    assert j is not None
    name = g.one_of(("lt", "le", "gt", "ge", "eq", "ne"))
    g.add(name, Item(a.shape, dt.bool_, True, 1.0), lambda v: call(name, v[k], v[j]))
    return True


def select(g: Generator) -> bool:
    c = g.pick(lambda x: x.dtype is dt.bool_)
    if c is None:
        return False
    shape = g.items[c].shape
    k = g.pick(lambda x: x.shape == shape)
    assert k is not None
    a = g.items[k]
    j = g.pick(lambda x: x.shape == shape and x.dtype is a.dtype)
    assert j is not None
    b = g.items[j]
    g.add(
        "select",
        Item(shape, a.dtype, a.exact and b.exact, max(a.bound, b.bound)),
        lambda v: call("select", v[c], v[k], v[j]),
    )
    return True


def cast(g: Generator) -> bool:
    k = g.pick(lambda x: x.exact or is_float(x))
    if k is None:
        return False
    a = g.items[k]
    target = g.one_of(DTYPES)
    to_float = target.kind in (Kind.FLOAT, Kind.COMPLEX)
    if (not a.exact and not to_float) or (
        a.dtype.kind is Kind.COMPLEX and target.kind is not Kind.COMPLEX
    ):
        return False
    if not a.exact and target.bits > a.dtype.bits:
        return False  # the wider dtype would be held to a tolerance that its value never had
    if target.kind is Kind.UINT and a.dtype.kind is not Kind.UINT and a.dtype.kind is not Kind.BOOL:
        return False
    g.add(
        f"cast {target}",
        Item(a.shape, target, a.exact, a.bound),
        lambda v: elementwise.cast(v[k], target),
    )
    return True


def transpose(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 2)
    if k is None:
        return False
    a = g.items[k]
    perm = tuple(int(p) for p in g.rng.permutation(len(a.shape)))
    shape = tuple(a.shape[p] for p in perm)
    g.add(
        "transpose",
        Item(shape, a.dtype, a.exact, a.bound),
        lambda v: rearrange.transpose(v[k], perm),
    )
    return True


def reshape(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1)
    if k is None:
        return False
    a = g.items[k]
    cut = int(g.rng.integers(0, len(a.shape)))

    def shape_of(shape: Sequence[Any]) -> tuple[Any, ...]:
        tail: Any = 1
        for d in shape[cut:]:
            tail = tail * d
        return (*shape[:cut], tail, 1)

    g.add(
        "reshape",
        Item(shape_of(a.shape), a.dtype, a.exact, a.bound),
        lambda v: rearrange.reshape(v[k], shape_of(v[k].shape)),
    )
    return True


def broadcast(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) <= 2 and np.prod(x.shape) < 200)
    if k is None:
        return False
    a = g.items[k]
    size = g.one_of((1, 2, 3, 5))
    lead = bool(g.rng.integers(2))
    rank = len(a.shape)

    def shape_of(shape: Sequence[Any]) -> tuple[Any, ...]:
        return (size, *shape) if lead else (*shape, size)

    dims = tuple(range(1, rank + 1)) if lead else tuple(range(rank))
    g.add(
        "broadcast",
        Item(shape_of(a.shape), a.dtype, a.exact, a.bound),
        lambda v: rearrange.broadcast(v[k], shape_of(v[k].shape), dims),
    )
    return True


def slice_step(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1)
    if k is None or g.symbolic:
        return False
    a = g.items[k]
    start, limit, stride = [], [], []
    for size in a.shape:
        lo = int(g.rng.integers(0, size + 1))
        start.append(lo)
        limit.append(int(g.rng.integers(lo, size + 1)))
        stride.append(int(g.rng.integers(1, 4)))
    shape = tuple(max(0, -(-(b - s) // c)) for s, b, c in zip(start, limit, stride, strict=True))
    g.add(
        "slice",
        Item(shape, a.dtype, a.exact, a.bound),
        lambda v: rearrange.slice_(v[k], start, limit, stride),
    )
    return True


def reverse(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1)
    if k is None:
        return False
    a = g.items[k]
    axes = (int(g.rng.integers(len(a.shape))),)
    g.add(
        "reverse", Item(a.shape, a.dtype, a.exact, a.bound), lambda v: rearrange.reverse(v[k], axes)
    )
    return True


def pad(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1 and np.prod(x.shape) < 400)
    if k is None:
        return False
    a = g.items[k]
    lo = tuple(int(x) for x in g.rng.integers(0, 3, len(a.shape)))
    hi = tuple(int(x) for x in g.rng.integers(0, 3, len(a.shape)))
    shape = tuple(n + p + q for n, p, q in zip(a.shape, lo, hi, strict=True))
    g.add(
        "pad",
        Item(shape, a.dtype, a.exact, a.bound),
        lambda v: rearrange.pad(v[k], full((), 1, a.dtype), lo, hi),
    )
    return True


def concatenate(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1 and np.prod(x.shape) < 400)
    if k is None:
        return False
    a = g.items[k]
    j = g.pick(lambda x: x.shape == a.shape and x.dtype is a.dtype)
    assert j is not None
    b = g.items[j]
    axis = int(g.rng.integers(len(a.shape)))
    shape = tuple(2 * n if d == axis else n for d, n in enumerate(a.shape))
    item = Item(shape, a.dtype, a.exact and b.exact, max(a.bound, b.bound))
    g.add("concatenate", item, lambda v: rearrange.concatenate([v[k], v[j]], axis))
    return True


def reduce_step(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1 and x.bound < 1e4)
    if k is None:
        return False
    a = g.items[k]
    count = int(g.rng.integers(1, len(a.shape) + 1))
    axes = tuple(sorted(int(x) for x in g.rng.choice(len(a.shape), count, replace=False)))
    shape = tuple(n for d, n in enumerate(a.shape) if d not in axes)
    empty = any(a.shape[d] == 0 for d in axes)
    if a.dtype is dt.bool_:
        fn, name = (red.any_, "any") if g.rng.integers(2) else (red.all_, "all")
    elif a.dtype.kind is Kind.COMPLEX or empty or g.rng.integers(2):
        fn, name = red.sum_, "sum"
    else:
        fn, name = (red.max_, "max") if g.rng.integers(2) else (red.min_, "min")
    whole = a.dtype.kind in (Kind.INT, Kind.UINT, Kind.BOOL)
    exact = a.exact and (whole or name != "sum")
    bound = a.bound * (np.prod([a.shape[d] for d in axes]) if name == "sum" else 1)
    g.add(
        name,
        Item(shape, a.dtype, exact, 6.0 if whole else float(max(bound, 1))),
        lambda v: fn(v[k], axes),
    )
    return True


def arg_reduce(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1 and x.exact and is_number(x) and 0 not in x.shape)
    if k is None:
        return False
    a = g.items[k]
    axis = int(g.rng.integers(len(a.shape)))
    shape = tuple(n for d, n in enumerate(a.shape) if d != axis)
    fn = red.argmax if g.rng.integers(2) else red.argmin
    g.add("argreduce", Item(shape, dt.int64, True, 100.0), lambda v: fn(v[k], axis))
    return True


def dot(g: Generator) -> bool:
    k = g.pick(
        lambda x: (
            len(x.shape) == 2
            and x.bound < 100
            and x.dtype is not dt.bool_
            and np.prod(x.shape) < 400
        )
    )
    if k is None:
        return False
    a = g.items[k]
    j = g.pick(
        lambda x: (
            len(x.shape) == 2 and x.dtype is a.dtype and x.bound < 100 and a.shape[1] in x.shape
        )
    )
    if j is None:
        return False
    b = g.items[j]
    side = b.shape.index(a.shape[1])
    length = a.shape[1]
    shape = (a.shape[0], b.shape[1 - side])
    whole = a.dtype.kind in (Kind.INT, Kind.UINT)
    item = Item(
        shape,
        a.dtype,
        a.exact and b.exact and whole,
        6.0 if whole else a.bound * b.bound * max(length, 1),
    )
    g.add("dot", item, lambda v: contract.dot_general(v[k], v[j], ((1,), (side,)), ((), ())))
    return True


def narrow_dot(g: Generator) -> bool:
    """A product of narrow integers, or of what is the same along its depth, in wide ones."""
    narrow = (dt.int8, dt.uint8, dt.int16)
    k = g.pick(lambda x: x.dtype in narrow and 1 <= len(x.shape) <= 2)
    j = g.pick(lambda x: x.dtype in narrow and 1 <= len(x.shape) <= 2)
    if k is None or j is None:
        return False
    a, b = g.items[k].shape, g.items[j].shape
    depth = a[-1] if len(a) == 2 else b[-1] if len(b) == 2 else g.size()
    if any(len(shape) == 2 and shape[1] != depth for shape in (a, b)):
        return False
    if max(a[0], b[0]) * depth > 400:
        return False

    def step(v: list[Any]) -> Any:
        sides = [elementwise.cast(v[at], dt.int32) for at in (k, j)]
        deep = next((x.shape[1] for x in sides if len(x.shape) == 2), depth)
        wide = [
            x if len(x.shape) == 2 else rearrange.broadcast(x, (x.shape[0], deep), (0,))
            for x in sides
        ]
        return contract.dot_general(*wide, ((1,), (1,)))

    g.add("narrow dot", Item((a[0], b[0]), dt.int32, True, 6.0), step)
    return True


def cumulative_step(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1 and x.bound < 1e3 and is_number(x))
    if k is None:
        return False
    a = g.items[k]
    axis, reverse_ = int(g.rng.integers(len(a.shape))), bool(g.rng.integers(2))
    fn, name = (cumulative.cumsum, "cumsum") if g.rng.integers(2) else (cumulative.cummax, "cummax")
    whole = a.dtype.kind in (Kind.INT, Kind.UINT)
    exact = a.exact and (whole or name == "cummax")
    bound = a.bound * (max(a.shape[axis], 1) if name == "cumsum" else 1)
    g.add(
        name,
        Item(a.shape, a.dtype, exact, 6.0 if whole else bound),
        lambda v: fn(v[k], axis, reverse_),
    )
    return True


def sort_step(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1 and x.exact and is_number(x) and np.prod(x.shape) < 300)
    if k is None:
        return False
    a = g.items[k]
    axis, down = int(g.rng.integers(len(a.shape))), bool(g.rng.integers(2))

    def step(v: list[Any]) -> Any:
        index = iota(v[k].shape, axis, dt.int32)
        return as_tuple(sorting.sort((v[k], index), axis, num_keys=1, descending=down))[which]

    which = int(g.rng.integers(2))
    g.add("sort", Item(a.shape, (a.dtype, dt.int32)[which], True, a.bound), step)
    return True


def gather_step(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1 and 0 not in x.shape)
    if k is None:
        return False
    a = g.items[k]
    j = g.pick(
        lambda x: (
            x.exact
            and x.dtype in (dt.int32, dt.int64)
            and np.prod(x.shape) * np.prod(a.shape) < 1000
        )
    )
    if j is None:
        return False
    i = g.items[j]
    axis = int(g.rng.integers(len(a.shape)))
    shape = i.shape + tuple(n for d, n in enumerate(a.shape) if d != axis)
    mode = g.one_of((gather.IndexMode.CLIP, gather.IndexMode.FILL))
    if mode is gather.IndexMode.FILL and a.dtype.kind in (Kind.FLOAT, Kind.COMPLEX):
        mode = gather.IndexMode.CLIP  # NaN would spread through everything after it
    g.add(
        "gather",
        Item(shape, a.dtype, a.exact, a.bound),
        lambda v: gather.gather(v[k], (v[j],), (axis,), mode),
    )
    return True


def scatter_step(g: Generator) -> bool:
    j = g.pick(lambda x: x.exact and x.dtype in (dt.int32, dt.int64) and len(x.shape) == 1)
    if j is None:
        return False
    i = g.items[j]
    u = g.pick(
        lambda x: len(x.shape) >= 1 and x.shape[0] == i.shape[0] and is_number(x) and x.bound < 1e3
    )
    if u is None:
        return False
    b = g.items[u]
    size = g.one_of((1, 4, 9))
    shape = (size, *b.shape[1:])
    whole = b.dtype.kind in (Kind.INT, Kind.UINT)
    item = Item(
        shape, b.dtype, b.exact and whole, 6.0 if whole else b.bound * max(i.shape[0], 1) + 1
    )

    def step(v: list[Any]) -> Any:
        x = full((size, *v[u].shape[1:]), 1, b.dtype)
        return gather.scatter(x, v[u], (v[j],), (0,), gather.Combine.ADD)

    g.add("scatter", item, step)
    return True


def dynamic_slice_step(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1 and 0 not in x.shape)
    j = g.pick(lambda x: x.exact and x.dtype in (dt.int32, dt.int64) and x.shape == ())
    if k is None or j is None or g.symbolic:
        return False
    a = g.items[k]
    sizes = tuple(int(g.rng.integers(1, n + 1)) for n in a.shape)
    g.add(
        "dynamic_slice",
        Item(sizes, a.dtype, a.exact, a.bound),
        lambda v: dynamic_slice.dynamic_slice(v[k], [v[j]] * len(sizes), sizes),
    )
    return True


def iota_step(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1)
    if k is None:
        return False
    a = g.items[k]
    axis, dtype = int(g.rng.integers(len(a.shape))), g.one_of((dt.int32, dt.float32, dt.int64))
    g.add("iota", Item(a.shape, dtype, True, 100.0), lambda v: iota(v[k].shape, axis, dtype))
    return True


def random_step(g: Generator) -> bool:
    k = g.pick(lambda x: len(x.shape) >= 1)
    if k is None:
        return False
    a = g.items[k]

    def step(v: list[Any]) -> Any:
        key = rearrange.broadcast(full((), 7, dt.uint32), (2,), ())
        return random_bits(key, v[k].shape)

    g.add("random_bits", Item(a.shape, dt.uint32, True, 6.0), step)
    return True


def cond_step(g: Generator) -> bool:
    c = g.pick(lambda x: x.dtype is dt.bool_ and x.shape == ())
    k = g.pick(lambda x: is_float(x) and x.bound < 100)
    if c is None or k is None:
        return False
    a = g.items[k]

    def step(v: list[Any]) -> Any:
        then, _ = trace_function(lambda x: [call("mul", x, x)], [v[k].type], "cond")
        other, _ = trace_function(lambda x: [call("neg", x)], [v[k].type], "cond")
        return bind(Cond, v[c], (v[k],), then=then.body, otherwise=other.body)

    g.add("cond", Item(a.shape, a.dtype, False, a.bound**2 + 1), step)
    return True


def repeated(count: int, init: list[Any], types: list[Any], turn: Callable[..., Any]) -> Any:
    """What a loop of so many steps has made of some arrays."""
    zero = full((), 0, dt.int32)
    types = [zero.type, *types]
    cond, _ = trace_function(
        lambda i, *_: [call("lt", i, full((), count, dt.int32))], types, "while"
    )
    body, _ = trace_function(
        lambda i, *xs: [call("add", i, full((), 1, dt.int32)), *turn(*xs)], types, "while"
    )
    return as_tuple(bind(While, (), (zero, *init), cond=cond.body, body=body.body))[1:]


def while_step(g: Generator) -> bool:
    k = g.pick(lambda x: is_float(x) and x.bound < 100)
    if k is None:
        return False
    a = g.items[k]
    count = int(g.rng.integers(0, 4))

    def step(v: list[Any]) -> Any:
        return repeated(count, [v[k]], [v[k].type], lambda x: [call("tanh", x)])[0]

    g.add("while", Item(a.shape, a.dtype, False, a.bound), step)
    return True


def loop_step(g: Generator) -> bool:
    """A loop that carries two arrays, which change places, stay or go on apart, and of which one or
    both are used."""
    k = g.pick(lambda x: is_float(x) and x.bound < 100)
    if k is None:
        return False
    a = g.items[k]
    m = g.pick(lambda x: (x.shape, x.dtype) == (a.shape, a.dtype) and x.bound < 100)
    count, kind, used = (int(g.rng.integers(0, n)) for n in (4, 4, 3))

    def step(v: list[Any]) -> Any:
        def turn(x: Any, y: Any) -> list[Any]:
            new = call("tanh", call("add", x, y))
            return ([y, new], [new, y], [new, call("sin", y)], [call("cos", y), x])[kind]

        init = [v[k], v[k if m is None else m]]
        x, y = repeated(count, init, [v[k].type.strong()] * 2, turn)
        return (x, y, call("sub", x, y))[used]

    g.add("while", Item(a.shape, a.dtype, False, 200.0), step)
    return True


def scan_step(g: Generator) -> bool:
    k = g.pick(lambda x: is_float(x) and x.bound < 100 and len(x.shape) >= 1)
    if k is None:
        return False
    a = g.items[k]
    which, reverse, unroll = (int(g.rng.integers(0, n)) for n in (2, 2, 3))

    def step(v: list[Any]) -> Any:
        rows = v[k].type.strong()
        row = rows.with_shape(rows.shape[1:])

        def turn(i: Any, c: Any, x: Any) -> list[Any]:
            c = call("tanh", call("add", c, x))
            return [c, call("mul", c, x)]

        body, _ = trace_function(turn, [INDEX, row, row], "scan")
        options = {"length": rows.shape[0], "reverse": bool(reverse), "unroll": unroll + 1}
        init = full(row.shape, 0.5, row.dtype)
        return as_tuple(bind(Scan, (), (init,), (v[k],), **options, body=body.body))[which]

    shape = a.shape if which else a.shape[1:]
    g.add("scan", Item(shape, a.dtype, False, max(a.bound, 1.0)), step)
    return True


RULES: tuple[Rule, ...] = (
    unary, unary, unary, binary, binary, binary, compare, select, cast, transpose, reshape,
    broadcast, slice_step, reverse,
    pad, concatenate, reduce_step, reduce_step, arg_reduce, dot, dot, narrow_dot, cumulative_step,
    sort_step,
    gather_step, scatter_step,
    dynamic_slice_step, iota_step, random_step, cond_step, while_step,
    scan_step, loop_step,
)  # fmt: skip


def random_program(seed: int, symbolic: bool = False) -> Program:
    """The program of a seed.

    Symbolic programs are drawn again where two sizes are equal only by chance (`n0` and `2*n0`, or
    `n1*n3` and `n3`): no type checker could accept those.
    """
    rng = np.random.default_rng(seed)
    while True:
        program = Generator(rng, symbolic).generate(int(rng.integers(3, 9)))
        if not symbolic or _is_typed(program):
            return program


def _is_typed(program: Program) -> bool:
    try:
        program.graph(symbolic=True)
    except ShapeError:
        return False
    return True


Check = Callable[[Func, list[np.ndarray], dict[str, int], int], int | None]
"""Takes a Graph, its inputs, values of its dims and the seed; may count something."""


def run_programs(
    check: Check,
    seeds: Iterable[int],
    symbolic: bool = False,
    derive: Callable[[Program], Func | None] | None = None,
) -> int:
    """Checks the programs of some seeds, with symbolic sizes where asked, or what is derived of
    them, if it is anything; an error says which one it is of. Returns how much the checks counted.
    """
    total = 0
    for seed in seeds:
        program = random_program(seed, symbolic)
        try:
            graph = derive(program) if derive else program.graph(symbolic)
            if graph is None:
                continue
            inputs = program.arrays(np.random.default_rng(seed))
            sizes = {f"n{size}": size for x in program.inputs for size in x.shape}
            total += check(graph, inputs, {name: sizes[name] for name in graph.dims}, seed) or 0
        except Exception as err:
            err.add_note(f"seed {seed}, symbolic={symbolic}: {', '.join(program.names)}")
            raise
    return total


__all__ = ["Program", "random_array", "random_program", "run_programs"]
