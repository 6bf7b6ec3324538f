"""What the lanes of a warp do together: shuffles, votes, reductions, and matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.ptx.decode import Decode, Decoder, items, pair
from tests.ptx.machine import Run, no_op
from tests.ptx.memory import SHARED, Array, Fault
from tests.ptx.parser import Imm, Instruction
from tests.ptx.rounding import BF16, E4M3, E5M2, narrow

_LANE = np.arange(32)
_EVERYBODY = np.uint32(0xFFFFFFFF)
_BITS = np.left_shift(np.uint32(1), np.arange(32, dtype="u4"))


def _partners(d: Decoder, members: Array) -> Callable[[Array], Array]:
    """For each lane the bits of the lanes that take part with it."""
    lane_bit = d.special["%lanemask_eq"]

    def partners(mask: Array) -> Array:
        outside = mask & ((members & lane_bit) == 0)
        if outside.any():
            raise Fault("the lane is not in its own mask", int(np.argmax(outside)))
        return members & _ballot(mask)

    return partners


def _ballot(flags: Array) -> Array:
    """For each lane the bits of its warp's lanes for which a flag holds."""
    words = np.where(flags.reshape(-1, 32), _BITS, np.uint32(0)).sum(axis=1, dtype="u4")
    return np.repeat(words, 32)


def _shuffle(d: Decoder, ins: Instruction) -> Run:
    mode = ins.parts[2]
    value = d.src(ins.operands[1], "b32")
    by, limit = (d.src(x, "u32") for x in ins.operands[2:4])
    members = d.src(ins.operands[4], "u32")
    d.warpwide(ins.operands[4])
    first, second = pair(ins.operands[0])
    put = d.put(first, "b32")
    put_inside = None if second is None else d.put(second, "pred")
    base = d.machine.lane - d.machine.lane % 32
    partners = _partners(d, members)
    fixed = all(isinstance(x, Imm) for x in ins.operands[2:5])
    known = _source(d, mode, by, limit) if fixed else None
    everybody = fixed and bool((members == _EVERYBODY).all())
    machine = d.machine

    def run(mask: Array, full: bool) -> None:
        source, inside = known or _source(d, mode, by, limit)
        if not (everybody and full and machine.alive == machine.lanes):
            present = (partners(mask) >> source.astype("u4")) & np.uint32(1)
            lost = mask & (present == 0)
            if lost.any():
                at = int(np.argmax(lost))
                raise Fault(f"lane {int(source[at])} takes no part in the shuffle", at)
        result = value[base + source]
        put(result, mask, full)
        if put_inside is not None:
            put_inside(inside, mask, full)

    return run


def _source(d: Decoder, mode: str, by: Array, limit: Array) -> tuple[Array, Array]:
    """The lane that each lane reads, and whether it lies in its part of the warp."""
    lane = (d.machine.lane % 32).astype("i8")
    b = (by & np.uint32(31)).astype("i8")
    end = (limit & np.uint32(31)).astype("i8")
    segment = ((limit >> np.uint32(8)) & np.uint32(31)).astype("i8")
    last = (lane & segment) | (end & ~segment)
    if mode == "up":
        source = lane - b
        inside = source >= last
    else:
        source = {
            "down": lane + b,
            "bfly": lane ^ b,
            "idx": (lane & segment) | (b & ~segment),
        }[mode]
        inside = source <= last
    return np.where(inside, source, lane), inside


def _vote(d: Decoder, ins: Instruction) -> Run:
    kind = ins.parts[2]
    flag = d.predicate(ins.operands[1])
    members = d.src(ins.operands[2], "u32")
    d.warpwide(ins.operands[2])
    put = d.put(ins.operands[0], "b32" if kind == "ballot" else "pred")
    partners = _partners(d, members)

    def run(mask: Array, full: bool) -> None:
        here = partners(mask)
        yes = _ballot(mask & flag()) & here
        if kind == "ballot":
            put(yes, mask, full)
        elif kind == "any":
            put(yes != 0, mask, full)
        elif kind == "all":
            put(yes == here, mask, full)
        else:
            put((yes == here) | (yes == 0), mask, full)

    return run


def _match(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    value = d.src(ins.operands[1], type_)
    members = d.src(ins.operands[2], "u32")
    d.warpwide(ins.operands[2])
    first, second = pair(ins.operands[0])
    put = d.put(first, "b32")
    put_same = None if second is None else d.put(second, "pred")
    partners = _partners(d, members)
    everybody = ins.parts[1] == "all"

    def run(mask: Array, full: bool) -> None:
        here = partners(mask)
        rows = value.reshape(-1, 32)
        equal = rows[:, :, None] == rows[:, None, :]
        words = np.where(equal, _BITS, np.uint32(0)).sum(axis=2, dtype="u4").reshape(-1) & here
        same = words == here
        put(np.where(same, here, np.uint32(0)) if everybody else words, mask, full)
        if put_same is not None:
            put_same(same, mask, full)

    return run


_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def _redux(d: Decoder, ins: Instruction) -> Run:
    type_, name = ins.parts[-1], ins.parts[2]
    value = d.src(ins.operands[1], type_)
    members = d.src(ins.operands[2], "u32")
    d.warpwide(ins.operands[2])
    put = d.put(ins.operands[0], type_)
    partners = _partners(d, members)
    info = np.iinfo(value.dtype)
    neutral = {"min": info.max, "max": info.min, "and": -1 if info.min else info.max}.get(name, 0)
    function = _REDUCTIONS[name]

    def run(mask: Array, full: bool) -> None:
        here = partners(mask)
        result = np.zeros_like(value)
        rows = value.reshape(-1, 32)
        for word in np.unique(here[mask]):
            inside = (word & _BITS) != 0
            picked = np.where(inside, rows, value.dtype.type(neutral))
            total = np.repeat(function.reduce(picked, axis=1, dtype=value.dtype), 32)
            result = np.where(here == word, total, result)
        put(result, mask, full)

    return run


def _activemask(d: Decoder, ins: Instruction) -> Run:
    put = d.put(ins.operands[0], "b32")
    return lambda mask, full: put(_ballot(mask), mask, full)


def _elect(d: Decoder, ins: Instruction) -> Run:
    members = d.src(ins.operands[1], "u32")
    d.warpwide(ins.operands[1])
    first, second = pair(ins.operands[0])
    put = d.put(first, "b32")
    put_chosen = d.put(second if second is not None else first, "pred")
    partners = _partners(d, members)
    lane = d.special["%laneid"]

    def run(mask: Array, full: bool) -> None:
        here = partners(mask)
        chosen = np.log2((here & (~here + np.uint32(1))).astype("f8")).astype("u4")
        put(chosen, mask, full)
        put_chosen(lane == chosen, mask, full)

    return run


def _warp_sync(d: Decoder, ins: Instruction) -> Run:
    if ins.parts[1] == "cluster":
        if ins.parts[2] != "arrive":
            raise d.fail("this barrier is not supported")
        return no_op
    d.warpwide(ins.operands[0])
    return no_op


def _trap(d: Decoder, ins: Instruction) -> Run:
    del ins

    def run(mask: Array, full: bool) -> None:
        del full
        raise Fault("the kernel gives up", int(np.argmax(mask)))

    del d
    return run


def _mapa(d: Decoder, ins: Instruction) -> Run:
    type_ = ins.parts[-1]
    address, rank = d.src(ins.operands[1], type_), d.src(ins.operands[2], "u32")

    def run(a: Array, r: Array) -> Array:
        if r.any():
            raise Fault("there is one block in a cluster", int(np.argmax(r)))
        return a

    return d.pure(ins.operands[0], type_, run, address, rank)


# --- matrices ---

_ROW, _QUAD = _LANE // 4, _LANE % 4


def _whole_warps(d: Decoder, mask: Array) -> None:
    """Matrix instructions need all 32 lanes, none of which has ended."""
    some = mask.reshape(-1, 32)
    partial = some.any(axis=1) & ~some.all(axis=1)
    if partial.any():
        warp = int(np.argmax(partial))
        raise Fault("not all lanes of the warp are here", 32 * warp + int(np.argmin(some[warp])))
    del d


def _matrix_count(ins: Instruction) -> int:
    return next(int(p[1:]) for p in ins.parts if p in ("x1", "x2", "x4"))


def _rows(
    d: Decoder, ins: Instruction, operand: int, count: int
) -> Callable[[Array], tuple[Array, Array]]:
    """The lanes that pass addresses of rows, and where these lie."""
    if "m8n8" not in ins.parts or ins.parts[-1] != "b16":
        raise d.fail("only matrices of 8 x 8 numbers of 16 bits are supported")
    place, machine = d.place(ins.operands[operand]), d.machine
    shared = any(part.startswith("shared") for part in ins.parts)

    def rows(mask: Array) -> tuple[Array, Array]:
        _whole_warps(d, mask)
        lanes = np.flatnonzero(mask & (machine.lane % 32 < 8 * count))
        addresses = place.at(lanes)
        if not shared:
            addresses = addresses - SHARED
        return lanes, machine.memory.shared.place(addresses, lanes, 16)

    return rows


def _load_matrix(d: Decoder, ins: Instruction) -> Run:
    count = _matrix_count(ins)
    results = items(ins.operands[0])
    if len(results) != count:
        raise d.fail(f"{len(results)} registers for {count} matrices")
    rows = _rows(d, ins, 1, count)
    puts = [d.put(x, "b32") for x in results]
    d.warpwide(None)
    machine = d.machine
    turned = "trans" in ins.parts

    def run(mask: Array, full: bool) -> None:
        lanes, places = rows(mask)
        shared = machine.memory.shared
        low, high = (shared.load(places + 8 * i, 8, lanes) for i in range(2))
        numbers = np.stack([low, high], axis=1).view("u2").reshape(-1, count, 8, 8)
        if turned:
            numbers = numbers.transpose(0, 1, 3, 2)
        pairs = np.ascontiguousarray(numbers).view("u4")[:, :, _ROW, _QUAD]
        picked = np.flatnonzero(mask)
        for i, put in enumerate(puts):
            whole = np.zeros(machine.lanes, "u4")
            whole[picked] = pairs[:, i].reshape(-1)
            put(whole, mask, full)

    return run


def _store_matrix(d: Decoder, ins: Instruction) -> Run:
    count = _matrix_count(ins)
    sources = [d.src(x, "b32") for x in items(ins.operands[1])]
    if len(sources) != count:
        raise d.fail(f"{len(sources)} registers for {count} matrices")
    rows = _rows(d, ins, 0, count)
    d.warpwide(None)
    machine = d.machine
    turned = "trans" in ins.parts

    def run(mask: Array, full: bool) -> None:
        del full
        lanes, places = rows(mask)
        picked = np.flatnonzero(mask)
        pairs = np.zeros((len(picked) // 32, count, 8, 4), "u4")
        for i, source in enumerate(sources):
            pairs[:, i, _ROW, _QUAD] = source[picked].reshape(-1, 32)
        numbers = pairs.view("u2")
        if turned:
            numbers = np.ascontiguousarray(numbers.transpose(0, 1, 3, 2))
        words = numbers.view("u8").reshape(-1, 2)
        for i in range(2):
            machine.memory.shared.store(places + 8 * i, words[:, i], 8, lanes)

    return run


def _move_matrix(d: Decoder, ins: Instruction) -> Run:
    source = d.src(ins.operands[1], "b32")
    d.warpwide(None)
    put = d.put(ins.operands[0], "b32")

    def run(mask: Array, full: bool) -> None:
        _whole_warps(d, mask)
        pairs = np.zeros((len(source) // 32, 8, 4), "u4")
        pairs[:, _ROW, _QUAD] = source.reshape(-1, 32)
        turned = np.ascontiguousarray(pairs.view("u2").transpose(0, 2, 1)).view("u4")
        put(turned[:, _ROW, _QUAD].reshape(-1), mask, full)

    return run


_ELEMENTS = {
    "f16": np.dtype("f2"), "bf16": BF16, "tf32": np.dtype("f4"), "f64": np.dtype("f8"),
    "s8": np.dtype("i1"), "u8": np.dtype("u1"), "e4m3": E4M3, "e5m2": E5M2,
    "f32": np.dtype("f4"), "s32": np.dtype("i4"),
}  # fmt: skip


class _Fragment:
    """Where the elements of the registers of an operand lie in its matrix."""

    def __init__(self, rows: int, columns: int, kind: str, role: str) -> None:
        self.kind = kind
        self.dtype = _ELEMENTS[kind]
        self.shape = rows, columns
        # Elements of one register, which has 32 bits except for float64.
        per = max(1, 4 // self.dtype.itemsize)
        count = rows * columns // 32 // per
        i = np.arange(count)[:, None, None]
        g, c, j = _ROW[None, :, None], _QUAD[None, :, None], np.arange(per)[None, None, :]
        zero = 0 * (i + g + c + j)
        if role == "a":
            halves = rows // 8
            row = g + 8 * (i % halves) + zero
            column = per * c + j + 4 * per * (i // halves)
        elif role == "b":
            row = per * c + j + 4 * per * i
            column = g + zero
        else:
            # Two neighbours in a row, in one register or in two.
            at = per * i + j
            row = g + 8 * (at // 2) + zero
            column = 2 * c + at % 2 + zero
        self.at = (row + zero).reshape(-1), (column + zero).reshape(-1)
        self.count, self.per = count, per
        self.register = "b64" if kind == "f64" else "b32"

    def gather(self, sources: list[Array]) -> Array:
        """The matrices of all warps, as float64 or int64."""
        raw = np.stack(sources)  # registers x lanes
        if self.kind == "tf32":
            raw = raw & np.uint32(0xFFFFE000)
        numbers = raw.view(self.dtype).reshape(self.count, -1, 32, self.per)
        wide = numbers.transpose(1, 0, 2, 3)
        wide = wide.astype("i8" if self.dtype.kind in "iu" else "f8")
        matrix = np.zeros((wide.shape[0], *self.shape), wide.dtype)
        matrix[:, self.at[0], self.at[1]] = wide.reshape(wide.shape[0], -1)
        return matrix

    def scatter(self, matrix: Array) -> list[Array]:
        """The registers that hold matrices."""
        numbers = matrix[:, self.at[0], self.at[1]].reshape(-1, self.count, 32, self.per)
        raw = np.ascontiguousarray(numbers.transpose(1, 0, 2, 3)).view(
            "u8" if self.register == "b64" else "u4"
        )
        return [part.reshape(-1) for part in raw]


def _mma(d: Decoder, ins: Instruction) -> Run:
    shape = ins.parts[3]
    if ins.parts[1:3] != ("sync", "aligned") or ins.parts[4:6] != ("row", "col"):
        raise d.fail("only mma.sync.aligned of row by col is supported")
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    rest_parts = [part for part in ins.parts[6:] if part != "satfinite"]
    kinds = tuple(rest_parts)
    if len(kinds) != 4 or any(kind not in _ELEMENTS for kind in kinds):
        raise d.fail("these types are not supported")
    out, a_kind, b_kind, c_kind = kinds
    fragments = (
        _Fragment(int(m), int(k), a_kind, "a"),
        _Fragment(int(k), int(n), b_kind, "b"),
        _Fragment(int(m), int(n), c_kind, "c"),
    )
    result = _Fragment(int(m), int(n), out, "c")
    sources: list[list[Array]] = []
    for operand, fragment in zip(ins.operands[1:4], fragments, strict=True):
        registers = items(operand)
        if len(registers) != fragment.count:
            raise d.fail(f"{len(registers)} registers, where {fragment.count} are needed")
        sources.append([d.src(x, fragment.register) for x in registers])
    d.warpwide(None)
    puts = [d.put(x, result.register) for x in items(ins.operands[0])]
    if len(puts) != result.count:
        raise d.fail(f"{len(puts)} registers for the result")
    clamp = "satfinite" in ins.parts

    def run(mask: Array, full: bool) -> None:
        _whole_warps(d, mask)
        a, b, c = (f.gather(s) for f, s in zip(fragments, sources, strict=True))
        total = np.matmul(a, b) + c
        if out == "s32":
            if clamp:
                total = np.clip(total, -(2**31), 2**31 - 1)
            matrix = total.astype("i4")
        else:
            matrix = narrow(total, out)
        for put, value in zip(puts, result.scatter(matrix), strict=True):
            put(value, mask, full)

    return run


WARP: dict[str, Decode] = {
    "shfl": _shuffle, "vote": _vote, "match": _match, "redux": _redux, "activemask": _activemask,
    "elect": _elect, "bar": _warp_sync, "barrier": _warp_sync, "trap": _trap, "mapa": _mapa,
    "ldmatrix": _load_matrix, "stmatrix": _store_matrix, "movmatrix": _move_matrix, "mma": _mma,
}  # fmt: skip
"""How each of them is decoded."""
