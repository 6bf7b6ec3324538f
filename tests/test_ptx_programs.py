"""Array programs compiled for a GPU: their kernels run as PTX text and agree with the CPU's.

Each is run with asynchronous copies done early and late, and assembled without spills.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile_gpu import LoweredGpu
from tessera.errors import CompileError
from tessera.graph.trace import Trace, active
from tessera.ir.intexpr import evaluate
from tessera.ir.types import TensorType
from tessera.runtime.cuda.assemblers import find_assembler
from tessera.target.gpu import gpu
from tests.differential.test_symbolic_sizes import PROGRAMS as SYMBOLIC
from tests.differential.test_symbolic_sizes import Program, random_input, static
from tests.ptx.program import run_lowered
from tests.tolerance import assert_close

RNG = np.random.default_rng(11)


def f32(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("f4")


def i32(*shape: int, below: int = 1000) -> Any:
    return RNG.integers(-below, below, shape).astype("i4")


def softmax(x: Any) -> Any:
    y = ts.exp(x - ts.max(x, axis=-1, keepdims=True))
    return y / ts.sum(y, axis=-1, keepdims=True)


def layer_norm(x: Any, g: Any, b: Any) -> Any:
    mean = ts.mean(x, axis=-1, keepdims=True)
    variance = ts.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / ts.sqrt(variance + 1e-5) * g + b


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "chain": (lambda x, y: ts.tanh(x + y * 2) / (1 + ts.exp(-x)), [f32(1000), f32(1000)]),
    "one": (lambda x: x + 1, [f32(1)]),
    "odd": (lambda x: x * x, [f32(33, 7)]),
    "broadcast": (lambda x, y: x + y, [f32(40, 33), f32(33)]),
    "integers": (lambda x: (x * 7) // 3 + x % 5 - (x >> 2), [i32(500)]),
    "i64": (lambda x: (x * 7) // 3 + x % 5, [RNG.integers(-(10**12), 10**12, 500)]),
    "f64": (lambda x: ts.exp(x) * ts.sin(x) + ts.log(ts.abs(x)), [RNG.standard_normal(300)]),
    "f16": (lambda x: ts.sqrt(ts.abs(x)) + 1, [f32(300).astype("f2")]),
    "bool": (lambda x, y: ts.logical_and(x > 0, y < 0), [f32(300), f32(300)]),
    "cast": (lambda x: ts.astype(ts.astype(x, ts.int32) + 1, ts.bfloat16), [f32(500) * 50]),
    "where": (lambda x: ts.where(x > 0, x, -x * 3), [f32(1001)]),
    "sum of rows": (lambda x: ts.sum(x, axis=1), [f32(33, 200)]),
    "sum of columns": (lambda x: ts.sum(x, axis=0), [f32(200, 33)]),
    "sum": (lambda x: ts.sum(x), [f32(5000)]),
    "max": (lambda x: ts.max(x, axis=1), [f32(33, 77)]),
    "argmax": (lambda x: ts.argmax(x, axis=1), [f32(33, 77)]),
    "any": (lambda x: ts.any(x > 2, axis=0), [f32(50, 20)]),
    "softmax": (softmax, [f32(33, 130)]),
    "layer norm": (layer_norm, [f32(20, 96), f32(96), f32(96)]),
    "transpose": (lambda x: ts.permute_dims(x, (1, 0)) + 1, [f32(70, 45)]),
    "concat": (lambda x, y: ts.concat([x, y], axis=0), [f32(30, 5), f32(7, 5)]),
    "slice": (lambda x: x[3:-2, ::2] * 2, [f32(20, 21)]),
    "take": (lambda x, i: ts.take(x, i, axis=0), [f32(20, 9), RNG.integers(0, 20, 30)]),
    "cumulative sum": (lambda x: ts.cumulative_sum(x, axis=1), [f32(8, 100)]),
    "sort": (lambda x: ts.sort(x, axis=1), [f32(8, 100)]),
    "argsort": (lambda x: ts.argsort(x, axis=1), [f32(3, 60)]),
    "matmul": (lambda x, y: x @ y, [f32(40, 50), f32(50, 30)]),
    "matmul f16": (lambda x, y: x @ y, [f32(48, 64).astype("f2"), f32(64, 32).astype("f2")]),
    "matmul and more": (lambda x, y: ts.tanh(x @ y.T + 1), [f32(33, 20), f32(17, 20)]),
    "gradient of softmax": (
        lambda x, y: ts.grad(lambda v: ts.sum(softmax(v) * y))(x),
        [f32(12, 50), f32(12, 50)],
    ),
    "gradient of layer norm": (
        lambda x, g, b: ts.grad(lambda v: ts.sum(layer_norm(x, v, b) ** 2))(g),
        [f32(20, 64), f32(64), f32(64)],
    ),
    "gradient of take": (
        lambda x, i: ts.grad(lambda v: ts.sum(ts.take(v, i, axis=0) ** 2))(x),
        [f32(20, 9), RNG.integers(0, 20, 50)],
    ),
}
# Sums in another order, and functions that are approximated.
LENGTHS = {"sum": 5000, "sum of rows": 200, "sum of columns": 200, "matmul f16": 64}


def outputs_of(lowered: Any) -> list[Any]:
    return [np.zeros(shape, dtype.np) for shape, dtype in lowered.signature.outputs]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    function, arrays = PROGRAMS[name]
    inputs = [ts.asarray(x) for x in arrays]
    expected = np.asarray(ts.jit(function)(*inputs))
    lowered = ts.jit(function).lower(*inputs, machine="sm_90a")
    for mode in ("eager", "lazy"):
        (found,) = outputs = outputs_of(lowered)
        assert run_lowered(lowered, arrays, outputs, async_mode=mode)
        assert found.dtype == expected.dtype
        if found.dtype.kind in "iub?":
            np.testing.assert_array_equal(found, expected)
        else:
            assert_close(found, expected, length=LENGTHS.get(name, 256), factor=4)
    assemble(lowered)


def assemble(lowered: Any) -> None:
    try:
        find_assembler("auto")
    except CompileError:
        return
    usages = [kernel.usage for kernel in lowered.cubin.reflection.kernels]
    assert usages
    assert not any(usage.spills or usage.stack for usage in usages)


@pytest.mark.parametrize("machine", ["sm_80", "sm_89", "sm_100a", "sm_120"])
@pytest.mark.parametrize("name", ["chain", "softmax", "sum of columns", "matmul f16", "sort"])
def test_other_machines(name: str, machine: str) -> None:
    function, arrays = PROGRAMS[name]
    inputs = [ts.asarray(x) for x in arrays]
    lowered = ts.jit(function).lower(*inputs, machine=machine)
    outputs = outputs_of(lowered)
    run_lowered(lowered, arrays, outputs, async_mode="lazy")
    assert_close(outputs[0], np.asarray(ts.jit(function)(*inputs)), length=5000, factor=4)
    assemble(lowered)


@pytest.mark.parametrize("program", SYMBOLIC, ids=[p[0] for p in SYMBOLIC])
def test_symbolic_sizes(program: Program) -> None:
    _, function, reference, inputs = program
    with active(Trace("jit", "program", staging=True)) as trace:
        result = function(*[trace.input(TensorType(shape, dtype)) for shape, dtype in inputs])
        graph, captured = trace.finish([result], "program")
    assert not captured
    lowered = LoweredGpu(graph, gpu("sm_90a"))
    rng = np.random.default_rng(0)
    for sizes in ((0, 3, 2), (1, 1, 1), (5, 33, 17), (3, 2, 0), (9, 70, 5)):
        dims = dict(zip("nmk", sizes, strict=True))
        arrays = [random_input(rng, static(shape, dims), dtype) for shape, dtype in inputs]
        ((shape, dtype),) = lowered.signature.outputs
        found = np.zeros([evaluate(extent, dims) for extent in shape], dtype.np)
        run_lowered(lowered, arrays, [found], dims=dims, async_mode="lazy")
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in arrays]
        expected = np.asarray(reference(*wide)).astype(found.dtype)
        assert_close(found, expected, length=max(sizes[2], sizes[1] * sizes[0], 1), factor=4)
