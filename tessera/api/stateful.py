"""Compiled functions that use refs: which refs a call has, and running it with their contents."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tessera import pytree
from tessera.api.refs import Ref, distinct, stand_in
from tessera.api.traced import Traced
from tessera.errors import StateError
from tessera.graph.array import Array
from tessera.graph.device import CPU, Device
from tessera.graph.ops.hostcall import HostCall
from tessera.graph.placement import device_of_all, differ, moved
from tessera.graph.remote import Remote
from tessera.graph.state import Cell, load, store
from tessera.graph.trace import note_effects
from tessera.ir import loc
from tessera.ir.core import Block, Func
from tessera.runtime.dispatch.signatures import HeldRef
from tessera.runtime.remote import is_its_own


class State:
    """The refs of a traced function, in the order of their contents among its inputs.

    A ref that the function finds outside is known by itself, and kept alive by others. One that it
    is passed is known by its position among the refs in the arguments.

    Args:
        traced: the function.
        label: its name.
        device: where it runs.
    """

    def __init__(self, traced: Traced, label: str, device: Device) -> None:
        self.label = label
        self.device = device
        self._found: list[weakref.ref[Cell] | int] = []
        self.sizes = [len(ref.inputs) for ref in traced.touched]
        self.written = [ref.place is not None for ref in traced.touched]
        self.read = [ref.is_read for ref in traced.touched]
        self.places = [ref.place for ref in traced.touched]
        self.results = len(traced.types)
        for ref in traced.touched:
            param = ref.cell.param
            is_own = param is not None and ref.cell.home is traced.trace
            self._found.append(param if is_own and param is not None else weakref.ref(ref.cell))
        self.is_fallible = _calls_host(traced.graph.body)
        order = [ref.cell for ref in traced.touched]
        self._returned = {k: order.index(cell) for k, cell in traced.returned.items()}
        self._whole = traced.whole
        # What is kept keeps no refs alive.
        traced.touched, traced.returned = [], {}

    @staticmethod
    def of(traced: Traced, label: str, device: Device) -> State | None:
        """The refs of a traced function; None if it uses none."""
        return State(traced, label, device) if traced.touched else None

    def is_alive(self) -> bool:
        """Whether all refs that the function found outside still exist."""
        return all([isinstance(one, int) or one() is not None for one in self._found])

    def held(self) -> list[HeldRef] | None:
        """The refs of a native call; None where that cannot be one."""
        if self.is_fallible or self.device != CPU:
            return None
        one_each = zip(self._found, self.sizes, self.written, strict=True)
        return [HeldRef(cell, n, is_written, self.label) for cell, n, is_written in one_each]

    @property
    def returned(self) -> list[int]:
        """The refs in the result, by their positions among those of the function."""
        return [*self._returned.values()]

    @property
    def tree(self) -> Callable[..., Any] | None:
        """Makes a result with refs of a tuple of its arrays and these; None for one without."""
        if not self._returned:
            return None
        count = self._whole.num_leaves
        arrays, refs = iter(range(count)), iter(range(count - len(self._returned), count))
        order = [next(refs if k in self._returned else arrays) for k in range(count)]
        children = self._whole.children()
        if self._whole.type is tuple and all([child.is_leaf() for child in children]):
            is_plain = order == [*range(count)]
            return tuple if is_plain else functools.partial(_in_order, order)
        return functools.partial(_with_all, self._whole, order)

    def donated(self, first: int) -> list[int]:
        """The inputs whose memory a call may write to, where the first contents are an input of
        this number."""
        found: list[int] = []
        for size, is_written in zip(self.sizes, self.written, strict=True):
            found += range(first, first + size) if is_written else ()
            first += size
        return found

    def inputs_of(self, graph: Func) -> list[int]:
        """The same inputs of its program, whose last ones are what the refs hold."""
        return self.donated(len(graph.args) - sum(self.sizes))

    def cells(self, refs: Sequence[Ref]) -> list[Cell] | None:
        """The refs of a call; None if one does not exist any more.

        Args:
            refs: those in its arguments.

        Raises:
            StateError: two are the same.
        """
        found: list[Cell] = []
        for one in self._found:
            cell = refs[one] if isinstance(one, int) else one()
            if cell is None:
                return None
            if cell in found:
                raise StateError(
                    f"jit: {self.label} is passed the ref `{cell.name}`, and finds it outside as "
                    f"well",
                    loc=loc.current(),
                    rule="a ref has one user at a time: in a call it has one name",
                    fix="pass it, or let the function find it, but not both",
                )
            found.append(cell)
        return found

    def with_returned(self, result: Any, cells: Sequence[Cell]) -> Any:
        """The result of the function, of which all but refs is given, for the refs of a call."""
        if not self._returned:
            return result
        rest = iter(pytree.leaves(result))
        known = self._returned
        places = range(self._whole.num_leaves)
        found = [cells[known[k]] if k in known else next(rest) for k in places]
        return pytree.unflatten(self._whole, found)

    def run(
        self,
        cells: Sequence[Cell],
        inputs: Sequence[Any],
        program: Callable[[list[Any], Collection[int]], list[Any]],
        keeps: bool,
    ) -> list[Any]:
        """Runs a program with the contents of refs, and writes them.

        Args:
            cells: the refs.
            inputs: the other inputs of the program, which come first.
            program: takes all inputs, and which of them nobody else can see.
            keeps: whether the memory of refs must not be written to.

        Returns:
            The results of the function.
        """
        given = [*inputs]
        taken: list[tuple[Cell, int]] = []
        try:
            for cell, is_written in zip(cells, self.written, strict=True):
                if not is_written:
                    given += [self._placed(cell, x.storage) for x in cell.contents()]
                    continue
                data = cell.take(self.label)
                taken.append((cell, len(given)))
                given += data
                data = None  # as it would count as somebody who has the elements
                for k in range(taken[-1][1], len(given)):
                    given[k] = self._placed(cell, given[k])
            free: list[int] = []
            if not (keeps or self.is_fallible):
                for k in range(len(inputs), len(given)):
                    if _references(given, k) == _ALONE and is_its_own(given[k]):
                        free.append(k)
            outputs = program(given, free)
        except BaseException:
            for cell, k in taken:
                cell.give(given[k : k + len(cell.types)])
            raise
        end = self.results
        for cell, _ in taken:
            cell.give(outputs[end : end + len(cell.types)])
            end += len(cell.types)
        return outputs[: self.results]

    def _placed(self, cell: Cell, data: Any) -> Any:
        """Elements on the device of the program."""
        if self.device is CPU or self.device == CPU:
            if type(data) is Remote:
                name = f"jit: {self.label} uses the ref `{cell.name}`"
                differ(name, Array(np.empty(0, np.float32)), Array(data))
            return data
        return moved(Array(data), self.device).contiguous


def _in_order(order: Sequence[int], found: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([found[k] for k in order])


def _with_all(treedef: pytree.TreeDef, order: Sequence[int], found: Sequence[Any]) -> Any:
    return pytree.unflatten(treedef, [found[k] for k in order])


def _references(items: list[Any], k: int) -> int:
    return sys.getrefcount(items[k])


_ALONE = _references([np.empty(1)], 0)
"""References to elements that a list alone has, in the way of counting."""


def _calls_host(block: Block) -> bool:
    """Whether a program calls Python, which may fail."""
    return any(
        [isinstance(op, HostCall) or any(map(_calls_host, op.regions)) for op in block.ops]
    )


def contents(refs: Sequence[Ref]) -> list[Array]:
    """What refs hold."""
    return [x for ref in refs for x in ref.contents()]


def device_of_refs(traced: Traced, leaves: Sequence[Any]) -> Device:
    """Where a function runs because of the refs that it finds outside: where they are, if none of
    its arguments has a device of its own.

    Args:
        traced: the function.
        leaves: its arguments.
    """
    if not traced.touched or any([not (x.type.weak or not x.ndim) for x in leaves]):
        return CPU
    return device_of_all([x for ref in traced.touched for x in _outside(ref.cell)] or leaves)


def _outside(cell: Cell) -> list[Array]:
    return [] if cell.home is not None else cell.contents()


def bind_call(
    traced: Traced, state: State | None, cells: Sequence[Cell], leaves: Sequence[Any]
) -> Any:
    """A call of a traced function, as an op.

    Args:
        traced: the function.
        state: its refs, if it uses some.
        cells: those of this call.
        leaves: its arguments.

    Returns:
        The result.
    """
    held: list[Any] = []
    if state is not None:
        for cell, is_read in zip(cells, state.read, strict=True):
            held += load(cell, is_read)
    local = {c.name for c in cells if c.home is not None and c.param is None}
    noted = traced.trace.noted.values()
    note_effects([each for each in noted if each.effect.target not in local])
    found = traced.results([*traced.captured, *leaves, *held])
    if state is None:
        return pytree.unflatten(traced.treedef, found)
    rest = iter(found[state.results :])
    for cell, place, is_written in zip(cells, state.places, state.written, strict=True):
        if is_written:
            store(cell, [next(rest) for _ in cell.types], place)
    result = pytree.unflatten(traced.treedef, found[: state.results])
    return state.with_returned(result, cells)


def without_refs(
    leaves: Sequence[Any], treedef: pytree.TreeDef, label: str
) -> tuple[list[Any], pytree.TreeDef, dict[int, Ref]]:
    """Arguments of a call without the refs among them.

    Args:
        leaves: the leaves.
        treedef: their structure.
        label: what messages call the function.

    Returns:
        The other leaves, their structure, and the refs by their positions among all leaves.

    Raises:
        StateError: one is there twice.
    """
    refs = {k: x for k, x in enumerate(leaves) if isinstance(x, Ref)}
    if not refs:
        return list(leaves), treedef, refs
    distinct([*refs.values()], label)
    return [x for x in leaves if not isinstance(x, Ref)], _reduced(treedef, tuple(refs)), refs


@functools.lru_cache(1024)
def _reduced(treedef: pytree.TreeDef, places: tuple[int, ...]) -> pytree.TreeDef:
    """A structure without the leaves at some places."""
    # None is an empty subtree.
    leaves = [None if k in places else 0 for k in range(treedef.num_leaves)]
    return pytree.structure(pytree.unflatten(treedef, leaves))


def with_refs(
    leaves: Sequence[Any], treedef: pytree.TreeDef, refs: dict[int, Ref], is_traced: bool = False
) -> Any:
    """The tree that `without_refs` took apart, with other leaves.

    Args:
        leaves: the leaves.
        treedef: the structure of all.
        refs: the refs by their positions.
        is_traced: whether what uses them is traced, and gets what stands for them.
    """
    if not refs:
        return pytree.unflatten(treedef, leaves)
    rest = iter(leaves)
    names = {k: n for n, k in enumerate(refs)}
    return pytree.unflatten(
        treedef,
        [
            next(rest) if k not in refs else stand_in(refs[k], names[k]) if is_traced else refs[k]
            for k in range(treedef.num_leaves)
        ],
    )
