"""Sorts on a GPU: rows that a block of threads can hold are sorted by one block; of longer ones
runs are, which are merged in pairs, from one buffer of words to another.

An operand that holds the places of the elements themselves, as `argsort` has one, is not read: a
sort on a GPU knows these places anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from tessera.dtypes import DType, int64
from tessera.errors import CompileError
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, ceildiv, prod, sym
from tessera.ir.scalar import SCALARS
from tessera.ir.types import ScalarType
from tessera.schedule import ops, sort_ops
from tessera.schedule.copying import Names
from tessera.schedule.sizes import power_above, power_below, size_of
from tessera.schedule.types import Axis, BufType, buffer_type
from tessera.schedule.words import PLACE_BITS, Coder, Layout

MAX_ROW = 8192
"""Elements of the longest row that a block sorts."""

RUN = 8192
"""Elements of the runs of a longer row that a block sorts."""

MAX_LENGTH = 1 << PLACE_BITS
"""Elements of the longest row: its places are parts of words."""

TILE = 4096
"""Elements that a block merges."""

MAX_FIXED = 2
"""Passes that have kernels of their own."""

SPLIT_WARPS = 4
"""Warps of a block that looks for where tiles begin."""

BLOCK_ELEMENTS = 2048
"""Elements that a block sorts if it can have several rows."""

THREAD_ELEMENTS = 16
"""Elements of a thread."""

LINE = 32
"""Rows of a block where memory runs across them."""

MAX_WARPS = 16
"""Warps of the largest block."""


SortRule = Callable[
    [ops.Kernel, Sequence[Value], Container[Value], Names], "tuple[ops.Kernel, list[int]] | None"
]
"""What the kernel of a sort becomes, given its operands, what is read, and names."""


def split_sort(
    kernel: ops.Kernel,
    operands: Sequence[Value],
    used: Container[Value],
    names: Names,
    multiprocessors: int,
) -> tuple[ops.Kernel, list[int]] | None:
    """The kernel of a sort, for a GPU.

    Args:
        kernel: the kernel.
        operands: its inputs in the new program.
        used: values that something reads.
        names: for new axes.
        multiprocessors: how many the machine has.

    Returns:
        The kernel, and for each of its results the number of that of the old one; None if it is
        no sort.
    """
    asked = Asked.of(kernel, operands, used)
    if asked is None:
        return None
    extent = buffer_type(asked.op.inputs[0]).shape[asked.op.axis]
    rows, warps = block_of(asked.op, multiprocessors)
    new = asked.op.rebuild(rows=rows, warps=warps)
    assert isinstance(new, ops.Sort)
    code: list[Op] = [new]
    temps: list[Value] = []
    what = f"{rows} rows" if rows > 1 else "a row"
    what = f"{what} of {extent} elements in a block of {warps} warps"
    if not isinstance(extent, int) or extent > MAX_ROW:
        limit = buffer_type(new.outputs[0]).shape[new.axis]
        if limit != extent:
            assert isinstance(limit, int)
            code, temps = best_of_runs(new, limit, names)
            what = f"the first {limit} elements of runs of {RUN}, and of what these leave"
        else:
            code, temps = merge_sort(new, names)
            what = f"runs of {RUN} elements are sorted, and merged in pairs"
    return asked.kernel(code, temps, what), asked.kept


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a sort.

    Attributes:
        old: its kernel.
        op: the sort of a new kernel, which has what is read and what is needed for that.
        given: the inputs of that kernel.
        kept: for each of its results the number of that of the old one.
    """

    old: ops.Kernel
    op: ops.Sort
    given: dict[Value, Value]
    kept: list[int]

    @classmethod
    def of(
        cls, kernel: ops.Kernel, operands: Sequence[Value], used: Container[Value]
    ) -> Asked | None:
        """Args are those of `split_sort`; None if it is no sort."""
        if len(kernel.body.ops) != 1:
            return None
        (op,) = kernel.body.ops
        if not isinstance(op, ops.Sort) or op.warps:
            return None
        env = dict(zip(kernel.body.args, operands, strict=False))
        places = [
            k >= op.num_keys and holds_places(env[v], op.axis) for k, v in enumerate(op.inputs)
        ]
        kept = [k for k, v in enumerate(kernel.results[: len(op.outputs)]) if v in used]
        if not kept:
            return None
        needed = [
            k for k in range(len(op.inputs)) if k < op.num_keys or (k in kept and not places[k])
        ]
        sources = tuple([-1 if places[k] else needed.index(k) for k in kept])
        inner = {op.inputs[k]: Value(op.inputs[k].type) for k in needed}
        new = ops.Sort(
            [inner[op.inputs[k]] for k in needed], [Value(kernel.types[k]) for k in kept], [],
            op.axis, op.num_keys, op.descending, sources, loc=op.loc,
        )  # fmt: skip
        return cls(kernel, new, {arg: env[v] for v, arg in inner.items()}, kept)

    def kernel(self, code: Sequence[Op], temps: Sequence[Value], what: str) -> ops.Kernel:
        """The new kernel: what it does, with which temporary buffers, and a reason."""
        types = [buffer_type(v) for v in (*self.op.outputs, *temps)]
        return ops.Kernel(
            list(self.given.values()),
            tuple(types),
            temps=len(temps),
            label=self.old.label,
            reason=f"{self.old.reason}; {what}",
            body=Block([*self.given, *self.op.outputs, *temps], code, ()),
            loc=self.old.loc,
        )


def block_of(op: ops.Sort, multiprocessors: int) -> tuple[int, int]:
    """Rows and warps of a block."""
    type = buffer_type(op.inputs[0])
    size = min(power_above(size_of(type.shape[op.axis])), MAX_ROW)
    others = [k for k in range(len(type.shape)) if k != op.axis]
    rows = 1
    if others:
        most = power_above(size_of(type.shape[others[-1]]))
        is_along = type.element_strides()[op.axis] == 1
        rows = max(BLOCK_ELEMENTS // size, 1)
        total = 1
        for k in others:
            total *= size_of(type.shape[k])
        rows = min(rows, power_below(total / (2 * multiprocessors)))
        if not is_along:
            rows = max(rows, min(LINE, 2 * MAX_ROW // size))
        rows = min(rows, most)
    warps = max(1, min(rows * size // (32 * THREAD_ELEMENTS), MAX_WARPS))
    return rows, warps


def _layout(op: ops.Sort) -> Layout:
    """The words of a long row."""
    count = buffer_type(op.inputs[0]).shape[op.axis]
    if isinstance(count, int) and count > MAX_LENGTH:
        raise CompileError(
            f"sort: rows of {count} elements",
            loc=op.loc,
            rule=f"a GPU sorts rows of at most {MAX_LENGTH} elements",
        )
    return Layout.of([buffer_type(v).dtype for v in op.inputs[: op.num_keys]], PLACE_BITS)


def merge_sort(op: ops.Sort, names: Names) -> tuple[list[Op], list[Value]]:
    """The ops of a sort of long rows, and their temporary buffers."""
    type = buffer_type(op.inputs[0])
    count = type.shape[op.axis]
    keys = op.inputs[: op.num_keys]
    layout = _layout(op)
    shape = tuple([dim for k, dim in enumerate(type.shape) if k != op.axis])
    here, there = [
        [Value(BufType((*shape, count), dtype)) for dtype in layout.dtypes] for _ in range(2)
    ]
    splits = Value(BufType((*shape, ceildiv(count, TILE)), int64))
    temps = [*here, *there, splits]
    warps = max(1, RUN // (32 * THREAD_ELEMENTS))
    code: list[Op] = [sort_ops.SortRuns(keys, here, op.axis, op.descending, RUN, warps, loc=op.loc)]
    is_known = isinstance(count, int)
    merge_warps = max(1, TILE // (32 * THREAD_ELEMENTS))
    sizes = [RUN]
    # A row of unknown length is merged twice at a time or not at all, so that the result is where
    # the runs were.
    while 2 * sizes[-1] < count if is_known else (2 * sizes[-1] < MAX_LENGTH or len(sizes) % 2):
        sizes.append(2 * sizes[-1])
    # Many passes share their kernels, which read the places of a run from memory then.
    is_fixed = is_known and len(sizes) <= MAX_FIXED
    runs = [] if is_fixed else [Value(BufType((), int64)) for _ in sizes]
    if runs:
        code.append(_constants(runs, sizes))
        temps += runs
    for k, run in enumerate(sizes):
        size = runs[k : k + 1]
        known = run if is_fixed else 0
        least = 0 if is_known else run >> k % 2
        code += [
            sort_ops.SplitRuns(here, splits, size, known, TILE, least, SPLIT_WARPS, loc=op.loc),
            sort_ops.MergeRuns(
                here, splits, there, size, known, TILE, least, merge_warps, loc=op.loc
            ),
        ]
        here, there = there, here
    code.append(collect(op, here, layout, names))
    return code, temps


def best_of_runs(op: ops.Sort, limit: int, names: Names) -> tuple[list[Op], list[Value]]:
    """The ops that find the first places of sorted long rows, and their temporary buffers."""
    type = buffer_type(op.inputs[0])
    count = type.shape[op.axis]
    assert isinstance(count, int)
    keep = power_above(limit)
    keys = op.inputs[: op.num_keys]
    layout = _layout(op)
    shape = tuple([dim for k, dim in enumerate(type.shape) if k != op.axis])
    code: list[Op] = []
    temps: list[Value] = []
    axis = op.axis
    while not code or count > keep:
        run = min(RUN, max(power_above(count), 2 * keep))
        count = -(-count // run) * keep
        words = [Value(BufType((*shape, count), dtype)) for dtype in layout.dtypes]
        warps = max(1, run // (32 * THREAD_ELEMENTS))
        code.append(
            sort_ops.SortRuns(
                keys, words, axis, op.descending, run, warps, bool(code), keep, loc=op.loc
            )
        )
        temps += words
        keys, axis = tuple(words), len(shape)
    code.append(collect(op, keys, layout, names))
    return code, temps


def _constants(buffers: Sequence[Value], values: Sequence[int]) -> ops.Nest:
    """A nest that stores numbers."""
    code: list[Op] = []
    for buffer, value in zip(buffers, values, strict=True):
        const = ops.Const(value, int64)
        code += [const, ops.Store(buffer, const.result, (), ())]
    return ops.Nest((), body=Block([], code, ()))


def collect(op: ops.Sort, words: Sequence[Value], layout: Layout, names: Names) -> ops.Nest:
    """The nest that moves elements to where their words are."""
    shape = buffer_type(op.outputs[0]).shape
    axes = [Axis(names.fresh("i"), dim) for dim in shape]
    index: list[Dim] = [0 if axis.extent == 1 else sym(axis.name) for axis in axes]
    code = NestCode()
    at = (*[e for k, e in enumerate(index) if k != op.axis], index[op.axis])
    found = [code.add(ops.Load(word, (), at)) for word in words]
    coder = Coder(code, layout, op.descending)
    place = coder.place(found)
    for k, target in op.moved():
        if k < 0:
            value = code.cast(place, buffer_type(target).dtype)
        elif k < op.num_keys and layout.holds_keys:
            value = coder.key(found, k)
        else:
            inner = tuple([sym("$0") if d == op.axis else e for d, e in enumerate(index)])
            value = code.add(ops.Load(op.inputs[k], (place,), inner, loc=op.loc))
        code.ops.append(ops.Store(target, value, (), tuple(index), loc=op.loc))
    axes = [axis for axis in axes if axis.extent != 1]
    return ops.Nest(tuple(axes), body=Block([], code.ops, ()), loc=op.loc)


class NestCode:
    """Emits the code of words in a nest."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.made: dict[object, Value] = {}

    def add(self, op: Op) -> Value:
        """The result of a new op."""
        self.ops.append(op)
        return op.result

    def const(self, value: bool | int | float, dtype: DType) -> Value:
        """A constant."""
        key = (repr(value), dtype)
        if key not in self.made:
            self.made[key] = self.add(ops.Const(value, dtype))
        return self.made[key]

    def map(self, fn: str, *args: Value) -> Value:
        """A row of the scalar table."""
        return self.add(ops.Map(args, SCALARS[fn]))

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion."""
        return x if x.type == ScalarType(dtype) else self.add(ops.Cast(x, dtype))

    def bitcast(self, x: Value, dtype: DType) -> Value:
        """The same bits as another dtype."""
        return x if x.type == ScalarType(dtype) else self.add(ops.Bitcast(x, dtype))


def holds_places(value: Value, axis: int) -> bool:
    """Whether a buffer is known to hold the place of each element along an axis."""
    kernel = value.op
    if not isinstance(kernel, ops.Kernel) or len(kernel.body.ops) != 1:
        return False
    target = kernel.body.args[len(kernel.inputs) + kernel.results.index(value)]
    (nest,) = kernel.body.ops
    if not isinstance(nest, ops.Nest):
        return False
    stores = [op for op in nest.body.ops if isinstance(op, ops.Store) and op.buf is target]
    if len(stores) != 1 or stores[0].where or stores[0].dyn or stores[0].combine is not None:
        return False
    place = stores[0].index[axis]
    if place == 0:
        return _constant(stores[0].value.op) == 0
    op = stores[0].value.op
    while isinstance(op, ops.Cast) and op.dtype.is_integer:
        op = op.x.op
    # No nest writes an element twice.
    is_whole = prod([axis.extent for axis in nest.axes]) == buffer_type(target).size
    return is_whole and isinstance(op, ops.Index) and not op.dyn and op.expr == place


def _constant(op: Op | None) -> object:
    while isinstance(op, ops.Cast):
        op = op.x.op
    return op.value if isinstance(op, ops.Const) else None
