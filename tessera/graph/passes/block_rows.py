"""Rows of a product that are reduced and multiplied again are computed block by block.

    x = dot(q, k)                             [heads, M, N]
    y = f(x, sums over the rows of x)         [heads, M, N]       o = dot(y, v)   [heads, M, D]
    ==>
    o = blocks(q, k, v) for each head and each block of rows: the same on a block of q

Attention is of this kind, however it is written, and so is its gradient: a sum over rows, as that
of the keys, is a sum over blocks. Nothing of M x N elements is stored. What comes later and needs
it again, the gradient behind other layers, computes it again, from the operands of the product and
what is left of its rows.

How it is found: the axes of the product that its blocks have (`Cut`) are followed through
elementwise ops, broadcasts, transposes, reductions along rows and products, until an axis is lost.
An array from elsewhere that an op of these needs is cut likewise; one that only repeats elements,
as masks do, is computed in the block. What is wide has a row of N elements and may not leave.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tessera.dtypes import Kind
from tessera.graph.ops.blocks import Blocks, Cut
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.graph.ops.reduce import Max, Reduce, Sum
from tessera.graph.passes.block_parts import Part, Refused, Step, op_of, static_shape
from tessera.graph.passes.long_rows import Online, simpler
from tessera.graph.passes.replacing import Made, Replacing
from tessera.graph.passes.same_axes import moved, operands_of
from tessera.graph.spec import GRAPH
from tessera.ir.core import Block, Func, Op, Value, tensor_type
from tessera.ir.passes import Pass


@dataclass(frozen=True)
class BlockRows(Pass):
    """Applies the rule to each product of the program, regions included.

    Attributes:
        least: a product with fewer rows or columns is small enough as a whole.
        stored: so is one of fewer elements in all.
        rows: rows of a block that are enough for the register blocks of products.
        fewest_rows: fewer would read the other operand too often.
        columns: that a block has more than the one before, where a causal mask leaves the rest out,
            in whole register blocks.
        row_bytes: bytes of a block of rows; some of these have to stay in the second cache.
        masked_rows: rows that are kept whole, where as many have so few bytes and a causal mask
            leaves half of them out, to the column.
        width: columns of a block of rows that are longer, and are gone over block by block.
        sum_width: the same where sums over rows are taken, too, so that more arrays are at hand.
        least_width: fewer would be begun too often.
        block_bytes: of a block of all rows, where they cannot be divided, and of the smallest one.
        operand_bytes: of the operand that has the columns, which each block reads: from a cache.
        points: blocks, below which threads would have too little to do.
    """

    name = "block_rows"
    ensures = GRAPH
    least: int = 64
    stored: int = 1 << 18
    rows: int = 64
    fewest_rows: int = 16
    columns: int = 64
    row_bytes: int = 1 << 18
    masked_rows: int = 32
    width: int = 256
    sum_width: int = 128
    least_width: int = 64
    block_bytes: int = 1 << 21
    operand_bytes: int = 1 << 23
    points: int = 4

    def run(self, func: Func) -> Func:
        """One sweep."""
        body = _block(func.body, self)
        return func if body is func.body else func.with_body(body)


def _block(block: Block, options: BlockRows) -> Block:
    """A block with its products in blocks; itself where there are none."""
    code: list[Op] = []
    env: dict[Value, Value] = {}
    for op in block.ops:
        regions = [_block(region, options) for region in op.regions]
        if env or any(a is not b for a, b in zip(regions, op.regions, strict=True)):
            new = op.rebuild([env.get(v, v) for v in op.operands], regions)
            env.update(zip(op.results, new.results, strict=True))
            op = new
        code.append(op)
    if env:
        block = Block(block.args, code, [env.get(v, v) for v in block.outputs])
    program = Replacing(block)
    tried: set[Op] = set()
    while _replace_next(program, tried, options):
        pass
    return program.block()


def _replace_next(program: Replacing, tried: set[Op], options: BlockRows) -> bool:
    """Puts the next product in blocks, if there is one."""
    for seed in program.ops:
        # What was tried before may have replaced it.
        if seed in tried or seed not in program.places or not _is_seed(seed, options):
            continue
        tried.add(seed)
        for side, is_long in _WAYS:
            try:
                rows = Rows(program, seed, side, options, is_long)
                program.replace(*rows.run())
                return True
            except Refused:
                continue
    return False


_WAYS = ((0, True), (1, True), (0, False), (1, False))
"""Which operand has the rows, and whether columns are cut as well."""


def reasons_against(block: Block, options: BlockRows) -> list[str]:
    """Why products of a program whose rows are reduced and multiplied are not in blocks, a line
    each.

    Args:
        block: the program after the pass.
        options: its options.
    """
    found: dict[str, None] = {}
    program = Replacing(block)
    for op in block.ops:
        for region in op.regions if not isinstance(op, Blocks) else ():
            found.update(dict.fromkeys(reasons_against(region, options)))
        for side, is_long in _WAYS if op in program.places and _is_seed(op, options) else ():
            try:
                Rows(program, op, side, options, is_long).run()
            except Refused as reason:
                if str(reason) and not is_long:
                    text = f"dot_general {op.results[0].type}: not in blocks of rows, {reason}"
                    found[text] = None
    return list(found)


def _is_seed(op: Op, options: BlockRows) -> bool:
    """Whether an op is a product with a large result."""
    if not isinstance(op, DotGeneral) or op.accumulate.kind is not Kind.FLOAT:
        return False
    shape = static_shape(op.result)
    return shape is not None and prod(shape) >= options.stored


class Rows:
    """The blocks that begin with one product.

    Attributes:
        steps: the ops that can work on blocks.
        kept: those of them that do.
        levels: of the kept ops and those between them, how often what they need has left the
            blocks and come back.
        lengths: the extents of the product's axes that are cut.
        sizes: those of a block.
        rows: the number of the rows' axis, of these.
        cols: that of the columns' axis, the last one; -1 if it is not cut.
        across: what a sum along rows is a sum over.
        columns: elements of a row.
    """

    def __init__(
        self, program: Replacing, seed: Op, side: int, options: BlockRows, is_long: bool
    ) -> None:
        assert isinstance(seed, DotGeneral)
        self.program = program
        self.options = options
        self.seed = seed
        shape = static_shape(seed.result)
        assert shape is not None
        pairs = seed.batch_axes
        counts = [len(pairs[0]), *[len(seed.free(k)) for k in (0, 1)]]
        if counts[2 - side] != 1 or counts[1 + side] < 1:
            raise Refused
        # The last free axis of one operand are the rows; the only one of the other the columns.
        rank = len(shape)
        row, column = (rank - 2, rank - 1) if side == 0 else (rank - 1, counts[0])
        self.columns = shape[column]
        depth = _product([tensor_type(seed.lhs).shape[k] for k in seed.contract[0]])
        least = min(shape[row], shape[column])
        if least < options.least or depth >= least:
            raise Refused
        self.row, self.column = row, column
        axes = [k for k in range(rank) if k not in (row, column) and shape[k] > 1]
        self.rows = len(axes)
        self.cols = self.rows + 1 if is_long else -1
        self.across = frozenset([self.cols])
        axes += [row, column] if is_long else [row]
        self.lengths = [shape[k] for k in axes]
        size = 4 * self.columns * depth
        if size > options.operand_bytes and not is_long:
            raise Refused(f"each would read an operand of {size} bytes")
        self.sizes = [1] * self.rows
        self.sizes += [self.long_rows(), 1] if is_long else [self.block_rows()]
        places = {axis: k for k, axis in enumerate(axes)}
        start = tuple([places.get(k, -1) for k in range(rank)])
        self.steps: dict[Op, Step] = {seed: Step(operands_of(seed, start), start)}
        self.kept: set[Op] = set()
        self.levels: dict[Op | None, int] = {}

    def long_rows(self) -> int:
        """Rows of a block, where rows are long."""
        o = self.options
        rows = self.lengths[self.rows]
        if 4 * self.columns * min(o.rows, rows) <= o.row_bytes:
            raise Refused
        found = [_largest(rows, o.fewest_rows, o.rows)]
        found += [_largest(self.columns, o.least_width, n) for n in (o.width, o.sum_width)]
        if not all(found):
            raise Refused
        return found[0]

    def block_rows(self) -> int:
        """Rows of a block."""
        o = self.options
        most = min(o.rows, max(o.row_bytes // (4 * self.columns), o.fewest_rows))
        rows = self.lengths[self.rows]
        if 4 * self.columns * o.fewest_rows > o.block_bytes:
            raise Refused(f"{o.fewest_rows} rows are more than {o.block_bytes} bytes")
        found = _largest(rows, o.fewest_rows, most)
        if found:
            return found
        # All rows, where they do not come in blocks and are few.
        if rows * self.columns * 4 > o.block_bytes:
            text = f"no number from {o.fewest_rows} to {most} divides its {rows} rows"
            raise Refused(text)
        return rows

    def run(self) -> tuple[set[Op], Made]:
        """The ops that work on blocks, and what makes the values that others read of them."""
        self.spread()
        for _ in range(len(self.steps)):
            found = simpler(self)
            if found is None:
                break
            self.program.replace(*found)
            self.steps = {self.seed: self.steps[self.seed]}
            self.spread()
        self.keep()
        self.number()
        return self.kept, self.made()

    # --- what works on blocks -----------------------------------------------------------------

    def cut_of(self, value: Value) -> Cut | None:
        """How a value is cut, if it is one of the blocks'."""
        step = None if value.op is None else self.steps.get(value.op)
        return None if step is None or step.summed else step.result

    def spread(self) -> None:
        """Finds the ops that can work on blocks: of what reads them, one after the other."""
        places, users = self.program.places, self.program.users
        found = list({places[op] for op in users.get(self.seed.results[0], ())})
        heapq.heapify(found)
        looked_at = set(found)
        while found:
            op = self.program.ops[heapq.heappop(found)]
            if len(op.results) != 1:
                continue
            operands = self.program.operands(op)
            step = self.step(op, [self.cut_of(v) for v in operands])
            if step is None or not self.covers(step):
                continue
            if all(self.fits(v, cut) for v, cut in zip(operands, step.operands, strict=True)):
                self.steps[op] = step
                for user in () if step.summed else users.get(op.results[0], ()):
                    if places[user] not in looked_at:
                        looked_at.add(places[user])
                        heapq.heappush(found, places[user])

    def covers(self, step: Step) -> bool:
        """Whether each block of the result is computed once, or added to a sum."""
        found = [k for k in step.result if k >= 0]
        loops = {*range(len(self.lengths))}
        return len(set(found)) == len(found) and {*found, *step.summed} == loops

    def fits(self, value: Value, cut: Cut) -> bool:
        """Whether an array has the axes that are cut."""
        shape = static_shape(value)
        if shape is None or len(shape) != len(cut):
            return False
        return all(k < 0 or dim == self.lengths[k] for dim, k in zip(shape, cut, strict=True))

    def step(self, op: Op, known: Sequence[Cut | None]) -> Step | None:
        """How an op works on blocks, if it does."""
        first = next(cut for cut in known if cut is not None)
        if isinstance(op, Elementwise):
            same = all(cut in (None, first) for cut in known)
            same = same and all(tensor_type(v).rank == len(first) for v in op.operands)
            return Step((first,) * len(known), first) if same else None
        if isinstance(op, (Broadcast, Reshape, Transpose)):
            found = moved(op, first)
            return None if found is None else Step((first,), found)
        if isinstance(op, Reduce):
            summed = frozenset([first[k] for k in op.axes if first[k] >= 0])
            # Sums over blocks have no dtype of their own here.
            # A sum over blocks is one in another order.
            is_sum = isinstance(op, Sum) and tensor_type(op.result).dtype.bits >= 32
            is_sum = is_sum or (isinstance(op, Max) and summed == self.across)
            if summed and not (is_sum and op.order is None):
                return None
            result = tuple([c for k, c in enumerate(first) if k not in op.axes])
            return Step((first,), result, summed)
        return self.product(op, known) if isinstance(op, DotGeneral) else None

    def product(self, op: DotGeneral, known: Sequence[Cut | None]) -> Step | None:
        """How a product does."""
        cuts = [list(known[k] or (-1,) * tensor_type(v).rank) for k, v in enumerate(op.operands)]
        summed: set[int] = set()
        for pairs, is_sum in ((op.batch_axes, False), (op.contract, True)):
            for axes in zip(*pairs, strict=True):
                found = {cuts[k][axes[k]] for k in (0, 1) if known[k] is not None}
                if len(found) != 1:
                    return None
                (cut,) = found
                cuts[0][axes[0]] = cuts[1][axes[1]] = cut
                if is_sum and cut >= 0:
                    summed.add(cut)
        if summed and op.order is not None:
            return None
        result = [cuts[0][k] for k in op.batch_axes[0]]
        result += [cuts[side][k] for side in (0, 1) for k in op.free(side)]
        return Step((tuple(cuts[0]), tuple(cuts[1])), tuple(result), frozenset(summed))

    # --- what does ----------------------------------------------------------------------------

    def is_wide(self, value: Value) -> bool:
        """Whether a value of the blocks has a whole row, or a block of one."""
        step = self.steps[op_of(value)]
        if self.cols >= 0:
            return not step.summed
        return _uncut(value, step.result) >= self.columns

    def is_point(self, cut: Cut) -> bool:
        """Whether each block of a value is one of rows and columns, and of nothing else."""
        return self.cols >= 0 and {*cut} - {-1} == {*range(len(self.lengths))}

    def own(self, op: Op) -> list[Value]:
        """The operands that are values of the blocks."""
        return [v for v in self.program.operands(op) if self.cut_of(v) is not None]

    def keep(self) -> None:
        """Chooses what reads rows, and all that this needs."""
        products = 0
        reduces = False
        for op in sorted(self.steps, key=self.program.places.__getitem__, reverse=True):
            step = self.steps[op]
            # Of a block of columns nothing but sums may leave.
            reads = bool(step.summed) if self.cols >= 0 else any(map(self.is_wide, self.own(op)))
            if reads:
                # Rows that wait for what they are reduced to, as those of a softmax do.
                waits = op in self.kept and not step.summed
                waits = waits or step.summed == self.across
                reduces = reduces or (waits and isinstance(op, Reduce))
                self.kept.add(op)
                products += isinstance(op, DotGeneral)
            if op in self.kept or op is self.seed:
                self.kept.add(op)
                self.kept.update([v.op for v in self.own(op) if v.op is not None])
        if not products or not reduces:
            raise Refused
        if any(self.is_square(op) for op in self.kept if op is not self.seed):
            raise Refused
        points = prod(map(self.count, range(self.rows + 1)))
        if points < self.options.points:
            raise Refused(f"there would be {points} only")

    def set_width(self, most: int) -> None:
        """Says how many columns a block has, if they are cut."""
        if self.cols >= 0:
            self.sizes[self.cols] = _largest(self.columns, self.options.least_width, most)

    def is_attention(self, kept: Sequence[Op], first: int, top: int) -> bool:
        """Whether long rows are multiplied at once, and their gradient waits for nothing else.

        What only adds rows up, as a loss over a vocabulary does, would compute its products again
        for a gradient that reads what it has stored.

        Args:
            kept: what works on blocks.
            first: the level at which rows are known.
            top: the last level.
        """
        is_product = any(
            isinstance(op, DotGeneral)
            and self.steps[op].summed == self.across
            and self.levels[op] == first
            for op in kept
        )
        return is_product and top <= first + 1

    def is_square(self, op: Op) -> bool:
        """Whether a product multiplies rows with a matrix from elsewhere that has as many columns
        as a row has elements, or more, as a layer of a network does.

        Products of whole arrays are faster then: the gradients of two layers of 256 and 1024 for
        4096 rows, behind a normalised one, take 49 ms in blocks and 36 whole (Zen 5, two threads).
        """
        if not isinstance(op, DotGeneral):
            return False
        pairs = zip(self.program.operands(op), self.steps[op].operands, strict=True)
        most = self.columns**2
        for value, cut in pairs:
            whole = tuple([-1 if k == self.cols else k for k in cut])
            if self.rows not in cut and _uncut(value, whole) >= most:
                return True
        return False

    def count(self, k: int) -> int:
        """Blocks along an axis."""
        return self.lengths[k] // self.sizes[k]

    def number(self) -> None:
        """Numbers the levels."""
        places = sorted([self.program.places[op] for op in self.kept])
        for op in self.program.ops[places[0] : places[-1] + 1]:
            level = 0
            for value in self.program.operands(op):
                leaves = op not in self.kept or self.cut_of(value) is None
                again = value.op in self.kept and leaves
                level = max(level, self.levels.get(value.op, 0) + again)
            if level or op in self.kept:
                self.levels[op] = level

    # --- the new block ------------------------------------------------------------------------

    def made(self) -> Made:
        """What makes the values that are read elsewhere: one op for each level of the blocks."""
        kept = sorted(self.kept, key=self.program.places.__getitem__)
        users = self.program.users
        wanted = {v for v in self.program.outputs if v.op in self.kept}
        for op in kept:
            if not self.kept.issuperset(users.get(op.results[0], ())):
                wanted.add(op.results[0])
        for value in wanted:
            if not self.steps[op_of(value)].summed and self.is_wide(value):
                name = op_of(value).name.partition(".")[2]
                raise Refused(f"all of {name} {value.type} is needed elsewhere")
        made: dict[Value, tuple[list[Op], Value]] = {}
        top = max(self.levels[op] for op in kept)
        online = Online.of(self, kept) if self.cols >= 0 else None
        if self.cols >= 0 and not self.is_attention(kept, 1 if online else 0, top):
            raise Refused
        for level in range(top, -1, -1):
            if online and level < 2:
                self.set_width(self.options.width)
                new, results = online.blocks()
                is_masked = any(isinstance(op, Blocks) and op.steps is not None for op in new)
                o = self.options
                if is_masked and 4 * self.columns * o.masked_rows <= o.row_bytes:
                    raise Refused
                made.update(zip(online.outputs, [(new, v) for v in results], strict=True))
                break
            self.set_width(self.options.sum_width)
            own = [op for op in kept if self.levels[op] == level]
            outputs = [op.results[0] for op in own if op.results[0] in wanted]
            if not outputs:
                continue
            part = Part(self, level)
            new, results = part.blocks(outputs)
            wanted.update(part.given)
            made.update(zip(outputs, [(new, v) for v in results], strict=True))
        return made


def _largest(length: int, least: int, most: int) -> int:
    """The most elements that blocks of an axis have, of numbers that divide it; 0 if none does."""
    return next((n for n in range(most, least - 1, -1) if length % n == 0), 0)


def _product(dims: Sequence[object]) -> int:
    return prod([dim for dim in dims if isinstance(dim, int)])


def _uncut(value: Value, cut: Cut) -> int:
    """Elements that each block of a value has along the axes that are not cut."""
    return _product([dim for dim, k in zip(tensor_type(value).shape, cut, strict=True) if k < 0])
