"""Costs of accesses: against counting by hand, and against the counts of layouts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.ir.core import Func
from tessera.target.check.lints import lints, sectors, wavefronts
from tessera.tile.layouts.access import Access
from tessera.tile.layouts.layout import Layout
from tests.target.check.test_corpus import KERNELS, parsed, text_of


def by_hand(addresses: list[int], width: int) -> int:
    """Wavefronts, lane by lane."""
    lanes = 32 if width <= 4 else 128 // width
    total = 0
    for start in range(0, 32, lanes):
        banks: dict[int, set[int]] = {}
        for address in addresses[start : start + lanes]:
            if address >= 0:
                for word in range(address // 4, -(-(address + width) // 4)):
                    banks.setdefault(word % 32, set()).add(word)
        total += max(map(len, banks.values()), default=0)
    return total


@given(
    st.sampled_from([4, 8, 16]),
    st.lists(st.integers(-1, 60), min_size=32, max_size=32),
)
def test_wavefronts(width: int, chunks: list[int]) -> None:
    addresses = [c * width if c >= 0 else -1 for c in chunks]
    total, least = wavefronts(np.array(addresses), width)
    assert total == by_hand(addresses, width)
    assert least <= total


@given(
    st.sampled_from([4, 8, 16]),
    st.lists(st.integers(0, 255), min_size=32, max_size=32),
)
def test_sectors(width: int, chunks: list[int]) -> None:
    addresses = [c * width for c in chunks]
    total, least = sectors(np.array(addresses), width)
    touched = {b for a in addresses for b in range(a, a + width)}
    assert total == len({b // 32 for b in touched})
    assert least == -(-len(touched) // 32)


@given(st.lists(st.integers(0, 511), min_size=5, max_size=5), st.sampled_from([0, 1, 2]))
def test_counts_are_those_of_layouts(columns: list[int], bits: int) -> None:
    # Lanes whose addresses are XORs of numbers, each lane with a vector of 2**bits words.
    vector = [(1 << k,) for k in range(bits)]
    lanes = [(c << bits,) for c in columns]
    offsets = Layout.of(("offset",), {"reg": vector, "lane": lanes})
    access = Access(offsets, 4, 4 << bits)
    addresses = np.zeros(32, np.int64)
    for lane in range(32):
        for bit, column in enumerate(columns):
            if lane >> bit & 1:
                addresses[lane] ^= column << bits
    width = 4 * access.vector
    if access.vector != 1 << bits:
        return  # what lanes share makes another vector; that is the layout's business
    assert wavefronts(addresses * 4, width)[0] == access.wavefronts
    assert sectors(addresses * 4, width)[0] == access.sectors


@pytest.mark.parametrize("name", KERNELS)
def test_good_kernels_are_silent(name: str) -> None:
    assert [str(lint) for lint in lints(parsed(text_of(name)))] == []


def changed(name: str, old: str, new: str) -> Func:
    text = text_of(name)
    assert text.count(old) == 1
    return parsed(text.replace(old, new))


def test_rows_of_a_power_of_two_are_reported() -> None:
    func = changed("transpose", "{value=33, type=i32}", "{value=32, type=i32}")
    (lint,) = lints(func)
    assert (lint.kind, lint.op.name, lint.cost, lint.ideal) == (
        "bank conflicts",
        "target.load",
        32,
        1,
    )
    assert re.match("bank conflicts: target.load takes 32 wavefronts a warp where 1 do", str(lint))
    assert not lints(func, threshold=32)


def test_strides_are_reported() -> None:
    func = changed("transpose", "%to = target.map([%row2, %c32]) {fn=mul} : i32\n"
                   "    %to1 = target.map([%to, %lane]) {fn=add} : i32",
                   "%to = target.map([%lane, %c32]) {fn=mul} : i32\n"
                   "    %to1 = target.map([%to, %row2]) {fn=add} : i32")  # fmt: skip
    (lint,) = lints(func)
    # Four stores of a lane go to neighbouring columns; a sector holds eight.
    assert (lint.kind, lint.op.name, lint.cost, lint.ideal) == ("sectors", "target.store", 128, 16)


def test_swizzles_matter_to_matrices() -> None:
    func = changed("matrix", "%abyte = target.map([%ar, %i32]) {fn=mul}",
                   "%abyte = target.map([%ar, %i64]) {fn=mul}")  # fmt: skip
    found = lints(func, threshold=1.5)
    assert [(x.kind, x.op.name, x.cost, x.ideal) for x in found] == [
        ("bank conflicts", "target.load_matrix", 8, 4)
    ]
