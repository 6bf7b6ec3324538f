"""Register layouts: blocked tiles, and the fragments of tensor-core and matrix-move instructions.

The maps are those of the PTX ISA. `reg` counts elements, not 32-bit registers: an A fragment of
16-bit elements has two `reg` values per 32-bit register, the lower half first. With `g = lane >> 2`
and `c = lane & 3`, register r of an accumulator holds row `g + 8 * (r >> 1 & 1)` (plus 16 per warp)
and column `8 * (r >> 2) + 2 * c + (r & 1)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.tile.layouts.layout import Layout
from tessera.tile.layouts.linear import LayoutError, Linear, Vector

# The rows of a warpgroup instruction: 16 for each of its four warps.
WARP_ROWS: tuple[Vector, ...] = ((16, 0), (32, 0))
GROUP_ROWS: tuple[Vector, ...] = ((1, 0), (2, 0), (4, 0))


def blocked(
    dims: Sequence[str],
    *,
    reg: Mapping[str, int],
    lane: Mapping[str, int],
    warp: Mapping[str, int] | None = None,
    tile: Mapping[str, int] | None = None,
) -> Layout:
    """Row-major blocks: registers innermost, then lanes, then warps, then repeated over the tile.

    Args:
        dims: The tile's dims, slowest first.
        reg: Contiguous elements of one lane along each dim.
        lane: Lanes along each dim; 32 in all.
        warp: Warps along each dim.
        tile: The tile's extents; whole multiples of the block, by further registers.

    Example:
        >>> rows = blocked(("m", "n"), reg={"n": 4}, lane={"m": 4, "n": 8}, warp={"m": 4})
        >>> rows.shape
        {'m': 16, 'n': 32}
    """
    if _product(lane) != 32:
        raise LayoutError(f"layout: blocked: {dict(lane)} are not 32 lanes")
    layout = Layout(Linear.of(dims, {"reg": (), "lane": (), "warp": ()}))
    for axis, counts in (("reg", reg), ("lane", lane), ("warp", warp or {})):
        layout = layout.product(_steps(dims, axis, counts))
    if tile:
        extra = {dim: extent // layout.shape[dim] for dim, extent in tile.items()}
        if any(layout.shape[dim] * extra[dim] != extent for dim, extent in tile.items()):
            raise LayoutError(f"layout: blocked: {dict(tile)} is no multiple of {layout.shape}")
        layout = layout.product(_steps(dims, "reg", extra))
    return layout


def _steps(dims: Sequence[str], axis: str, counts: Mapping[str, int]) -> Layout:
    """One input that walks a box, the last dim fastest."""
    reps = [(axis, dim, counts[dim], 1) for dim in reversed(dims) if counts.get(dim, 1) > 1]
    return Layout.of(dims, {axis: ()}, reps)


def _product(counts: Mapping[str, int]) -> int:
    total = 1
    for count in counts.values():
        total *= count
    return total


def wgmma_d(n: int) -> Layout:
    """The accumulator of `wgmma` m64nNk*: 64 x n over four warps, n a multiple of 8."""
    _check_multiple("wgmma_d", n, 8)
    return _accumulator(n // 8, {"warp": WARP_ROWS})


def mma_c(n: int = 8) -> Layout:
    """The accumulator of `mma.sync` m16n8k*, repeated along n."""
    _check_multiple("mma_c", n, 8)
    return _accumulator(n // 8, {})


def _accumulator(reps: int, warps: Mapping[str, Sequence[Vector]]) -> Layout:
    atom = {"reg": ((0, 1), (8, 0)), "lane": ((0, 2), (0, 4), *GROUP_ROWS), **warps}
    return Layout.of(("row", "col"), atom, [("reg", "col", reps, 8)])


def wgmma_a(itemsize: int, k: int | None = None) -> Layout:
    """The A operand of `wgmma` in registers: 64 x k, k in whole steps of 32 bytes."""
    return _a_operand(itemsize, k, {"warp": WARP_ROWS})


def mma_a(itemsize: int = 2, k: int | None = None) -> Layout:
    """The A operand of `mma.sync` m16n8k16 (16-bit), m16n8k8 (tf32) or m16n8k32 (8-bit)."""
    return _a_operand(itemsize, k, {})


def _a_operand(itemsize: int, k: int | None, warps: Mapping[str, Sequence[Vector]]) -> Layout:
    packed, step = _words(itemsize)
    k = step if k is None else k
    _check_multiple("an A operand", k, step)
    pairs = [(0, 1 << bit) for bit in range(packed.bit_length() - 1)]
    atom = {
        "reg": (*pairs, (8, 0), (0, step // 2)),
        "lane": ((0, packed), (0, 2 * packed), *GROUP_ROWS),
        **warps,
    }
    return Layout.of(("row", "k"), atom, [("reg", "k", k // step, step)])


def mma_b(itemsize: int = 2, k: int | None = None, n: int = 8) -> Layout:
    """The B operand of `mma.sync` m16n8k*: dims k and col, repeated along k, then n."""
    packed, step = _words(itemsize)
    k = step if k is None else k
    _check_multiple("a B operand", k, step)
    _check_multiple("a B operand", n, 8)
    pairs = [(1 << bit, 0) for bit in range(packed.bit_length() - 1)]
    columns = tuple((0, row) for row, _ in GROUP_ROWS)
    atom = {
        "reg": (*pairs, (step // 2, 0)),
        "lane": ((packed, 0), (2 * packed, 0), *columns),
    }
    return Layout.of(("k", "col"), atom, [("reg", "k", k // step, step), ("reg", "col", n // 8, 8)])


def matrix_8x8(count: int = 1, *, trans: bool = False) -> Layout:
    """What `ldmatrix`/`stmatrix` .x1/.x2/.x4 move: `count` matrices of 8 x 8 16-bit elements.

    Matrices lie below one another, then beside one another: matrix i starts at row `8 * (i & 1)`
    and column `8 * (i >> 1)`, the order of an A operand.

    Args:
        count: 1, 2 or 4.
        trans: The `.trans` form: a lane holds two elements of a column instead of a row.
    """
    if count not in (1, 2, 4):
        raise LayoutError(f"layout: matrix_8x8: {count} matrices; there are .x1, .x2 and .x4")
    inner = {"reg": [(0, 1)], "lane": [(0, 2), (0, 4), *GROUP_ROWS]}
    if trans:
        inner = {name: [(c, r) for r, c in columns] for name, columns in inner.items()}
    inner["reg"] += [(8, 0), (0, 8)][: count.bit_length() - 1]
    return Layout.of(("row", "col"), inner)


def _words(itemsize: int) -> tuple[int, int]:
    """Elements in 32 bits, and in the 32 bytes that one instruction takes along k."""
    if itemsize not in (1, 2, 4):
        raise LayoutError(f"layout: matrix operands have 1, 2 or 4 byte elements, not {itemsize}")
    return 4 // itemsize, 32 // itemsize


def _check_multiple(what: str, value: int, step: int) -> None:
    if value < step or value % step:
        raise LayoutError(f"layout: {what}: {value} is no positive multiple of {step}")
