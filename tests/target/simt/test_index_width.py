"""Addresses of GPU kernels: 32 bits where it is proved that they suffice, 64 elsewhere."""

# ruff: noqa: F821, UP037 -- dims are strings, which ruff takes for names of classes

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tessera.dtypes import int32
from tessera.ir.core import Func, Op, Value
from tessera.ir.intbounds import Facts
from tessera.ir.intexpr import sym
from tessera.ir.parser import parse_func
from tessera.ir.ranges import GUARD, MOST_ELEMENTS, guards_of
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.schedule.types import BufType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.passes.bounds import bounds_of
from tessera.tile.index_width import INDEX, REASON, with_width

pytestmark = pytest.mark.unchecked


def struct(*shape: int, dtype: Any = ts.float32) -> Any:
    return ts.ShapeDtypeStruct(shape, dtype)


def lowered(*conditions: str, machine: str = "sm_90a", size: tuple[int, int] = (8, 8)) -> Any:
    def scaled(x: ts.Tensor["N", "M"], y: ts.Tensor["M"]) -> ts.Tensor["N", "M"]:
        return x * y

    f = ts.jit(ts.constrain(*conditions)(scaled) if conditions else scaled)
    return f.lower(struct(*size), struct(size[1]), machine=machine)


def kernel_of(found: Any) -> Func:
    (kernel,) = [f for name, f in found.tile.funcs.items() if name != found.tile.main]
    return kernel


def multiplications(found: Any) -> list[Op]:
    """Products of 64 bits of two values that are not known."""
    (kernel,) = found.gpu_kernels.values()
    return [
        op
        for op in walk(kernel.func.body)
        if isinstance(op, t.Map)
        and op.fn.name == "mul"
        and str(op.result.type) == "i64"
        and not any(isinstance(x.op, t.Const) for x in op.args)
    ]


def test_bounds_of_the_dims_are_a_proof() -> None:
    found = lowered("N <= 4096", "M in 1..=4096")
    kernel = kernel_of(found)
    assert kernel.attrs == {
        INDEX: "i32",
        REASON: "buf<f32[N, M]> has at most 16777216 elements",
    }
    assert not multiplications(found)
    line = "mul_0: indices of 32 bits; buf<f32[N, M]> has at most 16777216 elements"
    assert line in found.why().splitlines()
    assert not guards_of(found.tile.entry)


@pytest.mark.parametrize("conditions", [(), ("N <= 8",), ("N <= 40000", "M <= 40000")])
def test_without_a_proof_a_launch_is_guarded(conditions: tuple[str, ...]) -> None:
    found = lowered(*conditions)
    asked = ["M*N < 1073741824", *["M < 1073741824"] * (len(conditions) < 2)]
    kernel = kernel_of(found)
    assert kernel.attrs == {INDEX: "i32", REASON: f"checked at the launch: {' and '.join(asked)}"}
    assert found.tile.entry.attrs[GUARD] == "; ".join(asked)
    assert not multiplications(found)


def test_larger_arrays_have_programs_of_64_bits() -> None:
    for n, width in (((1 << 20) - 1, "i32"), (1 << 20, "i64"), (1 << 22, "i64")):
        found = lowered(size=(n, 1 << 10))
        assert kernel_of(found).attrs[INDEX] == width
        assert bool(guards_of(found.tile.entry)) == bool(not multiplications(found))
    assert kernel_of(found).attrs[REASON] == "nothing bounds the elements of buf<f32[N, M]>"


@pytest.mark.parametrize(("most", "width"), [(MOST_ELEMENTS - 1, "i32"), (MOST_ELEMENTS, "i64")])
def test_the_limit(most: int, width: str) -> None:
    kernel = parse_func("func @k(%0: mem<f32>) {\n  return\n}")
    n = BufType((sym("N"),), ts.float32)

    def width_of(*buffers: BufType, facts: Facts) -> str:
        found, guards = with_width(kernel, buffers, facts)
        assert not guards
        return found.attrs[INDEX]

    assert width_of(n, facts=Facts({"N": (1, most)})) == width
    # A view reaches as far as its strides do, also backwards.
    view = BufType((sym("N"), 3), ts.float32, (-4, 1))
    far = Facts({"N": (1, (most - 2) // 4 + 1)})
    assert width_of(n, view, facts=far) == "i32"
    assert width_of(view, facts=Facts({"N": (1, most)})) == "i64"
    # Nothing is known of a stride.
    free = BufType((4, 3), ts.float32, (sym("K"), 1))
    assert width_of(free, facts=Facts({"N": (1, 4)})) == "i64"
    # No guard helps where the size is known.
    vast = BufType((1 << 31,), ts.int8)
    assert with_width(kernel, [vast], Facts(), MOST_ELEMENTS)[0].attrs[INDEX] == "i64"


def test_a_class_of_sizes_has_bounds_of_its_own() -> None:
    size = ts.dim("S", 1, 1 << 40, anchors=[128])

    @ts.jit
    def f(x: ts.Tensor[size, 8]) -> Any:
        return x + 1

    for length, is_guarded in ((128, False), (100, True)):
        found = f.lower(struct(length, 8), machine="sm_90a")
        assert kernel_of(found).attrs[INDEX] == "i32"
        assert bool(guards_of(found.tile.entry)) == is_guarded


def test_it_is_in_all_forms_of_a_program() -> None:
    found = lowered("N <= 4096", "M % 8 == 0", "M <= 4096")
    ranges = 'ranges="1 <= N <= 4096; 1 <= M_8 <= 512"'
    assert ranges in str(found.graph)
    assert ranges in str(found.schedule)
    assert ranges in str(found.tile)
    kernel = 'index="i32" reason="buf<f32[N, 8*M_8]> has at most 16777216 elements"'
    assert kernel in str(found.tile)
    assert kernel in str(found.target)
    for text in (str(found.graph), str(found.schedule), str(kernel_of(found))):
        assert str(parse_func(text)) == text


def test_cpus_and_functions_without_annotations_say_nothing() -> None:
    assert not ts.jit(lambda x: x + 1).lower(struct(4), machine="sm_90a").graph.attrs
    found = lowered("N <= 8", "M <= 8", machine="x86-64-v3")
    assert not found.graph.attrs
    assert all(not f.attrs for f in found.tile.funcs.values())


# --- sizes that are known ---------------------------------------------------------------------


def may_wrap(func: Func) -> list[Op]:
    """Arithmetic of 32 bits behind addresses that may not hold its result."""
    known: dict[Value, tuple[int, int]] = {}
    behind: set[Value] = set()
    ops = list(walk(func.body))
    (threads,) = [op.threads for op in ops if isinstance(op, g.BlockInfo)]
    for op in ops:
        for result in op.results:
            found = (0, threads - 1) if isinstance(op, g.ThreadId) else bounds_of(op, known)
            if found is not None:
                known[result] = found
    for op in reversed(ops):
        if isinstance(op, t.PtrAdd):
            behind.update(op.operands[1:])
        elif isinstance(op, (t.Map, t.Cast)) and op.result in behind:
            behind.update(op.operands)
    return [
        op
        for op in ops
        if isinstance(op, t.Map)
        and op.result in behind
        and op.result.type == ScalarType(int32)
        and op.fn.name in ("add", "sub", "mul", "shl")
        and op.result not in known
    ]


LARGE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elementwise": (lambda x: x * 2 + 1, (struct(70000, 70000),)),
    "transpose": (lambda x: x.T + 1, (struct(70000, 70001),)),
    "rows": (lambda x: ts.softmax(x, axis=-1), (struct(70000, 70000),)),
    "columns": (lambda x: ts.sum(x, axis=0), (struct(70000, 70000),)),
    "far rows": (lambda x: x[:, 0] + 1, (struct(64, 1 << 26),)),
    "two far dims": (lambda x: x[:, :, 0] + 1, (struct(64, 2, 17000000),)),
    "three far dims": (lambda x: x[:, :, :, 0] + 1, (struct(8, 4, 4, 70000000),)),
    # Each dim of a tile stays below 2^31, but not their sum.
    "far apart": (
        lambda x: ts.sum(x[:, :, 0], axis=1),
        (struct(1000, 16, 78741067, dtype=ts.int8),),
    ),
    "far rows of far columns": (
        lambda x: ts.softmax(x[:, :, 0].astype(ts.float32), axis=1),
        (struct(1000, 16, 100215903, dtype=ts.int8),),
    ),
    "bytes": (lambda x: x[:, ::-1] + 1, (struct(70000, 70000, dtype=ts.int8),)),
}


@pytest.mark.parametrize("name", LARGE)
def test_no_address_wraps_around(name: str) -> None:
    fn, types = LARGE[name]
    found = ts.jit(fn).lower(*types, machine="sm_90a")
    for kernel in found.gpu_kernels.values():
        assert not may_wrap(kernel.func)


def test_products_of_many_elements() -> None:
    a, b = struct(70000, 70000, dtype=ts.bfloat16), struct(70000, 128, dtype=ts.bfloat16)
    found = ts.jit(lambda a, b: a @ b).lower(a, b, machine="sm_90a")
    for kernel in found.gpu_kernels.values():
        offsets = [op for op in walk(kernel.func.body) if isinstance(op, t.PtrAdd)]
        assert offsets
        assert all(str(op.operands[1].type) == "i64" for op in offsets)


def test_the_check_sees_numbers_that_wrap() -> None:
    func = parse_func("""
func @wraps(%x: ptr<global>) {
  target.block_info() {threads=64}
  %i = target.thread_id() : i32
  %s = target.const() {value=40000000, type=i32} : i32
  %a = target.map([%i, %s]) {fn=mul} : i32
  %w = target.cast(%a) {dtype=i64} : i64
  %p = target.ptr_add(%x, %w) : ptr<global>
  return
}
""")
    assert [op.fn.name for op in may_wrap(func) if isinstance(op, t.Map)] == ["mul"]
