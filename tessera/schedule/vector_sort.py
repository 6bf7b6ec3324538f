"""Sorts on a CPU with wide vectors, of elements that fit a word each.

    schedule.sort(%x -> %y)
    ==>
    schedule.nest: %words[.., i] = word of %x[i] and, where it is needed, i
    schedule.sort_words(%words)
    schedule.nest: %y[i] = what %words[.., i] says
    schedule.order_zeros(%x -> %y)       # where a word is a float alone, for -0 and 0 are equal

All nests are tiled and shared as others are. Of many short rows, those with zeros of the sign that
comes first are marked before. Of rows so long that threads share one, parts have
numbers. What needs more words is sorted by digits (`digit_sort.py`), or stays a `schedule.sort`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from functools import partial

from tessera.dtypes import int64
from tessera.graph.ops.largest import groups_of, is_selected
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, Facts, maximum, minimum, prod, sym
from tessera.ir.scalar import SCALARS
from tessera.ir.walk import walk
from tessera.schedule import ops, sort_ops
from tessera.schedule.copying import Names
from tessera.schedule.digit_sort import digits_of, sort_by_digits
from tessera.schedule.machines import Cpu
from tessera.schedule.network_sort import network_sort
from tessera.schedule.rebuild import kernels, with_bodies
from tessera.schedule.sort_limits import limit_sorts
from tessera.schedule.split import rewrite
from tessera.schedule.split_sort import Asked, NestCode, collect
from tessera.schedule.types import Axis, BufType, buffer_type
from tessera.schedule.words import UNSIGNED, Coder, Layout, has_places, key_bits, one_word

MARKED, LEAST_ROWS = 64, 256
"""Elements of rows, at most, and rows, at least, that are searched for zeros of the sign that comes
first before they are sorted, all at once. Each row by itself, by halving, takes one thread 19 ns:
102400 rows of 8 took two threads of a Zen 4 2.5 ms, and take 0.6."""

LEAST = 4
"""Elements of a row that vectors of 256 bits sort sooner than a merge of words one by one does."""


def split_sorts(func: Func, machine: Cpu) -> Func:
    """The program with its sorts in such steps, where the machine has vectors for them; those of
    few elements a row are in any case."""
    if not any(isinstance(op, ops.Sort) for op in walk(func.body)):
        return func
    if not machine.compresses:
        return rewrite(func, None, (), sorts=partial(vector_sort, 0))
    sorts = partial(vector_sort, machine.vector_bits)
    return rewrite(limit_sorts(func, Facts()), None, (), sorts=sorts)


def in_single_vectors(chosen: Func, machine: Cpu) -> Func:
    """The program with tiles, of which nests beside a sort have one vector, or squares of half of
    one where they turn what they read or write. What is done for an element is little there, and
    to compile rows of vectors takes twice as long. No store goes past the caches: words are read
    at once.

    Args:
        chosen: the program with tiles.
        machine: the CPU.
    """

    def sorts(kernel: ops.Kernel) -> bool:
        return any(isinstance(op, sort_ops.SortWords) for op in kernel.body.ops)

    def narrow(op: Op) -> Op:
        if not isinstance(op, ops.Nest):
            return op
        is_turned = sum([size > 1 for size in op.tile]) > 1
        most = machine.vector_bits // (64 if is_turned else 32)
        code = [
            one.rebuild(streaming=0) if isinstance(one, ops.Store) else one
            for one in op.body.ops
        ]
        return op.rebuild(
            regions=[Block((), code, ())], tile=tuple([min(size, most) for size in op.tile])
        )

    def body(kernel: ops.Kernel) -> Block:
        if not sorts(kernel):
            return kernel.body
        return Block(kernel.body.args, list(map(narrow, kernel.body.ops)), ())

    return with_bodies(chosen, body) if any(map(sorts, kernels(chosen.body))) else chosen


def vector_sort(
    register: int,
    kernel: ops.Kernel,
    operands: Sequence[Value],
    used: Container[Value],
    names: Names,
) -> tuple[ops.Kernel, list[int]] | None:
    """The kernel of a sort.

    Args:
        register: bits of a vector register; 0 where vectors are not sorted.
        kernel: the kernel.
        operands: its inputs in the new program.
        used: values that something reads.
        names: for new axes.

    Returns:
        The kernel, and for each of its results the number of that of the old one; None if it is
        no sort, has very short rows, or needs more words.
    """
    asked = Asked.of(kernel, operands, used)
    if asked is None:
        return None
    op = asked.op
    network = network_sort(asked, names)
    if network is not None or not register:
        return (network, asked.kept) if network else None
    keys = [buffer_type(v).dtype for v in op.inputs[: op.num_keys]]
    has_others = any(not 0 <= k < op.num_keys for k, _ in op.moved())
    type = buffer_type(op.inputs[0])
    count = type.shape[op.axis]
    if register < sort_ops.REGISTER and isinstance(count, int) and count < LEAST:
        return None
    layout = one_word(keys, int(has_others), count)
    others = tuple([dim for k, dim in enumerate(type.shape) if k != op.axis])
    until = buffer_type(op.outputs[0]).shape[op.axis]
    if has_others and has_places(count) and _selects(op, until):
        layout = one_word(keys, 1, count, wide=True) or Layout.places(keys)
        return _selected(register, asked, layout, others, names), asked.kept
    if layout is None and not (digits_of(keys) and has_places(count)):
        return None
    length = _numbers(others, count)
    numbers = [Value(BufType((*others, length), int64))] if length != 0 else []
    if layout is None:
        return sort_by_digits(register, asked, numbers, names), asked.kept
    room = sort_ops.room_of_row(count, layout.dtypes[0], register)
    words = Value(BufType((*others, room), layout.dtypes[0]))
    looked, marks = _marks(op, layout, others, names)
    code: list[Op] = [
        *looked,
        _pack(op, words, layout, names),
        sort_ops.SortWords(words, numbers, count, until, register=register, loc=op.loc),
        collect(op, [words], layout, names),
    ]
    if layout.signed_zeros:
        code += [
            sort_ops.OrderZeros(op.inputs[0], target, marks, op.axis, op.descending, loc=op.loc)
            for target in op.outputs
        ]
    what = f"words of {layout.dtypes[0].bits} bits are sorted in vectors"
    return asked.kernel(code, [words, *numbers, *marks], what), asked.kept


def _marks(
    op: ops.Sort, layout: Layout, others: tuple[Dim, ...], names: Names
) -> tuple[list[ops.Nest], list[Value]]:
    """The nests that look for zeros of the sign that comes first, and what they write: the least of
    numbers that only these have as 0, of all rows and of each; none where rows are long or few."""
    type = buffer_type(op.inputs[0])
    count, rows = type.shape[op.axis], math.prod([n if isinstance(n, int) else 0 for n in others])
    is_short = isinstance(count, int) and 0 < count <= MARKED
    if not layout.signed_zeros or not is_short or rows < LEAST_ROWS:
        return [], []
    dtype = UNSIGNED[key_bits(type.dtype)]
    whole, each = Value(BufType((), dtype)), Value(BufType(others, dtype))
    axes = [Axis(names.fresh("i"), dim) for dim in type.shape]
    index: list[Dim] = [0 if axis.extent == 1 else sym(axis.name) for axis in axes]
    code = NestCode()
    found = code.add(ops.Load(op.inputs[0], (), tuple(index), loc=op.loc))
    found = Coder(code, layout, op.descending).first_zero(found)
    nests = [_least(op, found, code.ops, axes, [op.axis], each)]
    axes = [axis for k, axis in enumerate(axes) if k != op.axis]
    index = [e for k, e in enumerate(index) if k != op.axis]
    load = ops.Load(each, (), tuple(index), loc=op.loc)
    nests.append(_least(op, load.result, [load], axes, list(range(len(axes))), whole))
    return nests, [whole, each]


def _least(
    op: ops.Sort, value: Value, code: list[Op], axes: Sequence[Axis], along: list[int], to: Value
) -> ops.Nest:
    """The nest that writes the least of values along some axes."""
    inner = tuple([axes[k] for k in along if axes[k].extent != 1])
    outer = [axis for k, axis in enumerate(axes) if k not in along]
    if inner:
        least = ops.Reduce(inner, SCALARS["min"], Block([], code, (value,)), loc=op.loc)
        value, code = least.result, [least]
    index = tuple([0 if axis.extent == 1 else sym(axis.name) for axis in outer])
    code.append(ops.Store(to, value, (), index, loc=op.loc))
    outer = [axis for axis in outer if axis.extent != 1]
    return ops.Nest(tuple(outer), body=Block([], code, ()), loc=op.loc)


def _selects(op: ops.Sort, until: Dim) -> bool:
    """Whether the first places of rows are found without sorting the rest."""
    type = buffer_type(op.inputs[0])
    is_row = op.axis == len(type.shape) - 1 and type.strides is None
    if op.num_keys != 1 or not is_row or not isinstance(until, int):
        return False
    return is_selected(type.dtype, type.shape[op.axis], until)


def _selected(
    register: int, asked: Asked, layout: Layout, others: tuple[Dim, ...], names: Names
) -> ops.Kernel:
    """The kernel of such a sort."""
    op = asked.op
    count, until = [buffer_type(v).shape[op.axis] for v in (op.inputs[0], op.outputs[0])]
    assert isinstance(until, int)
    room = sort_ops.room_of(groups_of(until))
    words = Value(BufType((*others, room), layout.dtypes[0]))
    key = buffer_type(op.inputs[0]).dtype
    columns = sort_ops.columns_of(count, key, register)
    tops = Value(BufType((*others, columns), sort_ops.rank_of(key)))
    falls, loc = op.descending, op.loc
    select = sort_ops.SelectWords(
        op.inputs[0], words, tops, until, descending=falls, register=register, loc=loc
    )
    code: list[Op] = [select, collect(op, [words], layout, names)]
    what = f"the first {until} of each row are selected: those that may be are sorted"
    return asked.kernel(code, [words, tops], what)


def _numbers(others: Sequence[Dim], count: Dim) -> Dim:
    """How many numbers threads that share a row have; 0 where they cannot."""
    rows = prod(others)
    if isinstance(count, int) and count < sort_ops.LONG:
        return 0
    # Memory of many rows would be many numbers that nobody needs.
    return 2 * sort_ops.PIECES * sort_ops.PIECE * minimum(maximum(sort_ops.FEW - rows, 0), 1)


def _pack(op: ops.Sort, words: Value, layout: Layout, names: Names) -> ops.Nest:
    """The nest that makes words of elements."""
    axes = [Axis(names.fresh("i"), dim) for dim in buffer_type(op.inputs[0]).shape]
    index: list[Dim] = [0 if axis.extent == 1 else sym(axis.name) for axis in axes]
    code = NestCode()
    keys = [code.add(ops.Load(v, (), tuple(index), loc=op.loc)) for v in op.inputs[: op.num_keys]]
    place = code.add(ops.Index((), index[op.axis]))
    (word,) = Coder(code, layout, op.descending).pack(keys, place)
    at = (*[e for k, e in enumerate(index) if k != op.axis], index[op.axis])
    code.ops.append(ops.Store(words, word, (), at, loc=op.loc))
    axes = [axis for axis in axes if axis.extent != 1]
    return ops.Nest(tuple(axes), body=Block([], code.ops, ()), loc=op.loc)
