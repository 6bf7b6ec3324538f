"""Packs the operands of a CPU's products into panels, and cuts products into register blocks.

A register block is some rows by some vectors of columns, whose sums stay in registers over the
whole depth. Its operands are read again by every other block of its row or column, so they are
copied first into the order in which blocks read them, which also evens out what is left at the
ends:

    nest i, j: y[i, j] = f(contract k: a(i, k), b(k, j))
    ==>
    nest kb, jo, ji: right[jo, kb, ji] = b(kb, jo*W + ji)           0 beyond the end
    nest io, kb, ii, kk: left[io, kb, ii, kk] = a(io*H + ii, kb*L + kk)
    nest jo, io, ii, ji: y[io*H + ii, jo*W + ji] =
        f(contract kb, kk: left[io, kb, ii, kk], right[jo, kb*L + kk, ji])

What is computed from other arrays on the way into a product is computed once, while it is packed;
what is computed from the product is computed on the registers. Where an operand is small and lies
in memory as blocks read it, it is read where it is.

A copy is a kernel of its own: products of one operand share it, and it stands before the loops
whose steps all read the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.hash import content_hash
from tessera.ir.intexpr import Facts
from tessera.ir.walk import clone_block, free_values, walk
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.schedule.in_blocks import InBlocks
from tessera.schedule.machines import CachedCpu
from tessera.schedule.panel_by_panel import panel_by_panel
from tessera.schedule.part_memory import share
from tessera.schedule.product_sides import Side
from tessera.schedule.product_sums import column_sums, row_sums
from tessera.schedule.products import Context, Product
from tessera.schedule.turned_products import in_squares
from tessera.schedule.types import BufType

SHARED_FOR = 16
"""So many ops later a packed intermediate array is packed again, rather than kept in memory."""


def pack_products(func: Func, machine: CachedCpu, facts: Facts | None = None) -> Func:
    """The program with its products in register blocks.

    Args:
        func: a program without tiles and places.
        machine: the CPU.
        facts: what is known of symbolic dims.
    """
    found = list(walk(func.body))
    if not any(isinstance(op, ops.Contract) for op in found):
        return func
    packing = _Packing(Context(machine, facts or Facts(), frozenset(func.dims)))
    scope = _Scope(None, set(func.args), {})
    return func.with_body(packing.block(func.body, {}, scope))


@dataclass(eq=False)
class _Scope:
    """A program region.

    Attributes:
        outer: the region around it, if its code may stand there.
        values: what it defines.
        copies: operands that it has packed, by what they are, and after how many ops.
        code: its ops so far.
        args: its arguments.
    """

    outer: _Scope | None
    values: set[Value]
    copies: dict[object, tuple[Value, int]]

    def __post_init__(self) -> None:
        self.code: list[Op] = []
        self.args = frozenset(self.values)


class _Packing:
    """Packs the products of a program."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def block(self, block: Block, env: dict[Value, Value], scope: _Scope) -> Block:
        """A region of the program."""
        for op in block.ops:
            operands = [env.get(v, v) for v in op.operands]
            if isinstance(op, ops.Kernel):
                new = self.kernel(op, operands, scope)
            else:
                # Only a loop runs its region again and again.
                outer = scope if isinstance(op, ops.While) else None
                regions = [
                    self.block(region, env, _Scope(outer, set(region.args), {}))
                    for region in op.regions
                ]
                new = op.rebuild(operands, regions)
            # Memory of the parts of blocks comes last.
            env.update(zip(op.results, new.results, strict=False))
            scope.code.append(new)
            scope.values.update(new.results)
        return Block(block.args, scope.code, [env.get(v, v) for v in block.outputs])

    def kernel(self, op: ops.Kernel, operands: list[Value], scope: _Scope) -> Op:
        """A kernel, its products on packed operands."""
        outer = dict(zip(op.body.args, operands, strict=False))
        code: list[Op] = []
        packed: dict[Value, Value] = {}
        results = op.body.args[len(op.inputs) :]
        temps = op.temps
        waiting: list[Value] = []
        for part in op.body.ops:
            if isinstance(part, Each):
                kept = len(results) - temps
                each, memory = self.each(part, outer, packed, results[kept:], scope)
                results, temps = [*results[:kept], *memory], len(memory)
                code.append(each)
                continue
            squares = self.squares(part)
            if squares is not None:
                code.append(squares)
                continue
            product = Product.of(part, self.context) if isinstance(part, ops.Nest) else None
            # Before a loop all of it is packed, once.
            by_panels = scope.outer is None
            if product is None or not product.plan(cuts=True, by_panels=by_panels):
                code.append(part)
                continue
            for side in (product.left, product.right):
                if side.is_left or not product.by_panels:
                    self.pack(side, outer, packed, scope)
            if product.by_panels:
                panels, memory = panel_by_panel(product)
                code += panels
                waiting.append(memory)
            else:
                code += product.nests()
            waiting += product.memory
        results, temps = [*results, *waiting], temps + len(waiting)
        if not code or code == list(op.body.ops):
            return op.rebuild(operands, op.regions)
        used = {v for part in code for one in walk(Block([], [part], ())) for v in one.operands}
        kept = [k for k in range(len(op.inputs)) if op.body.args[k] in used]
        inputs = [operands[k] for k in kept] + list(packed.values())
        args = [op.body.args[k] for k in kept] + list(packed) + results
        types: list[BufType] = []
        for value in results:
            assert isinstance(value.type, BufType)
            types.append(value.type)
        return ops.Kernel(
            inputs, tuple(types), op.places, temps, op.label, op.reason, op.concurrent, op.joined,
            body=Block(args, code, ()), loc=op.loc,
        )  # fmt: skip

    def squares(self, part: Op) -> ops.Nest | None:
        """A small product whose second operand is turned in registers."""
        machine, facts = self.context.machine, self.context.facts
        return in_squares(part, machine, facts) if isinstance(part, ops.Nest) else None

    def pack(
        self,
        side: Side,
        outer: Mapping[Value, Value],
        packed: dict[Value, Value],
        scope: _Scope,
    ) -> None:
        """Packs an operand in front of the kernel and sums it, where that is needed; notes what
        these are there."""
        if side.packed is not None:
            packed[side.packed] = self.copy(side, outer, scope)
        if side.sums is None:
            return
        if side.is_left:
            packed[side.sums] = self.row_sums(side, outer, scope)
        else:
            assert side.packed is not None
            packed[side.sums] = self.sums(side, packed[side.packed], scope)

    def each(
        self,
        op: Each,
        outer: Mapping[Value, Value],
        packed: dict[Value, Value],
        temps: Sequence[Value],
        scope: _Scope,
    ) -> tuple[Op, list[Value]]:
        """Blocks, their products on packed operands, and the memory of their parts. An operand that
        is an argument of the kernel is packed in front of it, for all blocks; one that a block
        computes, in the block."""
        temps = list(temps)
        code: list[Op] = []
        for nest in op.nests:
            blocks = InBlocks(nest, op)
            product = Product.of(blocks.spread, replace(self.context, in_blocks=True))
            if product is None or not product.plan() or not blocks.cut(product):
                code.append(nest)
                continue
            for side in (product.left, product.right):
                if side.packed is None:
                    continue
                nests = side.copy_nests(side.packed)
                if outer.keys() >= {*free_values(Block([], nests, ()))} - {side.packed}:
                    self.pack(side, outer, packed, scope)
                else:
                    code += blocks.pack(side, nests)
            temps += blocks.temps
            code.append(blocks.nest(product.nest_of_blocks()))
        new = op.rebuild(regions=[Block((), code, ())])
        assert isinstance(new, Each)
        return share(new, temps)

    def copy(self, side: Side, outer: Mapping[Value, Value], scope: _Scope) -> Value:
        """The packed operand; in front of a loop whose steps all need the same."""
        assert side.packed is not None
        target = Value(side.packed.type)
        return self.beside(target, side.kernel_nests(target), ("pack", side.reason), outer, scope)

    def row_sums(self, side: Side, outer: Mapping[Value, Value], scope: _Scope) -> Value:
        """The sums of the rows of a first operand, likewise."""
        assert side.sums is not None
        target = Value(side.sums.type)
        names = ("pack_sums", "sums of an operand's rows")
        return self.beside(target, [row_sums(side, target)], names, outer, scope)

    def beside(
        self,
        target: Value,
        nests: Sequence[Op],
        names: tuple[str, str],
        outer: Mapping[Value, Value],
        scope: _Scope,
    ) -> Value:
        """A kernel that needs nothing of the product's; in front of a loop whose steps all need the
        same.

        Args:
            target: what it makes.
            nests: its code.
            names: its label and its reason.
            outer: what the values are outside of the product's kernel.
            scope: of the kernel.
        """
        args = [v for v in free_values(Block([], nests, ())) if v is not target]
        inputs = [outer[v] for v in args]
        while scope.outer is not None and scope.values.isdisjoint(inputs):
            scope = scope.outer
        # With arguments of its own: those are the ones of the product's kernel.
        body = clone_block(Block([*args, target], nests, ()), {})
        label, reason = names
        key = (tuple(inputs), content_hash(Func(label, body)))
        found, made = scope.copies.get(key, (None, 0))
        lasts = scope.args.issuperset(inputs)
        if found is None or not (lasts or len(scope.code) - made <= SHARED_FOR):
            assert isinstance(target.type, BufType)
            loc = nests[0].loc
            kernel = ops.Kernel(
                inputs, (target.type,), label=label, reason=reason, body=body, loc=loc
            )
            scope.code.append(kernel)
            scope.values.add(kernel.results[0])
            found = kernel.results[0]
            scope.copies[key] = (found, len(scope.code))
        return found

    def sums(self, side: Side, packed: Value, scope: _Scope) -> Value:
        """The sums of the columns of a packed operand, beside it."""
        assert side.sums is not None
        while scope.outer is not None and packed not in scope.values:
            scope = scope.outer
        key = ("sums", packed)
        if key not in scope.copies:
            source, target = Value(packed.type), Value(side.sums.type)
            assert isinstance(target.type, BufType)
            body = Block([source, target], [column_sums(side, source, target)], ())
            kernel = ops.Kernel(
                [packed], (target.type,), label="pack_sums", reason="sums of a packed operand's"
                " columns", body=body, loc=side.product.op.loc,
            )  # fmt: skip
            scope.code.append(kernel)
            scope.values.add(kernel.results[0])
            scope.copies[key] = (kernel.results[0], len(scope.code))
        return scope.copies[key][0]
