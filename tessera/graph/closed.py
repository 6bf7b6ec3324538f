"""Regions of ops, made of recorded functions that use state: the contents of the cells that they
touch are arguments and results of the regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tessera.graph.state import Cell, Touched, load, store
from tessera.ir.core import Block, Func, Value
from tessera.ir.types import TensorType


class Recorded(Protocol):
    """A function that was recorded.

    Attributes:
        graph: its inputs are the captured values, the arguments and the contents of all touched
            cells; its outputs are the results and the contents of the written ones.
        captured: the captured values.
        touched: the cells that it has touched.
        types: of the results.
    """

    @property
    def graph(self) -> Func: ...
    @property
    def captured(self) -> Sequence[Any]: ...
    @property
    def touched(self) -> Sequence[Touched]: ...
    @property
    def types(self) -> Sequence[TensorType]: ...


def written_of(region: Recorded) -> list[Touched]:
    """The cells that a function has written."""
    return [ref for ref in region.touched if ref.place is not None]


class Closed:
    """Regions that are closed: they use nothing but their arguments.

    Args:
        regions: functions.

    Attributes:
        blocks: what they are. The leading arguments of all are the captured values of all and the
            contents of the refs that none of them writes; then come those of the others, and the
            arguments of the function. The leading results are the contents of these others.
        captured: what the first of these arguments are.
        state: what the contents are that come then.
    """

    def __init__(self, regions: Sequence[Recorded]) -> None:
        cells: dict[Cell, None] = {}
        self._written: dict[Cell, Touched] = {}
        read: set[Cell] = set()
        for region in regions:
            for ref in region.touched:
                cells[ref.cell] = None
                if ref.place is not None:
                    self._written[ref.cell] = ref
        for region in regions:
            read.update([ref.cell for ref in region.touched if ref.is_read])
        constant = [cell for cell in cells if cell not in self._written]
        order = [*constant, *self._written]
        self.blocks = [self._block(region, regions, order) for region in regions]
        captured = [x for region in regions for x in region.captured]
        self.captured = (*captured, *[x for cell in constant for x in load(cell)])
        self.state = [x for c in self._written for x in load(c, is_read=c in read)]

    def _block(self, region: Recorded, regions: Sequence[Recorded], order: Sequence[Cell]) -> Block:
        body = region.graph.body
        count = len(region.captured)
        lead: list[Value] = []
        for other in regions:
            own = body.args[:count]
            lead += own if other is region else [Value(x.type) for x in other.captured]
        end = len(body.args) - sum([len(ref.inputs) for ref in region.touched])
        known = {ref.cell: [x.value for x in ref.inputs] for ref in region.touched}
        before = {c: known.get(c) or [Value(t) for t in c.types] for c in order}
        lead += [x for cell in order for x in before[cell]]
        outputs = iter(body.outputs[len(region.types) :])
        after = {ref.cell: [next(outputs) for _ in ref.inputs] for ref in written_of(region)}
        state = [x for cell in self._written for x in after.get(cell, before[cell])]
        results = body.outputs[: len(region.types)]
        return Block([*lead, *body.args[count:end]], body.ops, [*state, *results])

    def finish(self, results: Sequence[Any]) -> Sequence[Any]:
        """Writes the refs that the regions write.

        Args:
            results: of the op, of which the new contents come first.

        Returns:
            The other results.
        """
        found = iter(results)
        for cell, ref in self._written.items():
            store(cell, [next(found) for _ in cell.types], ref.place)
        return list(found)
