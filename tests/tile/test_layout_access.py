"""Bank conflicts, sectors and vectors, against counting over all lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.tile.layouts.access import Access, best_swizzle
from tessera.tile.layouts.fragments import blocked, wgmma_d
from tessera.tile.layouts.layout import Layout
from tessera.tile.layouts.linear import LayoutError
from tessera.tile.layouts.memory import Swizzle, pitched, row_major, swizzled


def lane_vectors(access: Access) -> list[list[int]]:
    """Byte addresses `[instruction][lane]` of the vectors, found by looking at every register."""
    regs = range(access.offsets.sizes.get("reg", 1))
    found = []
    for lane in range(32):
        offsets = [access.offsets(reg=r, lane=lane)["offset"] for r in regs]
        chunks = list(dict.fromkeys(offset // access.vector for offset in offsets))
        assert len(set(offsets)) == len(chunks) * access.vector, "a vector is not whole"
        found.append([chunk * access.vector * access.itemsize for chunk in chunks])
    return [list(row) for row in zip(*found, strict=True)]


def wavefronts(addresses: list[int], width: int) -> int:
    lanes = {16: 8, 8: 16}.get(width, 32)
    total = 0
    for start in range(0, 32, lanes):
        banks: dict[int, set[int]] = {}
        for address in addresses[start : start + lanes]:
            for byte in range(address, address + width):
                banks.setdefault(byte // 4 % 32, set()).add(byte // 4)
        total += max(map(len, banks.values()))
    return total


def check(access: Access) -> None:
    rows = lane_vectors(access)
    width = access.vector_bytes
    assert access.instructions == len(rows)
    assert access.wavefronts == sum(wavefronts(row, width) for row in rows)
    touched = [{b // 32 for a in row for b in range(a, a + width)} for row in rows]
    assert access.sectors == sum(map(len, touched))


def test_thousands_of_random_linear_accesses() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        itemsize = int(rng.choice([1, 2, 4, 8]))
        run = int(rng.integers(0, 5 - (itemsize.bit_length() - 1)))
        # A lane's run, whose bits other columns may or may not cross; any columns besides.
        reg = [1 << bit for bit in range(run)] + list(rng.integers(0, 512, rng.integers(0, 2)))
        lane = rng.integers(0, 512, 5) << rng.integers(0, 5)
        columns = {"reg": [(int(c),) for c in reg], "lane": [(int(c),) for c in lane]}
        check(Access(Layout.of(("offset",), columns), itemsize))


@given(
    st.integers(1, 80),
    st.integers(0, 3),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4, 8]),
)
def test_pitched_accesses(pad: int, run: int, itemsize: int, rows: int) -> None:
    width = 32 // rows << run
    layout = blocked(("row", "col"), reg={"col": 1 << run}, lane={"row": rows, "col": 32 // rows})
    check(Access.of(layout, pitched({"row": rows, "col": width}, width + pad), itemsize))


@given(st.integers(1, 5), st.integers(1, 7), st.sampled_from([1, 2, 4, 8]))
def test_accesses_with_repetitions(count: int, stride: int, itemsize: int) -> None:
    atom = {"reg": [(1,)], "lane": [(2,), (4,), (8,), (16,), (32,)]}
    check(Access(Layout.of(("offset",), atom, [("reg", "offset", count, stride * 64)]), itemsize))
    check(Access(Layout.of(("offset",), atom, [("reg", "offset", count, stride)]), itemsize))


def test_the_vector_is_the_largest_run_of_a_lane() -> None:
    def vector(columns: list[int], itemsize: int, limit: int = 16) -> int:
        lanes = [(64 << bit,) for bit in range(5)]
        layout = Layout.of(("offset",), {"reg": [(c,) for c in columns], "lane": lanes})
        return Access(layout, itemsize, limit).vector

    assert vector([1, 2, 4, 8], 2) == 8
    assert vector([8, 4, 2, 1], 2) == 8, "registers may be renamed"
    assert vector([3, 2, 4], 4) == 4, "and combined"
    assert vector([1, 2, 4], 4, 8) == 2
    assert vector([2, 4], 4) == 1
    assert vector([1, 4], 4) == 2


# Accumulators of one warpgroup, stored into boxes of 64 rows as wide as the swizzle.


@pytest.mark.parametrize("swizzle", [Swizzle.B32, Swizzle.B64, Swizzle.B128])
def test_pairs_of_16_bit_into_a_swizzled_box(swizzle: Swizzle) -> None:
    cols = swizzle.span // 2
    access = Access.of(wgmma_d(cols), swizzled({"row": 64, "col": cols}, 2, swizzle), 2)
    assert access.vector_bytes == 4
    assert access.conflicts == 1


def test_pairs_of_16_bit_into_a_plain_box() -> None:
    assert Access.of(wgmma_d(64), row_major({"row": 64, "col": 64}), 2).conflicts == 8


@pytest.mark.parametrize(("swizzle", "degree"), [(Swizzle.NONE, 4), (Swizzle.B128, 2)])
def test_pairs_of_32_bit(swizzle: Swizzle, degree: int) -> None:
    access = Access.of(wgmma_d(32), swizzled({"row": 64, "col": 32}, 4, swizzle), 4)
    assert access.vector_bytes == 8
    assert access.conflicts == degree


def test_coalesced_rows_of_global_memory() -> None:
    rows = blocked(("m", "n"), reg={"n": 8}, lane={"n": 32}, tile={"m": 4, "n": 256})
    access = Access.of(rows, row_major({"m": 4, "n": 256}), 2)
    assert (access.vector_bytes, access.instructions) == (16, 4)
    assert access.sectors == access.ideal_sectors == 4 * 16
    columns = blocked(("m", "n"), reg={"m": 4}, lane={"n": 32})
    access = Access.of(columns, row_major({"n": 32, "m": 4}), 4)
    assert access.sectors == 16
    strided = blocked(("m", "n"), reg={}, lane={"m": 32}, tile={"m": 32, "n": 8})
    access = Access.of(strided, row_major({"m": 32, "n": 8}), 4)
    assert (access.vector, access.sectors, access.ideal_sectors) == (4, 64, 32)


def test_the_smallest_swizzle_without_conflicts() -> None:
    assert best_swizzle(wgmma_d(64), 2) is Swizzle.B32, "in blocks of 16 columns"
    assert best_swizzle(wgmma_d(16), 2) is Swizzle.B32
    assert best_swizzle(wgmma_d(32), 4) is Swizzle.B32
    assert best_swizzle(blocked(("m", "n"), reg={"n": 4}, lane={"n": 32}), 4) is Swizzle.NONE


def test_malformed_accesses_are_refused() -> None:
    with pytest.raises(LayoutError, match="32 lanes"):
        Access(Layout.of(("offset",), {"lane": [(1,)]}), 4)
    with pytest.raises(LayoutError, match="power of two"):
        Access.of(wgmma_d(8), row_major({"row": 64, "col": 8}), 3)
