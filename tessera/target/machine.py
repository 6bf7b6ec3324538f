"""What a CPU can do: the table that lowerings, the Target verifier and the compiler ask.

A ``Machine`` says how wide vectors are, how many registers hold them and which instructions exist,
and names the same thing to LLVM (``llvm_cpu`` and ``llvm_features``). Rows of the table are the
x86-64 levels, and ``aarch64``, whose vectors (NEON) all such machines have; ``host()`` is the
machine that this process runs on, with everything it has.

Code made for a machine may use its features and nothing else: LLVM ends the process when it meets
an intrinsic that the machine lacks, so ``missing_features`` is asked before a text reaches LLVM.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tessera.dtypes import DType, bfloat16, int8, int16, uint8
from tessera.errors import CompileError


class Feature(Enum):
    """An instruction set extension, or an ability that follows from one.

    The value of an extension is its LLVM name. The last group are abilities: they state what a
    lowering wants to know, and hold on every machine that has the extension behind them.
    """

    SSE3 = "sse3"
    SSSE3 = "ssse3"
    SSE41 = "sse4.1"
    SSE42 = "sse4.2"
    POPCNT = "popcnt"
    AVX = "avx"
    AVX2 = "avx2"
    FMA = "fma"
    F16C = "f16c"
    BMI = "bmi"
    BMI2 = "bmi2"
    LZCNT = "lzcnt"
    MOVBE = "movbe"
    AVX512F = "avx512f"
    AVX512CD = "avx512cd"
    AVX512BW = "avx512bw"
    AVX512DQ = "avx512dq"
    AVX512VL = "avx512vl"
    AVX512_VNNI = "avx512vnni"
    AVX512_BF16 = "avx512bf16"
    AVX512_FP16 = "avx512fp16"
    AVX512_VBMI = "avx512vbmi"
    AVX512_VBMI2 = "avx512vbmi2"
    AVX512_BITALG = "avx512bitalg"
    AVX512_IFMA = "avx512ifma"
    AVX512_VPOPCNTDQ = "avx512vpopcntdq"
    AVX_VNNI = "avxvnni"
    GFNI = "gfni"
    AMX_TILE = "amx-tile"
    AMX_INT8 = "amx-int8"
    AMX_BF16 = "amx-bf16"
    NEON = "neon"

    MASKED_MEMORY = "masked memory"
    """Loads and stores with a mask on lanes of 32 and 64 bits."""
    MASKED_NARROW = "masked narrow"
    """Loads and stores with a mask on lanes of 8 and 16 bits."""
    GATHER = "gather"
    SCATTER = "scatter"


_ABILITIES: dict[Feature, Feature] = {
    Feature.MASKED_MEMORY: Feature.AVX2,
    Feature.MASKED_NARROW: Feature.AVX512BW,
    Feature.GATHER: Feature.AVX2,
    Feature.SCATTER: Feature.AVX512F,
}

_EXTENSIONS: tuple[Feature, ...] = tuple(f for f in Feature if f not in _ABILITIES)

_V2 = (Feature.SSE3, Feature.SSSE3, Feature.SSE41, Feature.SSE42, Feature.POPCNT)
_V3 = (
    *_V2,
    Feature.AVX,
    Feature.AVX2,
    Feature.FMA,
    Feature.F16C,
    Feature.BMI,
    Feature.BMI2,
    Feature.LZCNT,
    Feature.MOVBE,
)
_V4 = (
    *_V3,
    Feature.AVX512F,
    Feature.AVX512CD,
    Feature.AVX512BW,
    Feature.AVX512DQ,
    Feature.AVX512VL,
)

_AMX = (Feature.AVX512_BF16, Feature.AMX_TILE, Feature.AMX_INT8, Feature.AMX_BF16)

# LLVM tunes some CPUs to avoid 512-bit registers even for vectors of that width. A lowering that
# asks for 16 lanes has decided already; it must not be split behind its back.
_KEEP_512 = "-prefer-256-bit"


# Layer norm of two arrays of 17 MB takes two threads of a Zen 4 0.65 ms past the caches and 0.8 to
# 2 through them, of a Zen 5 0.38 and 0.27; 16 of a Sapphire Rapids take 0.13 either way.
_KEEPS = {"znver4": 1.0}


@dataclass(frozen=True, slots=True)
class Machine:
    """The limits and features of one CPU.

    Attributes:
        name: How people call it: a level, or the CPU's name for the host.
        arch: The architecture; ``x86-64`` or ``aarch64``.
        level: The highest level of the table that it has.
        llvm_cpu: The CPU whose instruction costs LLVM assumes.
        llvm_features: The features for LLVM, ``+avx2,+fma``.
        vector_bits: The width of the vectors that lowerings use.
        features: Everything it can do.
        registers: The number of vector registers.
        cacheline: Bytes a cache line.
        l1: Bytes of the first data cache.
        l2: Bytes of the second cache.
        cores: How many there are.
        keeps: How many times as much memory as one several threads find in the caches again.
    """

    name: str
    arch: str
    level: str
    llvm_cpu: str
    llvm_features: str
    vector_bits: int
    features: frozenset[Feature]
    registers: int
    cacheline: int = 64
    l1: int = 32 * 1024
    l2: int = 512 * 1024
    cores: int = 4
    keeps: float = 1.5

    @property
    def fma(self) -> bool:
        """Whether ``a * b + c`` is one instruction with one rounding."""
        return Feature.FMA in self.features

    @property
    def scales(self) -> bool:
        """Whether a multiplication by a power of two that is no number of the format is one
        instruction, for vectors of any length."""
        return self.has(Feature.AVX512F, Feature.AVX512VL)

    @property
    def looks_up(self) -> bool:
        """Whether picking numbers from a table of 16 or 32 float32 is one instruction."""
        return self.has(Feature.AVX512F)

    @property
    def _is_zen(self) -> bool:
        return self.llvm_cpu.startswith("znver")

    @property
    def assists(self) -> bool:
        """Whether a result that is too small for a normal number takes long: of an exponential
        that underflows a Xeon (Sapphire Rapids) makes one in 200 cycles, and a Zen in one."""
        return self.arch == "x86-64" and not self._is_zen

    @property
    def waits_for_lines(self) -> bool:
        """Whether products wait for vectors of 512 bits that lie in two lines: on a Xeon (Sapphire
        Rapids) they take up to 1.4 times as long, on a Zen 4 hardly longer."""
        return self.has_masks and not self._is_zen

    @property
    def reads_on(self) -> bool:
        """Whether rows that lie one behind the other had better be left to prefetchers, which go on
        over the ends of pages: a Zen 4 that is told to fetch the next one takes 1.2 to 1.4 times as
        long, a Xeon (Emerald Rapids) 0.8 times."""
        return self._is_zen

    @property
    def turns(self) -> bool:
        """Whether vectors are turned, and lines taken from many places, at little cost: a Zen
        begins two shuffles in a cycle, a Xeon one of 512 bits. Products of four rows that turn
        squares of bfloat16 take a Zen 5 0.5 of the time, a Xeon (Sapphire Rapids) 1.7; rows of 64
        bytes that change places four by four 0.6 and 1.2."""
        return self._is_zen

    @property
    def hands_over(self) -> bool:
        """Whether a core that looks for work has it so soon that 2 us of it are worth sharing:
        steps of a loop on two cores of a Zen 3 take 0.65 of the time then, on a Xeon (Emerald
        Rapids) of 2 to 16 cores 0.9 to 1.35."""
        return self._is_zen

    @property
    def waits_for_few(self) -> bool:
        """Whether the first cache waits for few lines, 24 of a Zen 3 or 4, so that memory is idle
        where rows of two arrays are fetched into it. Fetched into the second one, gradients of
        norms of 4096 or 16384 rows of 4 KB take a Zen 4 0.63 to 0.83 of the time; a Xeon (Sapphire
        Rapids) 0.9 to 1.1."""
        return self.llvm_cpu in ("znver3", "znver4")

    @property
    def pairs(self) -> bool:
        """Whether polynomials are evaluated in pairs of terms. With 256 bits a core has as many
        instructions to wait for as with 512, and each of them is half of the work."""
        return self.arch == "x86-64" and self.fma and not self.scales

    @property
    def compresses(self) -> bool:
        """Whether it brings the lanes that a mask chooses to the front of a vector in one
        instruction, or in a few: by a table of where they come from."""
        if self.vector_bits == 512:
            return self.has(Feature.AVX512F, Feature.AVX512VL)
        return self.vector_bits == 256 and self.has(Feature.AVX2)

    @property
    def has_masks(self) -> bool:
        """Whether it has registers for masks, so that under one memory is as fast as without. A
        Zen 3, which has none, takes dozens of operations to store a vector under one."""
        return self.has(Feature.AVX512F)

    def takes_masks(self, bits: int) -> bool:
        """Whether one instruction reads or writes some elements of so many bits of a vector."""
        return self.has_masks or (bits >= 32 and self.has(Feature.AVX2))

    def gathers(self, bits: int) -> bool:
        """Whether one instruction reads or writes some elements of so many bits that lie apart, and
        takes less time than one access after the other."""
        return self.has_masks and bits >= 32

    @property
    def has_panels(self) -> bool:
        """Whether it has registers for matrices, and multiplies those of bfloat16 and of bytes."""
        return self.has(*_AMX)

    def has(self, *features: Feature) -> bool:
        """Whether it has all of these features."""
        return self.features.issuperset(features)

    def vector_lanes(self, bits: int) -> int:
        """How many elements of so many bits one vector register holds; at least one."""
        return max(1, self.vector_bits // bits)

    def group(self, a: DType, b: DType) -> int:
        """How many products of two narrow dtypes one instruction adds to a lane of 32 bits; 1 where
        there is none, or none that is worth it. Pairs of bfloat16 take a Zen 4 as long as a vector
        of float32, and a Xeon (Emerald Rapids) four times as long: 1024 cubed 1.7 times as long as
        converted to float32."""
        if a is b is bfloat16:
            has_pairs = Feature.AVX512_BF16 in self.features
            return 2 if has_pairs and self._is_zen else 1
        if {a, b} == {uint8, int8}:
            return 4 if Feature.AVX512_VNNI in self.features else 1
        return 2 if a is b is int16 and self.arch == "x86-64" else 1

    def masks(self, bits: int) -> bool:
        """Whether lanes of so many bits are loaded and stored under a mask by the hardware."""
        return Feature.MASKED_MEMORY in self.features and (
            bits in (32, 64) or (bits in (8, 16) and Feature.MASKED_NARROW in self.features)
        )

    def __str__(self) -> str:
        return self.name


def _with_abilities(extensions: Iterable[Feature]) -> frozenset[Feature]:
    have = frozenset(extensions)
    return have | {ability for ability, behind in _ABILITIES.items() if behind in have}


def _row(name: str, cpu: str, vector_bits: int, extensions: tuple[Feature, ...]) -> Machine:
    wide = Feature.AVX512F in extensions
    flags = [f"+{feature.value}" for feature in extensions]
    return Machine(
        name=name,
        arch="x86-64",
        level=name,
        llvm_cpu=cpu,
        llvm_features=",".join([*flags, _KEEP_512] if wide else flags),
        vector_bits=vector_bits,
        features=_with_abilities(extensions),
        registers=32 if wide else 16,
    )


_AARCH64 = Machine(
    name="aarch64",
    arch="aarch64",
    level="aarch64",
    llvm_cpu="generic",
    llvm_features="+neon",
    vector_bits=128,
    # Fused products and conversions of halves are part of it, though LLVM has no names for them.
    features=frozenset({Feature.NEON, Feature.FMA, Feature.F16C}),
    registers=32,
)

# Each level of an architecture contains those before it.
_TABLE: dict[str, Machine] = {
    row.name: row
    for row in (
        _row("x86-64", "x86-64", 128, ()),
        _row("x86-64-v2", "x86-64-v2", 128, _V2),
        _row("x86-64-v3", "x86-64-v3", 256, _V3),
        _row("x86-64-v4", "x86-64-v4", 512, _V4),
        _row("x86-64-v4-vnni", "x86-64-v4", 512, (*_V4, Feature.AVX512_VNNI)),
        _row("x86-64-v4-amx", "x86-64-v4", 512, (*_V4, Feature.AVX512_VNNI, *_AMX)),
        _AARCH64,
    )
}

LEVELS: tuple[str, ...] = tuple(_TABLE)
"""The names of the levels of each architecture, lowest first."""


def machine(name: str) -> Machine:
    """The machine of that name: a level, or ``host``.

    Code for a level below the host's runs on the host, and is the code that a machine of exactly
    that level would run.

    >>> machine("x86-64-v3").vector_lanes(32)
    8

    Raises:
        CompileError: There is no such machine.
    """
    if name == "host":
        return host()
    row = _TABLE.get(name)
    if row is None:
        raise CompileError(
            f"machine: there is no machine {name!r}",
            fix=f"use 'host' or one of {', '.join(LEVELS)}",
        )
    return row


@functools.cache
def host() -> Machine:
    """The machine that this process runs on.

    Raises:
        CompileError: Its architecture has no row in the table.
    """
    arch, cpu, extensions, flags = _host_description()
    level = next(name for name in reversed(LEVELS) if not missing_on_host(_TABLE[name]))
    row = _TABLE[level]
    known = [feature for feature in _EXTENSIONS if feature.value in extensions]
    return Machine(
        name=cpu if arch == "x86-64" else f"{arch} ({cpu})",
        arch=arch,
        level=level,
        llvm_cpu=cpu,
        llvm_features=f"{flags},{_KEEP_512}" if row.vector_bits == 512 else flags,
        vector_bits=row.vector_bits,
        features=_with_abilities(known) | row.features,
        registers=row.registers,
        l1=_cache_bytes(1, row.l1),
        l2=_cache_bytes(2, row.l2),
        cores=os.cpu_count() or 1,
        keeps=_KEEPS.get(cpu, row.keeps),
    )


def supported_levels() -> tuple[str, ...]:
    """The levels whose code this process can run, lowest first."""
    return tuple(name for name in LEVELS if not missing_on_host(_TABLE[name]))


def missing_on_host(target: Machine) -> tuple[str, ...]:
    """What code for a machine may use and the host lacks, by LLVM names; empty if it can run."""
    arch, _, have, _ = _host_description()
    if target.arch != arch:
        return (target.arch,)
    return tuple(sorted(_plus(target) - have))


def host_arch() -> str:
    """The architecture of this process."""
    return _host_description()[0]


def _plus(target: Machine) -> frozenset[str]:
    return frozenset(flag[1:] for flag in target.llvm_features.split(",") if flag[:1] == "+")


_ARCHS = {"x86_64": ("x86-64", ""), "aarch64": ("aarch64", "+neon"), "arm64": ("aarch64", "+neon")}
"""Architectures by the first word of LLVM's triple, with the features that LLVM need not state."""


@functools.cache
def _host_description() -> tuple[str, str, frozenset[str], str]:
    """The host's architecture, its LLVM name, its features, and all features with their signs."""
    import llvmlite.binding as llvm

    triple = str(llvm.get_process_triple())
    known = _ARCHS.get(triple.split("-")[0])
    if known is None:
        raise CompileError(
            f"machine: the host is {triple}",
            rule="compiled code runs on x86-64 and aarch64",
        )
    arch, always = known
    flags = ",".join(filter(None, (always, str(llvm.get_host_cpu_features().flatten()))))
    if "+amx-tile" in flags and not _may_use_tiles():
        flags = flags.replace("+amx-", "-amx-")
    have = frozenset(flag[1:] for flag in flags.split(",") if flag[:1] == "+")
    return arch, str(llvm.get_host_cpu_name()), have, flags


_ARCH_PRCTL = 158
"""The number of Linux's system call on x86-64."""

_ASK_FOR, _TILE_DATA = 0x1023, 18
"""What it is asked: that this process may use a part of the registers, and the number of that."""


def _may_use_tiles() -> bool:
    """Asks Linux for the registers for matrices: 8 KB that each thread of the process then has.
    Where it is refused, as where a thread's stack for signals is too small, they are not used."""
    import ctypes

    if sys.platform != "linux":
        return False
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    args = [ctypes.c_long(n) for n in (_ARCH_PRCTL, _ASK_FOR, _TILE_DATA)]
    return int(call(*args)) == 0


def _cache_bytes(level: int, default: int) -> int:
    """The size of the host's data cache of that level, as Linux states it."""
    for index in range(8):
        try:
            words = [_cache_field(index, name) for name in ("level", "type", "size")]
        except OSError:
            break
        size = re.fullmatch(r"(\d+)([KM])", words[2])
        if words[0] == str(level) and words[1] != "Instruction" and size:
            return int(size[1]) << {"K": 10, "M": 20}[size[2]]
    return default


def _cache_field(index: int, name: str) -> str:
    with open(f"/sys/devices/system/cpu/cpu0/cache/index{index}/{name}") as file:
        return file.read().strip()


# The features behind the intrinsics ``llvm.x86.<prefix>...``; the longest matching prefix counts.
_INTRINSICS: dict[str, tuple[Feature, ...]] = {
    "sse.": (),
    "sse2.": (),
    "rdtsc": (),
    "sse3.": (Feature.SSE3,),
    "ssse3.": (Feature.SSSE3,),
    "sse41.": (Feature.SSE41,),
    "sse42.": (Feature.SSE42,),
    "avx.": (Feature.AVX,),
    "avx2.": (Feature.AVX2,),
    "fma.": (Feature.FMA,),
    "vcvtps2ph": (Feature.F16C,),
    "bmi.": (Feature.BMI2,),
    "vgf2p8": (Feature.GFNI,),
    "avx512.": (Feature.AVX512F,),
    "avx512.conflict": (Feature.AVX512CD,),
    "avx512.pmaddw": (Feature.AVX512BW,),
    "avx512.permvar.qi": (Feature.AVX512_VBMI,),
    "avx512.vpermi2var.qi": (Feature.AVX512_VBMI,),
    "avx512.pmultishift": (Feature.AVX512_VBMI,),
    "avx512.vpdp": (Feature.AVX512_VNNI,),
    "avx512.vpmadd52": (Feature.AVX512_IFMA,),
    "avx512bf16.": (Feature.AVX512_BF16,),
    "avx512.vpshufbitqmb": (Feature.AVX512_BITALG,),
    "avx512fp16.": (Feature.AVX512_FP16,),
    "ldtilecfg": (Feature.AMX_TILE,),
    "tilezero": (Feature.AMX_TILE,),
    "tileload": (Feature.AMX_TILE,),
    "tilestore": (Feature.AMX_TILE,),
    "tilerelease": (Feature.AMX_TILE,),
    "tdpb": (Feature.AMX_INT8,),
    "tdpbf16ps": (Feature.AMX_BF16,),
}

_NARROW_ELEMENT = re.compile(r"\.(?:[bw]|qi|hi|pmul\w*|pack\w*|psad\w*|dbpsad\w*)\b")
_INTRINSIC = re.compile(r"@llvm\.x86\.([a-z0-9._]+)")


def intrinsic_features(name: str) -> frozenset[Feature] | None:
    """The features that ``llvm.x86.<name>`` needs, or None for a name that no row covers."""
    row = max((row for row in _INTRINSICS if name.startswith(row)), key=len, default=None)
    if row is None:
        return None
    needs = set(_INTRINSICS[row])
    if name.startswith("avx512") and name.endswith((".128", ".256")):
        needs.add(Feature.AVX512VL)
    if name.startswith("avx512.") and _NARROW_ELEMENT.search(name):
        needs.add(Feature.AVX512BW)
    return frozenset(needs)


def missing_features(text: str, target: Machine) -> dict[str, tuple[str, ...]]:
    """The intrinsics in an LLVM text that a machine cannot run, each with what it lacks.

    An intrinsic without a row in the table is reported as lacking ``a known requirement``: code
    generation for one that the machine lacks would end the process, so none passes unknown.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(set(_INTRINSIC.findall(text))):
        needs = intrinsic_features(name)
        if needs is None:
            found[f"llvm.x86.{name}"] = ("a known requirement",)
        elif not target.has(*needs):
            lacking = needs - target.features
            found[f"llvm.x86.{name}"] = tuple(sorted(feature.value for feature in lacking))
    return found
