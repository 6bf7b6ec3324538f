"""Loads, stores, atomics and the copies that threads start."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.bulk import bulk_copy
from tests.ptx.decode import PACKED, SPACES, Decode, Decoder, Place, items
from tests.ptx.machine import Run, no_op
from tests.ptx.memory import Array, Fault
from tests.ptx.parser import Address, Instruction, Operand, Reg, Symbol
from tests.ptx.rounding import maximum, minimum

Function = Callable[[Array, Array], Array]
_HINTS = {
    "ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "weak", "volatile", "relaxed", "acquire",
    "release", "acq_rel", "cta", "gpu", "sys", "cluster", "mmio",
}  # fmt: skip


def _space(ins: Instruction) -> str:
    for part in ins.parts[1:]:
        if part in SPACES:
            return part.split("::")[0]
    return "generic"


def _vector(d: Decoder, ins: Instruction, given: int) -> int:
    count = next((int(p[1:]) for p in ins.parts if p in ("v2", "v4", "v8")), 1)
    if count != given:
        raise d.fail(f"{given} registers for {count} elements")
    return count


def _modifiers(d: Decoder, ins: Instruction) -> None:
    for part in ins.parts[1:-1]:
        known = part in _HINTS or part in SPACES or part in ("v2", "v4", "v8")
        if not known and not part.startswith(("L1::", "L2::")):
            raise d.fail(f".{part} is not known")


def _load(d: Decoder, ins: Instruction) -> Run:
    _modifiers(d, ins)
    type_, space = ins.parts[-1], _space(ins)
    results = items(ins.operands[0])
    count = _vector(d, ins, len(results))
    dtype = d.dtype(type_)
    puts = [d.put(x, type_) for x in results]
    operand = ins.operands[1]
    # Parameters are the same for all threads.
    if space == "param" and isinstance(operand, Address) and isinstance(operand.base, Symbol):
        return _load_param(d, operand, dtype, puts)
    place, machine = d.place(operand), d.machine
    symbol_space = _symbol_space(d, operand)
    if symbol_space and space == "generic":
        space = symbol_space
    width = dtype.itemsize
    wide = [np.zeros(machine.lanes, dtype) for _ in puts]

    def run(mask: Array, full: bool) -> None:
        lanes = machine.picked(mask, full)
        loaded = machine.memory.load(space, place.at(lanes), width, count, lanes)
        for put, values, whole in zip(puts, loaded, wide, strict=True):
            if len(lanes) == machine.lanes:
                put(values.view(dtype), mask, full)
            else:
                whole[lanes] = values.view(dtype)
                put(whole, mask, full)

    return run


def _symbol_space(d: Decoder, operand: Operand) -> str:
    if isinstance(operand, Address) and isinstance(operand.base, Symbol):
        return d.symbols.get(operand.base.name, ("", 0))[0]
    return ""


def _load_param(
    d: Decoder,
    operand: Address,
    dtype: np.dtype[np.generic],
    puts: list[Callable[[Array, Array, bool], None]],
) -> Run:
    base = operand.base
    assert isinstance(base, Symbol)
    if base.name not in d.params:
        raise d.fail(f"there is no parameter {base.name}")
    param = d.params[base.name]
    if operand.offset + dtype.itemsize * len(puts) > param.size:
        raise d.fail(f"parameter {base.name} has {param.size} bytes")
    start = param.offset + operand.offset
    raw = d.machine.memory.params[start : start + dtype.itemsize * len(puts)].copy().view(dtype)
    values = [d.constant(value, dtype) for value in raw]

    def run(mask: Array, full: bool) -> None:
        for put, value in zip(puts, values, strict=True):
            put(value, mask, full)

    return run


def _store(d: Decoder, ins: Instruction) -> Run:
    _modifiers(d, ins)
    type_, space = ins.parts[-1], _space(ins)
    parts = items(ins.operands[1])
    _vector(d, ins, len(parts))
    dtype = d.dtype(type_)
    raw = np.dtype(f"u{dtype.itemsize}")
    sources = [d.src(x, type_) for x in parts]
    place, machine = d.place(ins.operands[0]), d.machine
    symbol_space = _symbol_space(d, ins.operands[0])
    if symbol_space and space == "generic":
        space = symbol_space

    def run(mask: Array, full: bool) -> None:
        lanes = machine.picked(mask, full)
        values = [source[lanes].view(raw) for source in sources]
        machine.memory.store(space, place.at(lanes), values, raw.itemsize, lanes)

    return run


# --- atomics ---


def _wrap_increment(old: Array, limit: Array) -> Array:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _wrap_decrement(old: Array, limit: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


_COMBINE: dict[str, Function] = {
    "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "exch": lambda old, new: new, "inc": _wrap_increment, "dec": _wrap_decrement,
}  # fmt: skip


def _combine(d: Decoder, ins: Instruction) -> Function:
    type_ = ins.parts[-1]
    for part in ins.parts[1:]:
        if part in ("min", "max"):
            if type_.startswith(("f", "bf")):
                return minimum if part == "min" else maximum
            return np.minimum if part == "min" else np.maximum
        if part in _COMBINE:
            return _COMBINE[part]
    raise d.fail("this atomic is not supported")


def _atomic(d: Decoder, ins: Instruction) -> Run:
    """Lane by lane where two lanes meet at one address, all at once elsewhere."""
    type_, space = ins.parts[-1], _space(ins)
    gives = ins.parts[0] == "atom"
    operands = ins.operands[1:] if gives else ins.operands
    place, machine = d.place(operands[0]), d.machine
    dtype = PACKED[type_] if type_ in PACKED else d.dtype(type_)
    swap = "cas" in ins.parts
    results = items(ins.operands[0]) if gives else ()
    register_type = "b32" if type_ in PACKED else type_
    puts = [d.put(x, register_type) for x in results]
    parts = items(operands[1])
    sources = [d.src(x, register_type) for x in parts]
    expected = sources[0] if swap else None
    if swap:
        sources = [d.src(operands[2], type_)]
    function = (lambda old, new: new) if swap else _combine(d, ins)
    width = d.dtype(register_type).itemsize
    raw = np.dtype(f"u{width}")
    size = width * len(sources)

    def once(lanes: Array) -> list[Array]:
        addresses = place.at(lanes)
        with machine.accesses("atomic"):
            old = machine.memory.load(space, addresses, width, len(sources), lanes)
        fresh: list[Array] = []
        for before, source in zip(old, sources, strict=True):
            before = np.ascontiguousarray(before)
            given = np.ascontiguousarray(source[lanes])
            if type_ in PACKED:
                shape = (-1, 2)
                both = function(before.view(dtype).reshape(shape), given.view(dtype).reshape(shape))
                fresh.append(np.ascontiguousarray(both).astype(dtype).view(raw).reshape(-1))
                continue
            new = np.asarray(function(before.view(dtype), given.view(dtype)), dtype).view(raw)
            if expected is not None:
                new = np.where(before == expected[lanes].view(raw), new, before)
            fresh.append(new)
        with machine.accesses("atomic"):
            machine.memory.store(space, addresses, fresh, width, lanes)
        return old

    def run(mask: Array, full: bool) -> None:
        del full
        lanes = np.flatnonzero(mask)
        found = [np.zeros(machine.lanes, raw) for _ in sources]
        for turn in _turns(_keys(machine, space, place.at(lanes), lanes) // size, lanes):
            for whole, old in zip(found, once(turn), strict=True):
                whole[turn] = old
        for put, whole in zip(puts, found, strict=gives):
            put(whole.view(d.dtype(register_type)), mask, False)

    return run


def _keys(machine: object, space: str, addresses: Array, lanes: Array) -> Array:
    """What makes two lanes meet: in shared memory, the block too."""
    if space in ("shared", "generic"):
        blocks = lanes // machine.padded  # type: ignore[attr-defined]
        return addresses + blocks * (1 << 20) * (addresses < (1 << 40))
    return addresses


def _turns(keys: Array, lanes: Array) -> list[Array]:
    """The lanes in as few turns as no two of a turn meet; lower lanes first."""
    found: list[Array] = []
    while len(lanes):
        _, first = np.unique(keys, return_index=True)
        if len(first) == len(lanes):
            found.append(lanes)
            break
        first.sort()
        found.append(lanes[first])
        keep = np.ones(len(lanes), bool)
        keep[first] = False
        keys, lanes = keys[keep], lanes[keep]
    return found


# --- copies that threads start ---


def _copy(d: Decoder, ins: Instruction) -> Run:
    parts = ins.parts
    if "bulk" in parts:
        return bulk_copy(d, ins)
    machine = d.machine
    if "commit_group" in parts:
        return lambda mask, full: machine.copies.commit(mask)
    if "wait_all" in parts:
        return lambda mask, full: machine.copies.wait(mask, None)
    if "wait_group" in parts:
        pending = int(d.src(ins.operands[0], "u32")[0])
        return lambda mask, full: machine.copies.wait(mask, pending)
    if "mbarrier" in parts:
        raise d.fail("arrivals of cp.async at an mbarrier are not supported")
    size = int(d.src(ins.operands[2], "u32")[0])
    if size not in (4, 8, 16) or ("cg" in parts and size != 16):
        raise d.fail(f"no copy of {size} bytes")
    given = d.src(ins.operands[3], "u32") if _has_size(ins) else None
    target, source = d.place(ins.operands[0]), d.place(ins.operands[1])
    return _threads_copy(d, target, source, size, given)


def _has_size(ins: Instruction) -> bool:
    if len(ins.operands) < 4 or (
        any("cache_hint" in part for part in ins.parts) and len(ins.operands) == 4
    ):
        return False
    return not (isinstance(ins.operands[3], Reg) and ins.operands[3].name.startswith("%p"))


def _threads_copy(d: Decoder, target: Place, source: Place, size: int, given: Array | None) -> Run:
    machine = d.machine
    memory = machine.memory
    width = min(size, 8)

    def start(mask: Array, full: bool) -> None:
        lanes = machine.picked(mask, full)
        to, of = np.zeros(machine.lanes, "i8"), np.zeros(machine.lanes, "i8")
        to[lanes], of[lanes] = target.at(lanes), source.at(lanes)
        count = None if given is None else given.copy()
        memory.shared.place(to[lanes], lanes, size)  # faults now, whenever the copy is done
        if (of[lanes] % size).any():
            at = int(np.flatnonzero(of[lanes] % size)[0])
            raise Fault(f"source {int(of[lanes][at]):#x} is no multiple of {size}", int(lanes[at]))

        def copy(due: Array) -> None:
            picked = np.flatnonzero(due)
            parts = [np.zeros(len(picked), f"u{width}") for _ in range(size // width)]
            if count is None:
                parts = memory.load("global", of[picked], width, size // width, picked)
            else:
                raw = _partial(memory.load, of[picked], count[picked], size, picked)
                parts = [raw.view(f"u{width}")[:, i] for i in range(size // width)]
            memory.store("shared", to[picked], parts, width, picked)

        machine.copies.start(mask, copy)

    return start


def _partial(
    load: Callable[[str, Array, int, int, Array], list[Array]],
    of: Array,
    count: Array,
    size: int,
    lanes: Array,
) -> Array:
    """The first `count` bytes at each address, and zeros."""
    raw = np.zeros((len(lanes), size), "u1")
    for length in np.unique(count):
        here = np.flatnonzero(count == length)
        if length > size:
            raise Fault(f"{int(length)} of {size} bytes", int(lanes[here[0]]))
        for i in range(int(length)):
            raw[here, i] = load("global", of[here] + i, 1, 1, lanes[here])[0]
    return raw


def _prefetch(d: Decoder, ins: Instruction) -> Run:
    del d, ins
    return no_op


ACCESS: dict[str, Decode] = {
    "ld": _load, "ldu": _load, "st": _store, "atom": _atomic, "red": _atomic, "cp": _copy,
    "prefetch": _prefetch, "prefetchu": _prefetch, "membar": _prefetch, "fence": _prefetch,
    "griddepcontrol": _prefetch, "discard": _prefetch, "applypriority": _prefetch,
}  # fmt: skip
"""How each of them is decoded."""
