"""The machine table, the host, and what intrinsics need."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import pytest

from tessera.dtypes import bfloat16, int8, int16, uint8
from tessera.errors import CompileError
from tessera.target.machine import (
    LEVELS,
    Feature,
    host,
    intrinsic_features,
    machine,
    missing_features,
    missing_on_host,
    supported_levels,
)


@pytest.mark.parametrize(
    ("level", "bits", "registers", "fma"),
    [
        ("x86-64", 128, 16, False),
        ("x86-64-v2", 128, 16, False),
        ("x86-64-v3", 256, 16, True),
        ("x86-64-v4", 512, 32, True),
        ("x86-64-v4-vnni", 512, 32, True),
        ("x86-64-v4-amx", 512, 32, True),
        ("aarch64", 128, 32, True),
    ],
)
def test_rows(level: str, bits: int, registers: int, fma: bool) -> None:
    row = machine(level)
    assert (row.level, row.vector_bits, row.registers, row.fma) == (level, bits, registers, fma)
    assert row.vector_lanes(32) == bits // 32
    assert row.cacheline == 64
    assert hash(row) == hash(machine(level))


@pytest.mark.parametrize(
    ("level", "words", "bytes_", "halves"),
    [
        ("x86-64", 2, 1, 1),
        ("x86-64-v2", 2, 1, 1),
        ("x86-64-v3", 2, 1, 1),
        ("x86-64-v4", 2, 1, 1),
        ("x86-64-v4-vnni", 2, 4, 1),
        ("x86-64-v4-amx", 2, 4, 1),
        ("aarch64", 1, 1, 1),
    ],
)
def test_groups(level: str, words: int, bytes_: int, halves: int) -> None:
    row = machine(level)
    assert row.group(int16, int16) == words
    assert row.group(uint8, int8) == bytes_
    assert row.group(bfloat16, bfloat16) == halves
    assert row.group(int8, int8) == row.group(int16, int8) == 1
    zen = replace(row, llvm_cpu="znver4")
    assert zen.group(bfloat16, bfloat16) == (2 if Feature.AVX512_BF16 in row.features else 1)


def test_lanes_are_at_least_one() -> None:
    assert machine("x86-64").vector_lanes(256) == 1
    assert machine("x86-64-v3").vector_lanes(8) == 32


def test_each_level_contains_those_before_it() -> None:
    for low, high in itertools.pairwise(LEVELS):
        if machine(low).arch != machine(high).arch:
            continue
        assert machine(low).features < machine(high).features or machine(low).features == set()


def test_abilities_follow_from_extensions() -> None:
    assert not machine("x86-64-v2").has(Feature.MASKED_MEMORY)
    v3, v4 = machine("x86-64-v3"), machine("x86-64-v4")
    assert v3.has(Feature.MASKED_MEMORY, Feature.GATHER)
    assert not v3.has(Feature.SCATTER)
    assert v4.has(Feature.SCATTER, Feature.MASKED_NARROW)
    assert [v3.masks(bits) for bits in (8, 16, 32, 64)] == [False, False, True, True]
    assert all(v4.masks(bits) for bits in (8, 16, 32, 64))
    assert not machine("x86-64").masks(32)


def test_the_host_has_its_level_and_can_run_it() -> None:
    here = host()
    assert here is host() is machine("host")
    assert here.level in supported_levels()
    assert here.level == supported_levels()[-1]
    assert missing_on_host(here) == ()
    assert here.features >= machine(here.level).features
    assert here.l1 >= 8 * 1024
    assert here.l2 >= here.l1


def test_no_host_has_features_that_do_not_exist() -> None:
    impossible = replace(machine(supported_levels()[0]), llvm_features="+avx9000")
    assert missing_on_host(impossible) == ("avx9000",)


def test_no_host_runs_the_code_of_another_architecture() -> None:
    others = [machine(level) for level in LEVELS if machine(level).arch != host().arch]
    assert others
    assert [missing_on_host(other) for other in others] == [(other.arch,) for other in others]


def test_an_unknown_machine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CompileError, match=r"no machine 'x86-65'\n.*'host' or one of x86-64, "):
        machine("x86-65")


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("sse2.pmadd.wd", set()),
        ("avx2.pmadd.wd", {Feature.AVX2}),
        ("avx512.mask.scalef.ps.512", {Feature.AVX512F}),
        ("avx512.mask.scalef.ps.256", {Feature.AVX512F, Feature.AVX512VL}),
        ("avx512.vpdpbusd.512", {Feature.AVX512_VNNI}),
        ("avx512.vpdpbusd.128", {Feature.AVX512_VNNI, Feature.AVX512VL}),
        ("avx512.pmaddw.d.512", {Feature.AVX512BW}),
        ("avx512.pmul.hr.sw.512", {Feature.AVX512F, Feature.AVX512BW}),
        ("avx512bf16.dpbf16ps.512", {Feature.AVX512_BF16}),
        ("tdpbf16ps.internal", {Feature.AMX_BF16}),
        ("tdpbssd.internal", {Feature.AMX_INT8}),
        ("ldtilecfg", {Feature.AMX_TILE}),
        ("tileloadd64", {Feature.AMX_TILE}),
    ],
)
def test_intrinsics_need(name: str, needs: set[Feature]) -> None:
    assert intrinsic_features(name) == needs


def test_missing_features_names_each_intrinsic_once() -> None:
    text = """
      %a = call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float> %x)
      %b = call <16 x float> @llvm.x86.avx512.mask.scalef.ps.512(<16 x float> %a)
      %c = call <4 x float> @llvm.x86.sse.rcp.ps(<4 x float> %d)
      %e = call float @llvm.x86.quantum.entangle(float %f)
    """
    assert missing_features(text, machine("x86-64-v3")) == {
        "llvm.x86.avx512.mask.scalef.ps.512": ("avx512f",),
        "llvm.x86.quantum.entangle": ("a known requirement",),
    }
    assert list(missing_features(text, machine("x86-64-v4"))) == ["llvm.x86.quantum.entangle"]


# Emitting for each CPU in a child process: LLVM ends the process where a row is wrong.
EMIT = """
import sys
from tessera.runtime.cpu import Source, assembly
from tessera.target.machine import machine
row = machine(sys.argv[1])
n = row.vector_lanes(32)
v = f"<{n} x float>"
print(assembly([Source(f'''
define void @f(ptr %p, ptr %q) {{
  %a = load {v}, ptr %p, align 4
  %b = call {v} @llvm.fma.v{n}f32({v} %a, {v} %a, {v} %a)
  store {v} %b, ptr %q, align 4
  ret void
}}
declare {v} @llvm.fma.v{n}f32({v}, {v}, {v})
''', row, "fused")]))
"""


@pytest.mark.parametrize(
    ("level", "register", "fused"),
    [
        ("x86-64", "%xmm", False),
        ("x86-64-v3", "%ymm", True),
        ("x86-64-v4", "%zmm", True),
        ("x86-64-v4-vnni", "%zmm", True),
        ("x86-64-v4-amx", "%zmm", True),
        ("aarch64", ".4s", True),
    ],
)
def test_llvm_agrees_on_width_and_fma(level: str, register: str, fused: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EMIT, level], capture_output=True, text=True, check=True
    )
    assert register in done.stdout
    assert any(name in done.stdout for name in ("vfmadd", "fmla")) == fused


def test_polynomials_go_in_pairs_with_fused_products_and_short_vectors() -> None:
    assert [name for name in LEVELS if machine(name).pairs] == ["x86-64-v3"]
