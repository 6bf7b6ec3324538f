"""What is proved about equal axes is shared within one program, and by no two."""

from __future__ import annotations

from tessera.ir.intexpr import Facts, simplify, sym
from tessera.schedule.access import one_program, ranges
from tessera.schedule.types import Axis

AXES = (Axis("i", 12), Axis("j", sym("S")))


def test_equal_axes_share_facts_within_a_program() -> None:
    with one_program():
        first = ranges(AXES)
        assert ranges(list(AXES)) is first
        assert ranges(AXES[:1]) is not first
        inner = ranges((Axis("k", 4),), first)
        assert ranges((Axis("k", 4),), ranges(AXES)) is inner
        assert inner["i"] == (0, 11)
        assert inner["k"] == (0, 3)
        assert "k" not in first
        with one_program():
            assert ranges(AXES) is not first
        assert ranges(AXES) is first
    with one_program():
        assert ranges(AXES) is not first


def test_other_facts_are_kept_apart() -> None:
    with one_program():
        short, long = (ranges((Axis("i", n),)) for n in (4, 8))
        e = sym("i") // 4
        assert simplify(e, long) is e
        assert simplify(e, short) == 0
        eights = Facts(None, {"S": 8})
        assert ranges(AXES, eights).multiples == {"S": 8}
        assert ranges(AXES).multiples == {}


def test_outside_of_programs_nothing_is_shared() -> None:
    assert ranges(AXES) is not ranges(AXES)
