"""Sums over windows of a product become a product with windows.

The gradient of a convolution for its operand, as the rules of its parts give it, is a product whose
result has the dims of places and those of the window, each slice of which is then moved to its
place, and a sum over the window: what is stored is as many times larger than the result as the
window has elements. Since all of this is linear in the operand that has the places, the same is a
product of the window with the windows of that operand, summed over the window too: a convolution
again.

Holds for any sum of a product whose dims were only moved (transposed, reversed, padded with zeros,
cut, seen through windows) in between, be it a contraction or, as of a depthwise convolution, an
elementwise product of arrays that were spread; nothing else is touched. With a stride there are
zeros between the elements of the operand: then there is a product for each of its phases
(`window_phases`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tessera.dtypes import Kind
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Mul
from tessera.graph.ops.generate import Constant
from tessera.graph.ops.rearrange import Pad, Slice
from tessera.graph.ops.reduce import Sum
from tessera.graph.ops.reshape import Broadcast, Reshape, Reverse, Transpose
from tessera.graph.ops.windows import Windows
from tessera.graph.passes.simplify import CommonSubexpressions
from tessera.graph.passes.window_phases import Phases, has_phases
from tessera.graph.spec import GRAPH
from tessera.ir.core import Block, Func, Op, Value, tensor_type
from tessera.ir.intexpr import Dim
from tessera.ir.passes import Pass
from tessera.ir.walk import with_parts

MOVES = (Transpose, Reverse, Reshape, Pad, Slice, Windows)
"""What may stand between the product and the sum."""

Product = DotGeneral | Mul
"""What is moved."""

Pair = tuple[int | None, int | None]
"""The axes of both operands that a dim is."""


@dataclass(frozen=True)
class WindowProducts(Pass):
    """Applies the rule wherever the parts have no other use."""

    name = "window_products"
    ensures = GRAPH

    def run(self, func: Func) -> Func:
        """One sweep over all ops, those of regions too."""
        body = _swept(func.body)
        # Phases of one sum move the same operands.
        return func if body is func.body else CommonSubexpressions().run(func.with_body(body))


def _swept(block: Block) -> Block:
    """The block with the rule applied; the same one where it does not hold."""
    regions = {op: [_swept(region) for region in op.regions] for op in block.ops if op.regions}
    regions = {op: new for op, new in regions.items() if any(map(operator.is_not, op.regions, new))}
    found: dict[Op, tuple[Sum, Product, list[Op]]] = {}
    if any(isinstance(op, Windows) for op in block.ops):
        uses = Counter(block.outputs)
        for op in block.ops:
            uses.update(op.operands)
        for op in block.ops:
            match = _match(op, uses)
            if match is not None:
                # The last op of a chain stands for it: a slice of the sum comes after the sum.
                found.pop(match[0], None)
                found[op] = match
    return _rewritten(block, found, regions) if found or regions else block


def _rewritten(
    block: Block,
    found: dict[Op, tuple[Sum, Product, list[Op]]],
    regions: dict[Op, list[Block]],
) -> Block:
    env: dict[Value, Value] = {}
    code: list[Op] = []
    for op in block.ops:
        fresh = with_parts(op, [env.get(v, v) for v in op.operands], regions.get(op))
        if op in found:
            total, dot, moves = found[op]
            made = _found(total, dot, moves, op if isinstance(op, Slice) else None, env)
            if made is not None:
                code += made[1]
                env[op.result] = made[0]
                continue
        if fresh is not op:
            env.update(zip(op.results, fresh.results, strict=True))
        code.append(fresh)
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def _found(
    total: Sum, dot: Product, moves: list[Op], cut: Slice | None, env: dict[Value, Value]
) -> tuple[Value, list[Op]] | None:
    """The sum, perhaps cut, as a product, and the ops that compute it; None where the rule does not
    hold."""
    code: list[Op] = []

    def compute(total: Sum, moves: list[Op], cut: Slice | None = None) -> Value | None:
        product = _Product(dot, [env.get(v, v) for v in dot.operands])
        value = product.run(total, moves, cut)
        code.extend(product.code)
        return value

    if has_phases(moves):
        phases = Phases(total, moves, cut)
        value = phases.run(compute)
        code += phases.code
    else:
        value = compute(total, moves, cut)
    return None if value is None else (value, code)


def _match(op: Op, uses: Counter[Value]) -> tuple[Sum, Product, list[Op]] | None:
    """The sum that an op is, or cuts; the product that it is of; the moves in between, the first
    of them first."""
    total = op.x.op if isinstance(op, Slice) else op
    if not isinstance(total, Sum) or (total is not op and uses[total.result] > 1):
        return None
    value, moves = total.x, list[Op]()
    while isinstance(value.op, MOVES):
        if uses[value] > 1:
            return None
        moves.append(value.op)
        value = value.op.operands[0]
    dot = value.op
    if not isinstance(dot, (DotGeneral, Mul)) or uses[value] > 1:
        return None
    if isinstance(dot, Mul) and not all(isinstance(x.op, Broadcast) for x in dot.operands):
        return None
    dtype = tensor_type(dot.result).dtype
    if dtype.kind is Kind.BOOL or tensor_type(total.result).dtype is not dtype:
        return None
    if not any(isinstance(move, Windows) for move in moves):
        return None
    return total, dot, moves[::-1]


class _Product:
    """A product whose dims are moved by moving its operands.

    Attributes:
        sides: the operands now.
        dims: for each dim of the result, the axis of either operand that it is, or None. A dim of
            both is a batch dim.
        contract: the axes that are summed over.
        code: new ops.
        side: the operand that has the places.
        last: its last axis before it got those of the window.
    """

    def __init__(self, dot: Product, sides: Sequence[Value]) -> None:
        self.dot = dot
        self.sides = list(sides)
        self.contract: list[Pair] = []
        self.dims: list[Pair] = []
        if isinstance(dot, DotGeneral):
            self.contract += zip(*dot.contract, strict=True)
            self.dims += zip(*dot.batch_axes, strict=True)
            self.dims += [(k, None) for k in dot.free(0)]
            self.dims += [(None, k) for k in dot.free(1)]
        else:
            spread = [x.op for x in sides if isinstance(x.op, Broadcast)]
            self.sides = [op.x for op in spread]
            for k in range(len(tensor_type(dot.result).shape)):
                left, right = (op.dims.index(k) if k in op.dims else None for op in spread)
                self.dims.append((left, right))
        self.code: list[Op] = []
        self.side, self.last = 0, -1

    def run(self, total: Sum, moves: Sequence[Op], cut: Slice | None) -> Value | None:
        """The sum, perhaps cut; None where the rule does not hold."""
        if not self.is_spread():
            return None
        for move in moves:
            if not self.move(move):
                return None
        kept = [pair for axis, pair in enumerate(self.dims) if axis not in total.axes]
        window: list[Pair] = []
        for left, right in [self.dims[axis] for axis in total.axes]:
            if left is None or right is None:
                return None
            window.append((left, right))
        # The last dim that is summed over is the one whose elements are neighbours in memory.
        is_last = any(pair[self.side] == self.last for pair in self.contract)
        self.contract = [*window, *self.contract] if is_last else [*self.contract, *window]
        self.dims = kept
        if cut is not None and not self.move(cut):
            return None
        return self.contraction() if isinstance(self.dot, DotGeneral) else self.sum(total)

    def is_spread(self) -> bool:
        """Whether the dims of operands are as long as those of the product."""
        shape = tensor_type(self.dot.result).shape
        return all(
            at is None or tensor_type(x).shape[at] == dim
            for pair, dim in zip(self.dims, shape, strict=True)
            for at, x in zip(pair, self.sides, strict=True)
        )

    def move(self, op: Op) -> bool:
        """Moves the operands as an op moves the result; False where that is not the same."""
        if isinstance(op, Transpose):
            self.dims = [self.dims[axis] for axis in op.perm]
        elif isinstance(op, Reverse):
            for side in (0, 1):
                self.reverse(side, [a for k in op.axes if (a := self.dims[k][side]) is not None])
        elif isinstance(op, Slice):
            self.slice(op)
        elif isinstance(op, Reshape):
            return self.reshape(op)
        elif isinstance(op, Pad):
            return self.pad(op)
        else:
            assert isinstance(op, Windows)
            return self.windows(op)
        return True

    def reverse(self, side: int, axes: list[int]) -> None:
        """Reverses an operand; twice is not at all."""
        x = self.sides[side]
        if isinstance(x.op, Reverse) and set(x.op.axes) == set(axes):
            self.sides[side] = x.op.x
        elif axes:
            self.set(side, Reverse(x, tuple(axes), loc=self.dot.loc))

    def set(self, side: int, op: Op) -> None:
        self.code.append(op)
        self.sides[side] = op.result

    def reshape(self, op: Reshape) -> bool:
        """Dims of one element come and go; what an operand has of them is summed over."""
        before, after = tensor_type(op.x).shape, tensor_type(op.result).shape
        if [d for d in before if d != 1] != [d for d in after if d != 1]:
            return False
        rest = [pair for pair, d in zip(self.dims, before, strict=True) if d != 1]
        units = [pair for pair, d in zip(self.dims, before, strict=True) if d == 1]
        self.contract += [pair for pair in units if pair != (None, None)]
        found = iter(rest)
        self.dims = [(None, None) if d == 1 else next(found) for d in after]
        return True

    def slice(self, op: Slice) -> None:
        """Cuts each operand along its own dims."""
        for side in (0, 1):
            shape = tensor_type(self.sides[side]).shape
            start: list[Dim] = [0] * len(shape)
            limit, stride = list(shape), list[Dim]([1] * len(shape))
            for axis, pair in enumerate(self.dims):
                at = pair[side]
                if at is not None:
                    start[at], limit[at] = op.start[axis], op.limit[axis]
                    stride[at] = op.stride[axis]
            if any(d != 0 for d in start) or limit != list(shape) or any(d != 1 for d in stride):
                cut = Slice(
                    self.sides[side], tuple(start), tuple(limit), tuple(stride), loc=op.loc
                )
                self.set(side, cut)

    def pad(self, op: Pad) -> bool:
        """Zeros beyond the ends of a product are those beyond the ends of an operand."""
        value = op.value.op
        if not isinstance(value, Constant) or value.value.array.any():
            return False
        if any(d != 0 for d in op.interior):
            # Products with the zeros between elements would take longer than what is saved; where
            # there are phases, none has any.
            return False
        for axis, pair in enumerate(self.dims):
            if pair == (None, None) and (op.lo[axis] != 0 or op.hi[axis] != 0):
                return False
        for side in (0, 1):
            rank = len(tensor_type(self.sides[side]).shape)
            lo, hi = (list[Dim]([0] * rank) for _ in range(2))
            for axis, pair in enumerate(self.dims):
                at = pair[side]
                if at is None or (side == 1 and pair[0] is not None):
                    # One of two zeros is enough, but the dims of both have to stay equal.
                    if at is not None and (op.lo[axis] != 0 or op.hi[axis] != 0):
                        return False
                    continue
                lo[at], hi[at] = op.lo[axis], op.hi[axis]
            if any(d != 0 for d in (*lo, *hi)):
                self.set(side, Pad(self.sides[side], op.value, tuple(lo), tuple(hi), loc=op.loc))
        return True

    def windows(self, op: Windows) -> bool:
        """Places are dims of one operand and the window those of the other, so that the first gets
        dims for the window as well."""
        outer = len(self.dims) - len(op.axes)
        places = [self.dims[axis] for axis in op.axes]
        inner = self.dims[outer:]
        side = 0 if places[0][1] is None else 1
        for at, one in zip(places, inner, strict=True):
            if at[1 - side] is not None or at[side] is None:
                return False
            if one[side] is not None or one[1 - side] is None:
                return False
        x = self.sides[side]
        shape = tensor_type(x).shape
        self.side, self.last = side, len(shape) - 1
        other = tensor_type(self.sides[1 - side]).shape
        sizes = tuple(other[at] for one in inner if (at := one[1 - side]) is not None)
        spread = Broadcast(x, (*shape, *sizes), tuple(range(len(shape))), loc=op.loc)
        self.set(side, spread)
        axes = tuple(found for at in places if (found := at[side]) is not None)
        self.set(side, Windows(spread.result, axes, op.step, op.dilation, loc=op.loc))
        for k, one in enumerate(inner):
            new = len(shape) + k
            pair = (new, one[1]) if side == 0 else (one[0], new)
            self.dims[outer + k] = pair
        return True

    def sum(self, total: Sum) -> Value:
        """The sum of the operands' elementwise product."""
        pairs = [*self.dims, *self.contract]
        shape: list[Dim] = []
        for pair in pairs:
            axes = zip(self.sides, pair, strict=True)
            dims = [tensor_type(x).shape[at] for x, at in axes if at is not None]
            shape.append(dims[0] if dims else 1)
        for side in (0, 1):
            own = [pair[side] for pair in pairs]
            x = self.sides[side]
            places = tuple(own.index(k) for k in range(len(tensor_type(x).shape)))
            # An operand is spread along dims in their order.
            order = sorted(range(len(places)), key=places.__getitem__)
            if order != list(range(len(order))):
                self.set(side, Transpose(x, tuple(order), loc=self.dot.loc))
            spread = Broadcast(self.sides[side], tuple(shape), tuple(sorted(places)), loc=total.loc)
            self.set(side, spread)
        product = Mul(*self.sides, loc=self.dot.loc)
        summed = tuple(range(len(self.dims), len(pairs)))
        found = Sum(product.result, summed, total.accumulate, total.order, loc=total.loc)
        self.code += [product, found]
        return found.result

    def contraction(self) -> Value | None:
        """The product of the operands as they are now, with its dims in order."""
        dot, dims = self.dot, self.dims
        assert isinstance(dot, DotGeneral)
        if any(pair == (None, None) for pair in dims) or any(None in p for p in self.contract):
            return None
        batch = [pair for pair in dims if None not in pair]
        # Vectors run along the dims of the right operand: those that end up last.
        swap = bool(dims) and dims[-1][1] is None and dims[-1][0] is not None
        sides, contract = self.sides, self.contract
        if swap:
            sides = sides[::-1]
            contract = [(b, a) for a, b in contract]
            dims = [(b, a) for a, b in dims]
            batch = [(b, a) for a, b in batch]
        product = DotGeneral(
            *sides,
            _columns(contract),
            _columns(batch),
            dot.dtype,
            dot.order,
            loc=dot.loc,
        )
        self.code.append(product)
        order = [*batch, *((k, None) for k in product.free(0))]
        order += [(None, k) for k in product.free(1)]
        perm = tuple(order.index(pair) for pair in dims)
        if perm == tuple(range(len(perm))):
            return product.result
        turned = Transpose(product.result, perm, loc=dot.loc)
        self.code.append(turned)
        return turned.result


def _columns(pairs: Sequence[Pair]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    left = tuple(a for a, _ in pairs if a is not None)
    right = tuple(b for _, b in pairs if b is not None)
    return left, right
