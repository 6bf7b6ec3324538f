"""Instructions derived from layouts: each is run on numbers and compared with the layouts."""

from __future__ import annotations

import itertools

import pytest

from tessera.tile.layouts.access import address_map
from tessera.tile.layouts.eligibility import (
    Major,
    MatrixDescriptor,
    MatrixMove,
    Refusal,
    TmaBox,
    matrix_descriptor,
    matrix_move,
    tma_box,
)
from tessera.tile.layouts.fragments import blocked, matrix_8x8, mma_a, mma_b, wgmma_a, wgmma_d
from tessera.tile.layouts.layout import Layout
from tessera.tile.layouts.memory import Swizzle, pitched, row_major, swizzled

SWIZZLED = [Swizzle.B32, Swizzle.B64, Swizzle.B128]


# ldmatrix and stmatrix.


@pytest.mark.parametrize("swizzle", SWIZZLED)
def test_stmatrix_of_an_accumulator_has_no_conflicts(swizzle: Swizzle) -> None:
    cols = swizzle.span // 2
    move = matrix_move(wgmma_d(cols), swizzled({"row": 64, "col": cols}, 2, swizzle), 2)
    assert isinstance(move, MatrixMove)
    assert (move.count, move.trans, move.conflicts) == (4, False, 1)


def test_stmatrix_into_a_plain_pitch_is_8_way() -> None:
    move = matrix_move(wgmma_d(64), row_major({"row": 64, "col": 64}), 2)
    assert isinstance(move, MatrixMove)
    assert move.conflicts == 8


def test_stmatrix_addresses() -> None:
    """The addresses of the instruction, as the PTX recipe has them."""
    move = matrix_move(wgmma_d(64), swizzled({"row": 64, "col": 64}, 2, Swizzle.B128), 2)
    assert isinstance(move, MatrixMove)
    for lane in range(32):
        row = (lane & 7) + 8 * ((lane >> 3) & 1)
        byte = row * 128 + ((16 * (lane >> 4)) ^ ((row & 7) << 4))
        assert 2 * move.addresses(lane=lane)["offset"] == byte


@pytest.mark.parametrize(
    ("registers", "memory", "itemsize"),
    [
        (mma_a(), row_major({"row": 16, "k": 16}), 2),
        (mma_a(1), row_major({"row": 16, "k": 32}), 1),
        (mma_a(4), row_major({"row": 16, "k": 8}), 4),
        (mma_a(), row_major({"k": 16, "row": 16}), 2),
        (mma_b(), row_major({"col": 8, "k": 16}), 2),
        (mma_b(n=64), swizzled({"k": 16, "col": 64}, 2, Swizzle.B128), 2),
        (wgmma_a(2, 32), swizzled({"row": 64, "k": 32}, 2, Swizzle.B64), 2),
        (matrix_8x8(1, trans=True), row_major({"row": 8, "col": 8}), 2),
    ],
)
def test_matrix_moves_bring_each_lane_its_words(
    registers: Layout, memory: Layout, itemsize: int
) -> None:
    """Lane l gets, of matrix j, what the instruction gives it; the layout must say the same."""
    move = matrix_move(registers, memory, itemsize)
    assert isinstance(move, MatrixMove), move
    offsets = address_map(memory).compose(registers)
    for lane in range(32):
        held = {offsets(reg=r, lane=lane)["offset"] for r in range(offsets.sizes["reg"])}
        moved = set()
        for matrix in range(move.count):

            def row(index: int, matrix: int = matrix) -> int:
                return move.addresses(lane=8 * matrix + index)["offset"]

            if move.trans:
                pair = (2 * (lane & 3), 2 * (lane & 3) + 1)
                moved |= {row(index) + (lane >> 2) for index in pair}
            else:
                start = row(lane >> 2) + (lane & 3) * 4 // itemsize
                moved |= set(range(start, start + 4 // itemsize))
        assert moved <= held
        assert len(moved) == move.count * 4 // itemsize


@pytest.mark.parametrize(
    ("registers", "memory", "itemsize", "reason"),
    [
        (wgmma_d(64), row_major({"row": 64, "col": 64}), 4, "share a row"),
        (wgmma_d(64), pitched({"row": 64, "col": 64}, 65), 2, "16 bytes"),
        (mma_a(1), row_major({"k": 32, "row": 16}), 1, "share a row"),
        (
            blocked(("row", "col"), reg={}, lane={"row": 8, "col": 4}),
            row_major({"row": 8, "col": 4}),
            2,
            "share a row",
        ),
    ],
)
def test_matrix_moves_refused(
    registers: Layout, memory: Layout, itemsize: int, reason: str
) -> None:
    refusal = matrix_move(registers, memory, itemsize)
    assert isinstance(refusal, Refusal)
    assert reason in str(refusal)


def test_a_pitch_of_whole_rows_is_eligible() -> None:
    move = matrix_move(wgmma_d(64), pitched({"row": 64, "col": 64}, 72), 2)
    assert isinstance(move, MatrixMove)
    assert move.conflicts == 1


# Tensor maps.


def run_tma(box: TmaBox, shape: dict[str, int], itemsize: int) -> dict[int, tuple[int, ...]]:
    """Offset -> coordinates, as a copy of the box writes them."""
    written = {}
    counts = [rep.count for rep in reversed(box.dims)]
    for offset, index in enumerate(itertools.product(*map(range, counts))):
        coords = dict.fromkeys(shape, 0)
        for rep, step in zip(box.dims, reversed(index), strict=True):
            coords[rep.dim] += step * rep.stride
        byte = offset * itemsize
        byte ^= (byte >> 7 & (1 << box.swizzle.value) - 1) << 4
        written[byte // itemsize] = tuple(coords.values())
    return written


@pytest.mark.parametrize("swizzle", list(Swizzle))
@pytest.mark.parametrize("cols", [64, 128, 192])
def test_tma_writes_the_layout(swizzle: Swizzle, cols: int) -> None:
    shape = {"row": 24, "col": cols}
    memory = swizzled(shape, 2, swizzle)
    box = tma_box(memory, 2)
    assert isinstance(box, TmaBox)
    assert box.swizzle is swizzle
    written = run_tma(box, shape, 2)
    for offset in range(0, memory.count, 7):
        assert written[offset] == tuple(memory(offset=offset).values())


def test_tma_boxes() -> None:
    box = tma_box(swizzled({"row": 128, "col": 64}, 2, Swizzle.B128), 2)
    assert isinstance(box, TmaBox)
    assert [(r.dim, r.count, r.stride) for r in box.dims] == [("col", 64, 1), ("row", 128, 1)]
    assert box.alignment == 1024
    refused = tma_box(row_major({"row": 8, "col": 512}), 2)
    assert "limit of 256" in str(refused)
    assert "16 bytes" in str(tma_box(row_major({"row": 8, "col": 4}), 2))
    shuffled = Layout.of(("x",), {"offset": [(1,), (2,), (4,), (8,), (48,), (32,)]})
    assert "no swizzle" in str(tma_box(shuffled, 2))


# Descriptors.


def run_descriptor(d: MatrixDescriptor, itemsize: int, mn: int, k: int) -> int:
    """The byte that the hardware reads for an element, by the canonical forms."""
    step, within = divmod(k, 32 // itemsize)
    group = 16 // itemsize
    span = d.swizzle.span
    if d.swizzle is Swizzle.NONE and d.major is Major.K:
        byte = mn % 8 * 16 + mn // 8 * d.sbo + within % group * itemsize + within // group * d.lbo
    elif d.swizzle is Swizzle.NONE:
        byte = mn % 8 * 2 + mn // 8 * d.sbo + within % 8 * 16 + within // 8 * d.lbo
    elif d.major is Major.K:
        byte = mn % 8 * span + mn // 8 * d.sbo + within * itemsize
    else:
        wide = span // 2
        byte = mn % wide * 2 + mn // wide * d.lbo + within % 8 * span + within // 8 * d.sbo
    byte += d.steps[step]
    return byte ^ (byte >> 7 & (1 << d.swizzle.value) - 1) << 4


def check_descriptor(memory: Layout, itemsize: int) -> MatrixDescriptor:
    found = matrix_descriptor(memory, itemsize, "mn", "k")
    assert isinstance(found, MatrixDescriptor), found
    addresses = address_map(memory)
    for mn, k in itertools.product(range(memory.shape["mn"]), range(memory.shape["k"])):
        byte = addresses(mn=mn, k=k)["offset"] * itemsize
        assert run_descriptor(found, itemsize, mn, k) == byte
    return found


@pytest.mark.parametrize("swizzle", SWIZZLED)
@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_k_major_descriptors(swizzle: Swizzle, itemsize: int) -> None:
    k = 2 * swizzle.span // itemsize
    found = check_descriptor(swizzled({"mn": 24, "k": k}, itemsize, swizzle), itemsize)
    assert (found.major, found.swizzle, found.sbo) == (Major.K, swizzle, 8 * swizzle.span)
    assert found.steps[0] == 0
    assert found.steps[1] == (32 if swizzle.span > 32 else 24 * swizzle.span)


@pytest.mark.parametrize("swizzle", SWIZZLED)
def test_mn_major_descriptors(swizzle: Swizzle) -> None:
    wide = swizzle.span // 2
    found = check_descriptor(swizzled({"k": 32, "mn": 2 * wide}, 2, swizzle), 2)
    assert (found.major, found.swizzle) == (Major.MN, swizzle)
    assert (found.lbo, found.sbo) == (32 * swizzle.span, 8 * swizzle.span)
    assert found.steps == (0, 16 * swizzle.span)


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_core_matrix_descriptors(itemsize: int) -> None:
    wide = 16 // itemsize
    core = row_major({"mn": 8, "k": wide})
    blocks = Layout.of(("mn", "k"), {"offset": ()}, [("offset", "mn", 3, 1), ("offset", "k", 4, 1)])
    found = check_descriptor(core.product(blocks), itemsize)
    assert (found.major, found.swizzle) == (Major.K, Swizzle.NONE)
    assert (found.lbo, found.sbo, found.steps) == (384, 128, (0, 768))


def test_core_matrix_descriptors_along_mn() -> None:
    core = row_major({"k": 8, "mn": 8})
    blocks = Layout.of(("k", "mn"), {"offset": ()}, [("offset", "mn", 3, 1), ("offset", "k", 4, 1)])
    found = check_descriptor(core.product(blocks), 2)
    assert (found.major, found.lbo, found.sbo) == (Major.MN, 384, 128)


def test_descriptor_bits() -> None:
    found = check_descriptor(swizzled({"k": 64, "mn": 256}, 2, Swizzle.B128), 2)
    assert (found.lbo, found.sbo) == (8192, 1024)
    word = found.encode(1 << 24 | 2048)
    assert word & 0x3FFF == 128
    assert word >> 16 & 0x3FFF == 512
    assert word >> 32 & 0x3FFF == 64
    assert word >> 62 == 1
    assert [MatrixDescriptor(Major.K, s, 0, 0, (0,)).encode(0) >> 62 for s in Swizzle] == [
        0,
        3,
        2,
        1,
    ]


def test_descriptors_refused() -> None:
    plain = matrix_descriptor(row_major({"mn": 64, "k": 64}), 2, "mn", "k")
    assert "canonical forms" in str(plain)
    along = matrix_descriptor(swizzled({"k": 32, "mn": 128}, 1, Swizzle.B128), 1, "mn", "k")
    assert isinstance(along, Refusal), "8-bit operands are K-major"
    assert "groups of 8" in str(matrix_descriptor(row_major({"mn": 4, "k": 16}), 2, "mn", "k"))
    assert "8 bytes" in str(matrix_descriptor(row_major({"mn": 8, "k": 16}), 8, "mn", "k"))
