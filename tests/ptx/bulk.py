"""The copy engine and the barriers that count its bytes.

One thread starts a transfer. Eager: it is done at once. Lazy: one into shared memory is done when
somebody has waited for its barrier in vain, one out of it when its group is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.ptx.decode import Decode, Decoder
from tests.ptx.machine import Machine, Run, no_op
from tests.ptx.memory import PARAM, Array, Fault
from tests.ptx.parser import Address, Group, Instruction, Operand, Reg

_TX_LIMIT = 1 << 20


@dataclass
class TensorMap:
    """What a tensor map says; extents and box are fastest first.

    Attributes:
        array: the tensor's memory.
        dims: extents in elements.
        strides: bytes from one element to the next along each dimension but the first.
        box: extents of what one copy moves.
        swizzle: 0, 32, 64 or 128 bytes.
        offset: of the first element in the array, in bytes.
    """

    array: Array
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    offset: int = 0
    start: int = field(default=0, compare=False)

    @property
    def itemsize(self) -> int:
        return self.array.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Of one box."""
        return int(np.prod(self.box)) * self.itemsize

    def elements(self, coords: tuple[int, ...]) -> tuple[Array, Array]:
        """The address of each element of a box, and whether it lies in the tensor."""
        shape = self.box[::-1]
        address = np.full(shape, self.start + self.offset, "i8")
        inside = np.ones(shape, bool)
        rank = len(self.box)
        for axis, (at, extent, size) in enumerate(zip(coords, self.dims, self.box, strict=True)):
            index = at + np.arange(size)
            view = [1] * rank
            view[rank - 1 - axis] = size
            step = self.itemsize if axis == 0 else self.strides[axis - 1]
            address += (index * step).reshape(view)
            inside &= ((index >= 0) & (index < extent)).reshape(view)
        return address.reshape(-1), inside.reshape(-1)

    def places(self, start: int) -> Array:
        """The shared address of each element of a box."""
        at = start + np.arange(int(np.prod(self.box)), dtype="i8") * self.itemsize
        if self.swizzle:
            at ^= ((at >> 7) & (self.swizzle // 16 - 1)) << 4
        return at


@dataclass
class Barrier:
    """An mbarrier."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0
    # What those have seen who arrived: in this phase, and in all that are over.
    arrived: Array | None = None
    seen: Array | None = None
    # Transfers that were started and are not yet done, oldest first.
    waiting: list[Callable[[], None]] = field(default_factory=list)

    def settle(self) -> None:
        """Complete the phase if nothing is missing."""
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count
            self.seen, self.arrived = _join(self.seen, self.arrived), None


def _join(a: Array | None, b: Array | None) -> Array | None:
    if a is None or b is None:
        return b if a is None else a
    return np.maximum(a, b)


class Barriers:
    """The mbarriers of the resident blocks."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.found: dict[tuple[int, int], Barrier] = {}
        machine.on_start.append(self.found.clear)
        machine.waiters.append(self.progress)

    def at(self, lane: int, address: int) -> Barrier:
        """The barrier at an address."""
        barrier = self.found.get((lane // self.machine.padded, address))
        if barrier is None:
            raise Fault("there is no mbarrier here: it was not initialised", lane)
        return barrier

    def arrive(self, lane: int, barrier: Barrier, count: int) -> int:
        """Arrivals; gives the phase that they count for."""
        phase = barrier.phase
        if barrier.pending < count:
            raise Fault(f"more than {barrier.count} arrivals at the mbarrier in a phase", lane)
        barrier.pending -= count
        races = self.machine.races
        if races is not None:
            block, warp = divmod(lane // 32, races.warps)
            barrier.arrived = _join(barrier.arrived, races.clocks[block, warp].copy())
            races.clocks[block, warp, warp] += 1
        barrier.settle()
        return phase

    def waited(self, lane: int, barrier: Barrier) -> None:
        """A wait is over: the lane's warp has seen what those did who arrived."""
        races = self.machine.races
        if races is not None and barrier.seen is not None:
            races.take(*divmod(lane // 32, races.warps), barrier.seen)

    def expect(self, lane: int, barrier: Barrier, size: int) -> None:
        """Bytes are added to what a phase waits for."""
        barrier.bytes += size
        if abs(barrier.bytes) >= _TX_LIMIT:
            raise Fault(f"{barrier.bytes} bytes are outstanding at the mbarrier", lane)

    def progress(self) -> bool:
        """Do one transfer of each barrier; whether there was one."""
        moved = False
        for barrier in list(self.found.values()):
            if barrier.waiting:
                barrier.waiting.pop(0)()
                moved = True
        return moved


def _barriers(d: Decoder) -> Barriers:
    found: Any = d.made.get("mbarriers")
    if found is None:
        found = Barriers(d.machine)
        d.made["mbarriers"] = found
    return found


def _mbarrier(d: Decoder, ins: Instruction) -> Run:
    action = ins.parts[1]
    decoders = {"init": _init, "inval": _inval, "arrive": _arrive, "arrive_drop": _arrive,
                "expect_tx": _expect, "test_wait": _test, "try_wait": _test}  # fmt: skip
    if action not in decoders:
        raise d.fail("this is not supported")
    return decoders[action](d, ins)


def _each(
    d: Decoder, operand: Operand, action: Callable[[int, int], None]
) -> Callable[[Array], None]:
    """An action for each lane with the shared address that an operand gives."""
    place = d.place(operand)

    def run(mask: Array) -> None:
        lanes = np.flatnonzero(mask)
        addresses = place.at(lanes)
        d_memory.shared.place(addresses, lanes, 8)
        for lane, address in zip(lanes.tolist(), addresses.tolist(), strict=True):
            action(lane, address)

    d_memory = d.machine.memory
    return run


def _init(d: Decoder, ins: Instruction) -> Run:
    barriers, machine = _barriers(d), d.machine
    counts = d.src(ins.operands[1], "u32")

    def init(lane: int, address: int) -> None:
        count = int(counts[lane])
        if not 0 < count < _TX_LIMIT:
            raise Fault(f"an mbarrier of {count} arrivals", lane)
        barriers.found[lane // machine.padded, address] = Barrier(count, count)

    each = _each(d, ins.operands[0], init)
    return lambda mask, full: each(mask)


def _inval(d: Decoder, ins: Instruction) -> Run:
    barriers, machine = _barriers(d), d.machine

    def inval(lane: int, address: int) -> None:
        barriers.at(lane, address)
        del barriers.found[lane // machine.padded, address]

    each = _each(d, ins.operands[0], inval)
    return lambda mask, full: each(mask)


def _arrive(d: Decoder, ins: Instruction) -> Run:
    barriers = _barriers(d)
    if "noComplete" in ins.parts:
        raise d.fail(".noComplete is not supported")
    drop, expect = ins.parts[1] == "arrive_drop", "expect_tx" in ins.parts
    with_state = not isinstance(ins.operands[0], Address)
    operands = ins.operands[1:] if with_state else ins.operands
    put = d.put(ins.operands[0], "b64") if with_state else None
    extra = d.src(operands[1], "u32") if len(operands) > 1 else None
    states = np.zeros(d.machine.lanes, "u8")

    def arrive(lane: int, address: int) -> None:
        barrier = barriers.at(lane, address)
        count = 1
        if extra is not None and expect:
            barriers.expect(lane, barrier, int(extra[lane]))
        elif extra is not None:
            count = int(extra[lane])
        if drop:
            barrier.count -= count
        states[lane] = barriers.arrive(lane, barrier, count)

    each = _each(d, operands[0], arrive)

    def run(mask: Array, full: bool) -> None:
        each(mask)
        if put is not None:
            put(states, mask, full)

    return run


def _expect(d: Decoder, ins: Instruction) -> Run:
    barriers = _barriers(d)
    sizes = d.src(ins.operands[1], "u32")

    def expect(lane: int, address: int) -> None:
        barriers.expect(lane, barriers.at(lane, address), int(sizes[lane]))

    each = _each(d, ins.operands[0], expect)
    return lambda mask, full: each(mask)


def _test(d: Decoder, ins: Instruction) -> Run:
    """Whether a phase is over; a wait in vain lets others run."""
    barriers, machine = _barriers(d), d.machine
    by_parity = "parity" in ins.parts
    wanted = d.src(ins.operands[2], "u32" if by_parity else "u64")
    put = d.put(ins.operands[0], "pred")
    done = np.zeros(machine.lanes, bool)

    def test(lane: int, address: int) -> None:
        barrier = barriers.at(lane, address)
        if by_parity:
            done[lane] = barrier.phase % 2 != int(wanted[lane])
        else:
            done[lane] = barrier.phase > int(wanted[lane])
        if done[lane]:
            barriers.waited(lane, barrier)

    each = _each(d, ins.operands[1], test)

    def run(mask: Array, full: bool) -> None:
        each(mask)
        put(done, mask, full)
        if not done[mask].all():
            machine.give_way = True

    return run


# --- copies ---


def bulk_copy(d: Decoder, ins: Instruction) -> Run:
    """`cp.async.bulk` in its forms."""
    parts = ins.parts
    machine = d.machine
    if "commit_group" in parts:
        return lambda mask, full: machine.bulk.commit(mask)
    if "wait_group" in parts:
        pending = int(d.src(ins.operands[0], "u32")[0])
        return lambda mask, full: machine.bulk.wait(mask, pending)
    if "prefetch" in parts:
        return no_op
    if parts[1] != "async" or any("multicast" in part for part in parts):
        raise d.fail("this copy is not supported")
    loads = any(part.startswith("mbarrier") for part in parts)
    if "tensor" in parts:
        return _tensor_load(d, ins) if loads else _tensor_store(d, ins)
    return _load(d, ins) if loads else _store(d, ins)


def _multiple(value: int, of: int, what: str, lane: int) -> None:
    if value % of:
        raise Fault(f"{what} {value:#x} is no multiple of {of}", lane)


def _transfer(
    barriers: Barriers, lane: int, address: int, size: int, move: Callable[[], None]
) -> None:
    """Start a transfer whose bytes count at a barrier."""
    barrier = barriers.at(lane, address)
    phase = barrier.phase

    def complete() -> None:
        with barriers.machine.accesses("engine"):
            move()
        if barrier.phase != phase:
            raise Fault("the phase ended before all bytes were there", lane)
        barrier.bytes -= size
        barrier.settle()

    if barriers.machine.lazy:
        barrier.waiting.append(complete)
    else:
        complete()


def _load(d: Decoder, ins: Instruction) -> Run:
    barriers, memory = _barriers(d), d.machine.memory
    target, source = d.place(ins.operands[0]), d.place(ins.operands[1])
    sizes = d.src(ins.operands[2], "u32")
    bar = d.place(ins.operands[3])

    def run(mask: Array, full: bool) -> None:
        del full
        lanes = np.flatnonzero(mask)
        rows = zip(
            lanes.tolist(), *(p.at(lanes).tolist() for p in (target, source, bar)), strict=True
        )
        for lane, to, of, at in rows:
            size = int(sizes[lane])
            for value, what in ((to, "target"), (of, "source"), (size, "size")):
                _multiple(value, 16, what, lane)
            _transfer(barriers, lane, at, size, _mover(memory, lane, to, of, size, True))

    return run


def _mover(
    memory: Any, lane: int, shared: int, other: int, size: int, inwards: bool
) -> Callable[[], None]:
    """A copy between shared and global memory."""
    lanes = np.full(size // 8, lane)
    near = shared + 8 * np.arange(size // 8, dtype="i8")
    far = other + 8 * np.arange(size // 8, dtype="i8")

    def move() -> None:
        if not size:
            return
        if inwards:
            memory.store("shared", near, memory.load("global", far, 8, 1, lanes), 8, lanes)
        else:
            memory.store("global", far, memory.load("shared", near, 8, 1, lanes), 8, lanes)

    return move


def _store(d: Decoder, ins: Instruction) -> Run:
    machine = d.machine
    target, source = d.place(ins.operands[0]), d.place(ins.operands[1])
    sizes = d.src(ins.operands[2], "u32")

    def run(mask: Array, full: bool) -> None:
        del full
        moves: dict[int, Callable[[], None]] = {}
        lanes = np.flatnonzero(mask)
        for lane, to, of in zip(
            lanes.tolist(), target.at(lanes).tolist(), source.at(lanes).tolist(), strict=True
        ):
            size = int(sizes[lane])
            for value, what in ((to, "target"), (of, "source"), (size, "size")):
                _multiple(value, 16, what, lane)
            moves[lane] = _mover(machine.memory, lane, of, to, size, False)
        machine.bulk.start(mask, lambda due: _do(machine, moves, due))

    return run


def _do(machine: Machine, moves: dict[int, Callable[[], None]], due: Array) -> None:
    with machine.accesses("engine"):
        for lane in np.flatnonzero(due).tolist():
            moves[lane]()


# --- boxes of tensors ---


def _tensor(d: Decoder, operand: Operand) -> tuple[Callable[[int], TensorMap], list[Array]]:
    """The tensor map of a lane, and the coordinates."""
    if not isinstance(operand, Address) or not isinstance(operand.base, Reg):
        raise d.fail("a tensor map is passed by its address in a register")
    place = d.place(Address(operand.base, operand.offset))
    (group,) = operand.more
    if not isinstance(group, Group):
        raise d.fail("coordinates stand in braces")
    coords = [d.src(x, "s32") for x in group.items]
    maps = d.machine.maps

    def find(lane: int) -> TensorMap:
        address = int(place.at(np.array([lane]))[0])
        found = maps.get(address - PARAM)
        if found is None:
            raise Fault(f"there is no tensor map at {address:#x}", lane)
        if len(found.box) != len(coords):
            raise Fault(f"{len(coords)} coordinates of a tensor of rank {len(found.box)}", lane)
        return found

    return find, coords


def _box_align(tensor: TensorMap) -> int:
    return max(128, tensor.swizzle * 8)


def _tensor_load(d: Decoder, ins: Instruction) -> Run:
    barriers, memory = _barriers(d), d.machine.memory
    target, bar = d.place(ins.operands[0]), d.place(ins.operands[2])
    find, coords = _tensor(d, ins.operands[1])

    def run(mask: Array, full: bool) -> None:
        del full
        lanes = np.flatnonzero(mask)
        for lane, to, at in zip(
            lanes.tolist(), target.at(lanes).tolist(), bar.at(lanes).tolist(), strict=True
        ):
            tensor = find(lane)
            _multiple(to - 1024, _box_align(tensor), "target", lane)
            address, inside = tensor.elements(tuple(int(c[lane]) for c in coords))
            places, width = tensor.places(to), tensor.itemsize
            who = np.full(len(places), lane)

            def move(
                address: Array = address, inside: Array = inside, places: Array = places,
                who: Array = who, width: int = width,
            ) -> None:  # fmt: skip
                values = np.zeros(len(places), f"u{width}")
                if inside.any():
                    (loaded,) = memory.load("global", address[inside], width, 1, who[inside])
                    values[inside] = loaded
                memory.store("shared", places, [values], width, who)

            _transfer(barriers, lane, at, tensor.bytes, move)

    return run


def _tensor_store(d: Decoder, ins: Instruction) -> Run:
    machine = d.machine
    memory = machine.memory
    find, coords = _tensor(d, ins.operands[0])
    source = d.place(ins.operands[1])

    def run(mask: Array, full: bool) -> None:
        del full
        moves: dict[int, Callable[[], None]] = {}
        lanes = np.flatnonzero(mask)
        for lane, of in zip(lanes.tolist(), source.at(lanes).tolist(), strict=True):
            tensor = find(lane)
            _multiple(of - 1024, _box_align(tensor), "source", lane)
            address, inside = tensor.elements(tuple(int(c[lane]) for c in coords))
            places, width = tensor.places(of)[inside], tensor.itemsize
            far, who = address[inside], np.full(len(places), lane)

            def move(
                far: Array = far, places: Array = places, who: Array = who, width: int = width
            ) -> None:
                if len(far):
                    values = memory.load("shared", places, width, 1, who)
                    memory.store("global", far, values, width, who)

            moves[lane] = move
        machine.bulk.start(mask, lambda due: _do(machine, moves, due))

    return run


BULK: dict[str, Decode] = {"mbarrier": _mbarrier}
"""How each of them is decoded."""
