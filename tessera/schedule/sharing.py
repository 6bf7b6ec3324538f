"""Which buffers of a program may lie on others, and what is gained where they do.

An output of a kernel that is computed element by element may take the memory of an input that
nobody needs any more: each element is read before it is written. `plan` decides who does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, FloorDiv, Mod, Sym, symbols
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.types import Axis, Place, PlaceKind


def delay_updates(func: Func, donated: Collection[int]) -> Func:
    """Kernels that compute outputs of donated inputs, element by element, come after all others
    that read these inputs: then the outputs may lie on them.

    Args:
        func: a program.
        donated: the inputs whose memory it may write to.
    """
    code = func.body.ops
    readers: dict[Value, int] = {}
    first: dict[Value, int] = {}
    for k, op in enumerate(code):
        for value in _read(op):
            readers[value] = k
            first.setdefault(value, k)
    targets: list[int] = []
    for k, op in enumerate(code):
        until = k
        for arg in [func.args[n] for n in sorted(donated)] if isinstance(op, ops.Kernel) else ():
            if readers.get(arg, k) > until and _is_update(op, arg, func):
                until = readers[arg]
        is_free = all([first.get(value, until + 1) > until for value in op.results])
        targets.append(until if is_free else k)
    if targets == list(range(len(code))):
        return func
    # Behind the op at the position; what stays there, or comes from before, keeps its order.
    order = sorted(range(len(code)), key=lambda k: (targets[k], targets[k] != k, k))
    return func.with_body(Block(func.args, [code[k] for k in order], func.outputs))


def _read(op: Op) -> Iterator[Value]:
    """What an op reads, also in its regions."""
    yield from op.operands
    for region in op.regions if not isinstance(op, ops.Kernel) else ():
        for inner in walk(region):
            yield from inner.operands
        yield from region.outputs


def _is_update(op: Op, arg: Value, func: Func) -> bool:
    """Whether an output of the program that a kernel computes may lie on one of its inputs."""
    if not isinstance(op, ops.Kernel) or list(op.inputs).count(arg) != 1:
        return False
    j = list(op.inputs).index(arg)
    return any([v in func.outputs and may_share(op, j, k) for k, v in enumerate(op.results)])


def may_share(op: ops.Kernel, j: int, k: int) -> bool:
    """Whether output k may lie on input j: every element is read at the point that writes it,
    before it is written, and nowhere else."""
    source, target = op.body.args[j], op.body.args[len(op.inputs) + k]
    if source.type != target.type or k >= len(op.types) - op.temps:
        return False
    found: list[tuple[int, Op]] = []
    for n, part in enumerate(op.body.ops):
        if not isinstance(part, ops.Nest):
            return False
        found += [(n, one) for one in _touching(part.body, (source, target))]
    reads = [(n, one) for n, one in found if source in one.operands]
    writes = [(n, one) for n, one in found if target in one.operands]
    if not reads or not writes:
        return False
    nest, first = writes[0]
    if not isinstance(first, ops.Store) or first.combine is not None or first.dyn:
        return False
    if first.keeps:
        return False  # it is written before other elements of the row are read
    if any(n == nest for n, _ in writes[1:]) or _is_in_many(op.body.ops[nest], first):
        return False
    behind = {n for n, _ in reads if n != nest}
    if behind and len(behind) == len({n for n, _ in reads}):
        return False  # what is stored first is no copy
    if behind:
        # A nest that changes some elements of a copy may read what the point itself changes.
        where = {source: _ANYWHERE, target: _ANYWHERE}
        if not _copies_in_place(op.body.ops[nest], where) or {n for n, _ in writes[1:]} != behind:
            return False
        if len(behind) > 1 or not _changes_each_once(op.body.ops[min(behind)], source, target):
            return False
        reads = [(n, one) for n, one in reads if n == nest]
    # A load inside a reduction runs again after other points have been written, and one behind the
    # store would read what was stored.
    body = op.body.ops[nest].regions[0].ops
    before = body[: body.index(first)] if first in body else ()
    return all(
        isinstance(one, ops.Load)
        and (one.index, tuple(one.where)) == (first.index, tuple(first.where))
        and one in before
        for _, one in reads
    )


def is_made_of(op: ops.Kernel, j: int, k: int) -> bool:
    """Whether output k is computed of what is read from input j at its points."""
    source, target = op.body.args[j], op.body.args[len(op.inputs) + k]
    stores = [one for one in _touching(op.body, (target,)) if isinstance(one, ops.Store)]
    seen: set[Value] = set()
    pending = [one.value for one in stores]
    while pending:
        value = pending.pop()
        if value in seen or value.op is None:
            continue
        seen.add(value)
        if isinstance(value.op, ops.Load) and value.op.buf is source:
            return True
        pending += value.op.operands
    return False


def _is_in_many(nest: Op, store: ops.Store) -> bool:
    """Whether several programs of a nest write the same elements, so that one of them may read what
    another has written."""
    assert isinstance(nest, ops.Nest)
    told = frozenset[str]().union(*[symbols(dim) for dim in store.index])
    pairs = zip(nest.axes, nest.chunk, strict=False)
    return any([chunk and axis.extent != 1 and axis.name not in told for axis, chunk in pairs])


_ANYWHERE = Place(PlaceKind.ARENA, 0)


def _changes_each_once(nest: Op, source: Value, target: Value) -> bool:
    """Whether a nest stores once to the target, at another element at each point, and reads from
    the source that element alone, before."""
    assert isinstance(nest, ops.Nest)
    touching = list(_touching(nest.body, (source, target)))
    *loads, store = touching
    if not isinstance(store, ops.Store) or store.combine is not None or store.keeps:
        return False
    if store.buf is not target:
        return False
    if not all([_tells(store.index, axis) for axis in nest.axes]):
        return False
    return store in nest.body.ops and all(
        isinstance(one, ops.Load)
        and one in nest.body.ops
        and one.buf is source
        and (one.index, tuple(one.dyn)) == (store.index, tuple(store.dyn))
        for one in loads
    )


def _tells(index: Sequence[Dim], axis: Axis) -> bool:
    """Whether an index tells where a point lies along an axis: it has that number, or all of its
    digits, such as `i // 16` and `i % 16`."""
    digits: dict[int, int | None] = {}
    for dim in index:
        found = _digit(dim, axis.name)
        if found is not None and digits.get(found[0], 0) is not None:
            digits[found[0]] = found[1]
    place: int | None = 1
    while place in digits:
        base = digits[place]
        place = None if base is None else place * base
    extent = axis.extent
    return place is None or (isinstance(extent, int) and place >= extent)


def _digit(dim: Dim, name: str) -> tuple[int, int | None] | None:
    """What an index has of a number: that divided by the first, modulo the second if that is
    there."""
    if isinstance(dim, Sym):
        return (1, None) if dim.name == name else None
    if not isinstance(dim, (FloorDiv, Mod)) or not isinstance(dim.den, int):
        return None
    inner = _digit(dim.num, name)
    if inner is None:
        return None
    place, base = inner
    if isinstance(dim, Mod):
        return (place, dim.den) if base is None or base % dim.den == 0 else None
    if base is None:
        return place * dim.den, None
    return (place * dim.den, base // dim.den) if base % dim.den == 0 else None


def without_copies(op: ops.Kernel, inputs: Sequence[Place], outputs: Sequence[Place]) -> Block:
    """The body without nests that copy a buffer to where it lies."""
    where = dict(zip(op.body.args, (*inputs, *outputs), strict=True))
    code = [one for one in op.body.ops if not _copies_in_place(one, where)]
    return Block(op.body.args, code, ())


def _copies_in_place(op: Op, where: Mapping[Value, Place]) -> bool:
    if not isinstance(op, ops.Nest) or len(op.body.ops) != 2:
        return False
    load, store = op.body.ops
    return (
        isinstance(load, ops.Load)
        and isinstance(store, ops.Store)
        and store.value is load.result
        and where[load.buf] == where[store.buf]
        and load.index == store.index
        and not (load.where or load.dyn or store.where or store.dyn or store.combine)
    )


def _touching(block: Block, values: tuple[Value, ...]) -> Iterator[Op]:
    for op in walk(block):
        if any(v in values for v in op.operands):
            yield op
