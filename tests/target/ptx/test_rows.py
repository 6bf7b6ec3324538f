"""Every scalar function on every dtype it takes, and every conversion, as PTX text: the same
elements as the table says, in the interpreter of PTX; and ptxas takes the text.
"""

from __future__ import annotations

import numpy as np
import pytest

from tessera import dtypes as d
from tessera.dtypes import DType, dtype_of
from tessera.errors import DTypeError
from tessera.ir.convert import bitcast_array, cast_array
from tessera.ir.core import Func
from tessera.ir.loc import Loc
from tessera.ir.scalar import SCALARS, ScalarFn, Sig, result_dtype
from tessera.target import ops as t
from tessera.target.gpu import GPUS, gpu
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.ptx.writer import write_kernels
from tests.target.ptx.assembling import assemble, needs_ptxas
from tests.target.ptx.evaluate import Array, cast_kernel, kernel_of, map_kernel, run_text
from tests.target.running import ulps
from tests.target.test_scalars import (
    ABSOLUTE,
    COSTLY_UNITS,
    UNITS,
    cast_elements,
    elements,
    operands,
)

REAL = tuple(x for x in d.ALL if not x.is_complex)
MACHINE = gpu("sm_90a")
WITHOUT_F8 = gpu("sm_80")

Case = tuple[ScalarFn, tuple[int, ...], Func]


def map_cases(dtype: DType, inputs: list[Array]) -> list[Case]:
    """Each function that takes the dtype, the inputs it takes, and a kernel."""
    found: list[Case] = []
    for fn in SCALARS.values():
        used = (0, 1, 2) if fn.sig is Sig.SELECT else tuple(range(1, fn.arity + 1))
        dtypes = [dtype_of(inputs[k].dtype) for k in used]
        try:
            result = result_dtype(fn, *dtypes)
        except DTypeError:
            continue
        if not result.is_complex:
            found.append((fn, used, map_kernel(fn.name, dtypes)))
    return found


def wrong_zeros(got: Array, want: Array) -> Array:
    """Where a zero has the wrong sign."""
    if not dtype_of(want.dtype).is_float:
        return np.zeros(want.shape, np.bool_)
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
    return (b == 0) & (np.signbit(a) != np.signbit(b))


def sane(fn: ScalarFn, inputs: list[Array]) -> list[Array]:
    """Operands that the interpreter of PTX can compute with: its float64 products may overflow."""
    if fn.name in ("rem", "mod", "floordiv", "fma") and inputs[0].dtype == np.float64:
        return [np.where(np.abs(x) > 1e300, 7.5, x) for x in inputs]
    return inputs


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_scalar_functions(dtype: DType) -> None:
    given = operands(dtype)
    for fn, used, kernel in map_cases(dtype, given):
        inputs = sane(fn, [given[k] for k in used])
        text = write_kernels([legalize_gpu(kernel, MACHINE)], MACHINE)
        want = fn.evaluate(*inputs)
        got = np.empty_like(want)
        run_text(text, kernel.name, inputs, got)
        allowed = UNITS.get(fn.name, COSTLY_UNITS if fn.cost >= 16 else 0)
        wrong = ulps(got, want, ABSOLUTE.get(fn.name, 0.0)) > allowed
        if fn.name not in ("min", "max"):
            wrong |= wrong_zeros(got, want)
        k = int(np.argmax(wrong))
        shown = ", ".join(str(x[k]) for x in inputs)
        assert not wrong.any(), f"{fn.name}({shown}) = {want[k]}, but was {got[k]}"


def check_casts(source: DType, machine_name: str) -> None:
    machine = gpu(machine_name)
    x = cast_elements(source)
    for target in REAL:
        kernel = cast_kernel(source, target)
        text = write_kernels([legalize_gpu(kernel, machine)], machine)
        want = cast_array(x, target)
        got = np.empty_like(want)
        run_text(text, kernel.name, [x], got)
        wrong = (ulps(got, want) > 0) | wrong_zeros(got, want)
        k = int(np.argmax(wrong))
        assert not wrong.any(), f"{source} {x[k]} -> {target} = {want[k]}, but was {got[k]}"


@pytest.mark.parametrize("source", REAL, ids=str)
def test_conversions(source: DType) -> None:
    check_casts(source, "sm_90a")


@pytest.mark.parametrize("source", [d.float8_e4m3fn, d.float8_e5m2, d.float32], ids=str)
def test_conversions_where_there_are_no_8_bit_floats(source: DType) -> None:
    check_casts(source, "sm_80")


def bitcast_kernel(source: DType, target: DType) -> Func:
    name = f"k_{source}_as_{target}"
    return kernel_of(lambda args: t.Bitcast(args[0], target, loc=Loc.unknown), [source], name)


@pytest.mark.parametrize("source", [x for x in REAL if x not in (d.bool_, d.int4)], ids=str)
def test_reinterpretations(source: DType) -> None:
    x = elements(source)
    for target in REAL:
        if target.is_bool or target.bits != source.bits:
            continue
        kernel = bitcast_kernel(source, target)
        text = write_kernels([legalize_gpu(kernel, MACHINE)], MACHINE)
        want = bitcast_array(x, target)
        got = np.empty_like(want)
        run_text(text, kernel.name, [x], got)
        assert np.array_equal(got.view(np.uint8), want.view(np.uint8)), f"{source} -> {target}"


@needs_ptxas
@pytest.mark.parametrize("machine_name", GPUS)
def test_all_rows_assemble(machine_name: str) -> None:
    machine = gpu(machine_name)
    everything = machine_name in ("sm_80", "sm_90a")
    for dtype in REAL if everything else (d.float8_e4m3fn, d.bfloat16, d.int8):
        kernels = [kernel for _, _, kernel in map_cases(dtype, operands(dtype))]
        kernels += [cast_kernel(dtype, target) for target in REAL]
        legal = [legalize_gpu(kernel, machine) for kernel in kernels]
        assemble(write_kernels(legal, machine), machine_name)
