"""What this machine can do at most: bytes a second by the size of what is worked on, and fused
multiply-adds a second, by kernels in LLVM IR that do nothing else."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from cpu.program import Cost

# Working sets, all threads together: in L1, in L2, in L3, about as large as that, in memory.
WORKING_SETS = (1 << 14, 1 << 19, 1 << 23, 1 << 25, 1 << 26, 1 << 28)


# Kind -> the feature, the instruction, the type of its operands, products a lane.
DOTS = {
    "int8": ("avx512vnni", "llvm.x86.avx512.vpdpbusd.512", "<64 x i8>", 4),
    "bf16": ("avx512bf16", "llvm.x86.avx512bf16.dpbf16ps.512", "<32 x bfloat>", 2),
}

# The same for registers of 16 rows of 64 bytes, whose products are 16 x 16 sums.
TILE_DOTS = {"int8": ("llvm.x86.tdpbssd", 64), "bf16": ("llvm.x86.tdpbf16ps", 32)}


@dataclass
class Roof:
    """The ceilings for one number of threads.

    Attributes:
        threads: how many.
        bandwidth: bytes of the working set -> bytes a second that a triad reads and writes.
        rates: kind -> operations a second.
    """

    threads: int
    bandwidth: dict[int, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)

    def stream(self, size: float) -> float:
        """Bytes a second for a working set of `size` bytes; logarithms are interpolated."""
        points = sorted(self.bandwidth.items())
        if size <= points[0][0]:
            return points[0][1]
        for (low, slow), (high, fast) in pairwise(points):
            if size <= high:
                part = math.log(size / low) / math.log(high / low)
                return math.exp((1 - part) * math.log(slow) + part * math.log(fast))
        return points[-1][1]

    def floor(self, cost: Cost) -> tuple[float, str]:
        """The least seconds, and what they are for."""
        moving = cost.bytes / self.stream(cost.bytes) if cost.bytes else 0.0
        working = cost.operations / self.rates[cost.kind]
        if moving >= working:
            return moving, "bytes"
        return working, "operations"

    def best(self, other: Roof) -> Roof:
        """The higher ones of the ceilings of two measurements."""
        return Roof(
            self.threads,
            {size: max(rate, other.bandwidth[size]) for size, rate in self.bandwidth.items()},
            {kind: max(rate, other.rates[kind]) for kind, rate in self.rates.items()},
        )


def measure(threads: int) -> Roof:
    """Measures the ceilings; takes about a second."""
    kernels = _Kernels()
    roof = Roof(threads)
    for size in WORKING_SETS:
        roof.bandwidth[size] = _bandwidth(kernels, size, threads)
    for kind in ("f32", "f64"):
        roof.rates[kind] = _rate(kernels, kind, threads)
    # Products of narrow numbers that are added up in 32 bits, where the machine has them and they
    # are no slower than those of float32, as pairs of bfloat16 are on some.
    for kind in ("int8", "bf16"):
        dots = _rate(kernels, kind, threads) if kind in kernels.dots else 0.0
        roof.rates[kind] = max(dots, roof.rates["f32"])
    return roof


class _Kernels:
    """The compiled kernels."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self.width = 64 if features.get("avx512f") else 32 if features.get("avx2") else 16
        wide = self.width == 64
        self.dots = {kind for kind, (name, *_) in DOTS.items() if wide and features.get(name)}
        self.features = features.flatten()
        self.llvm = llvm
        self.engines: list[Any] = []

    def compile(self, text: str, *types: Any) -> Callable[..., Any]:
        """The function `f` of a module, which releases the interpreter's lock while it runs."""
        module = self.llvm.parse_assembly(text)
        # An engine owns its machine.
        machine = self.llvm.Target.from_default_triple().create_target_machine(
            cpu=self.llvm.get_host_cpu_name(), features=self.features, opt=3
        )
        engine = self.llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        self.engines.append(engine)
        return ctypes.CFUNCTYPE(None, *types)(engine.get_function_address("f"))

    def tile_chains(self, kind: str) -> tuple[Callable[..., Any], int]:
        """Four sums in registers for matrices, and the operations of one turn of the loop."""
        name, depth = TILE_DOTS[kind]
        setting = struct.pack("<B15x8H16x8B8x", 1, *[64] * 8, *[16] * 8).hex("\\")
        load = "call void @llvm.x86.tileloadd64(i8 {0}, ptr %data, i64 64)"
        loads = "\n".join(load.format(k) for k in range(8))
        picks = [f"i8 {k}, i8 {4 + k // 2}, i8 {6 + k % 2}" for k in range(4)]
        steps = "\n".join(f"call void @{name}({registers})" for registers in picks)
        text = f"""
        @setting = internal constant [64 x i8] c"\\{setting}", align 64
        declare void @llvm.x86.ldtilecfg(ptr)
        declare void @llvm.x86.tilerelease()
        declare void @llvm.x86.tileloadd64(i8, ptr, i64)
        declare void @{name}(i8, i8, i8)
        define void @f(ptr %data, i64 %n) {{
        entry:
          call void @llvm.x86.ldtilecfg(ptr @setting)
          {loads}
          br label %loop
        loop:
          %i = phi i64 [ 0, %entry ], [ %j, %loop ]
          {steps}
          %j = add i64 %i, 1
          %more = icmp ult i64 %j, %n
          br i1 %more, label %loop, label %end
        end:
          call void @llvm.x86.tilerelease()
          ret void
        }}
        """
        compiled = self.compile(text, ctypes.c_void_p, ctypes.c_int64)
        return compiled, 4 * 2 * 16 * 16 * depth

    def chains(self, kind: str) -> tuple[Callable[..., Any], int]:
        """Independent chains of multiply-adds, and the operations of one turn of the loop."""
        if kind in TILE_DOTS and _has_tiles():
            return self.tile_chains(kind)
        element, size = {"f64": ("double", 8), "int8": ("i32", 4)}.get(kind, ("float", 4))
        lanes = self.width // size
        vector, chains = f"<{lanes} x {element}>", 12
        if kind in DOTS:
            _, name, other, products = DOTS[kind]
            step = f"call {vector} @{name}({vector} %c{{0}}, {other} %w, {other} %w)"
            declared = f"declare {vector} @{name}({vector}, {other}, {other})"
            operand = f"%w = bitcast {vector} %v to {other}"
            operations = 2 * chains * lanes * products
        else:
            name = f"llvm.fma.v{lanes}{kind}"
            step = f"call {vector} @{name}({vector} %c{{0}}, {vector} %v, {vector} %v)"
            declared = f"declare {vector} @{name}({vector}, {vector}, {vector})"
            operand, operations = "", chains * lanes * 2
        phis = "\n".join(
            f"%c{k} = phi {vector} [ %v, %entry ], [ %d{k}, %loop ]" for k in range(chains)
        )
        steps = "\n".join(f"%d{k} = " + step.format(k) for k in range(chains))
        stores = "\n".join(
            f"%p{k} = getelementptr {vector}, ptr %data, i64 {k}\n"
            f"store {vector} %d{k}, ptr %p{k}, align 64"
            for k in range(chains)
        )
        text = f"""
        define void @f(ptr %data, i64 %n) {{
        entry:
          %v = load {vector}, ptr %data, align 64
          {operand}
          br label %loop
        loop:
          %i = phi i64 [ 0, %entry ], [ %j, %loop ]
          {phis}
          {steps}
          %j = add i64 %i, 1
          %more = icmp ult i64 %j, %n
          br i1 %more, label %loop, label %end
        end:
          {stores}
          ret void
        }}
        {declared}
        """
        return self.compile(text, ctypes.c_void_p, ctypes.c_int64), operations

    def triad(self, streaming: bool) -> Callable[..., Any]:
        """a = b + s c, with stores past the caches or not."""
        lanes = self.width // 4
        vector = f"<{lanes} x float>"
        hint = ", !nontemporal !0" if streaming else ""
        text = f"""
        define void @f(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %n, i64 %turns) {{
        entry:
          %s = load {vector}, ptr %b, align 64
          br label %turn
        turn:
          %t = phi i64 [ 0, %entry ], [ %u, %again ]
          br label %loop
        loop:
          %i = phi i64 [ 0, %turn ], [ %j, %loop ]
          %pb = getelementptr {vector}, ptr %b, i64 %i
          %pc = getelementptr {vector}, ptr %c, i64 %i
          %pa = getelementptr {vector}, ptr %a, i64 %i
          %x = load {vector}, ptr %pb, align 64
          %y = load {vector}, ptr %pc, align 64
          %z = fmul {vector} %y, %s
          %w = fadd {vector} %x, %z
          store {vector} %w, ptr %pa, align 64{hint}
          %j = add i64 %i, 1
          %more = icmp ult i64 %j, %n
          br i1 %more, label %loop, label %again
        again:
          call void asm sideeffect "", "~{{memory}}"()
          %u = add i64 %t, 1
          %once = icmp ult i64 %u, %turns
          br i1 %once, label %turn, label %end
        end:
          ret void
        }}
        !0 = !{{i32 1}}
        """
        return self.compile(text, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)


def _has_tiles() -> bool:
    """Asks Linux for registers for matrices, too."""
    # Imported here: workers choose which version it is.
    from tessera.target.machine import host

    return host().has_panels


def cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _together(work: Callable[[int], None], threads: int) -> float:
    """Seconds from when the first thread begins until the last has done its part."""
    gate = threading.Barrier(threads)
    usable = cores()
    times: list[float] = []

    def run(k: int) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {usable[k % len(usable)]})
        gate.wait()
        start = time.perf_counter()
        work(k)
        times.extend((start, time.perf_counter()))

    pool = [threading.Thread(target=run, args=(k,)) for k in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return max(times) - min(times)


def _aligned(count: int) -> np.ndarray:
    # Written, since pages that never were are all one page.
    raw = np.ones(count + 16, np.float32)
    skip = (-raw.ctypes.data // 4) % 16
    return raw[skip : skip + count]


class Stream:
    """A triad over a working set, shared by threads: what moving so many bytes takes.

    Args:
        size: bytes of the working set, all threads together.
        threads: how many.
        kernels: the compiled kernels.
    """

    def __init__(self, size: float, threads: int, kernels: _Kernels | None = None) -> None:
        # It owns their code.
        self.kernels = kernels = kernels or _Kernels()
        self.threads = threads
        self.count = max(64, int(size) // threads // 12 // 64 * 64)
        self.arrays = [[_aligned(self.count) for _ in range(3)] for _ in range(threads)]
        self.places = [[a.ctypes.data for a in group] for group in self.arrays]
        self.vectors = self.count * 4 // kernels.width
        self.triads = [kernels.triad(streaming) for streaming in (False, True)]

    @property
    def bytes(self) -> int:
        """Those that a turn reads and writes."""
        return self.threads * self.count * 12

    def run(self, triad: Callable[..., Any], turns: int) -> float:
        """Seconds a turn, of so many one after the other."""
        return _together(
            lambda k: triad(*self.places[k], self.vectors, turns), self.threads
        ) / turns


class Handover:
    """Two threads that write one word in turn: how far apart their cores are. On one core they
    would wait for the scheduler at each turn.

    Cores of one third cache take some 100 ns there and back, others 400 and more. A virtual
    machine's may be moved from one to the other every second.
    """

    TURNS = 10_000

    def __init__(self) -> None:
        self.kernels = _Kernels()
        text = """
        define void @f(ptr %word, i64 %n, i64 %first) {
        entry:
          br label %wait
        wait:
          %k = phi i64 [ %first, %entry ], [ %k, %wait ], [ %next, %write ]
          %seen = load atomic i64, ptr %word acquire, align 8
          %mine = icmp eq i64 %seen, %k
          br i1 %mine, label %write, label %wait
        write:
          %up = add i64 %k, 1
          store atomic i64 %up, ptr %word release, align 8
          %next = add i64 %k, 2
          %more = icmp slt i64 %next, %n
          br i1 %more, label %wait, label %end
        end:
          ret void
        }
        """
        self.run = self.kernels.compile(text, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.word = _aligned(16).view(np.int64)

    def nanoseconds(self) -> float:
        """From one write of a thread to its next one."""
        self.word[0] = 0
        turns = 2 * self.TURNS
        passed = _together(lambda k: self.run(self.word.ctypes.data, turns + k, k), 2)
        return passed / self.TURNS * 1e9


def _bandwidth(kernels: _Kernels, size: int, threads: int) -> float:
    stream = Stream(size, threads, kernels)
    turns = max(1, int(2e8 / stream.bytes))
    best = min(stream.run(triad, turns) for triad in stream.triads for _ in range(6))
    return stream.bytes / best


def _rate(kernels: _Kernels, kind: str, threads: int) -> float:
    try:
        chains, operations = kernels.chains(kind)
    except RuntimeError:
        return 0.0
    data = [_aligned(16 * 16) for _ in range(threads)]
    turns = 1_000_000
    best = min(
        _together(lambda k: chains(data[k].ctypes.data, turns), threads) for _ in range(5)
    )
    return threads * turns * operations / best
