"""What the choices of tiles ask of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tessera.schedule.narrow_products import NarrowCpu

MOVES_LANES = 512
"""Bits of a register of machines for which it takes one instruction to move lanes between two of
them, whichever lanes they are."""


class Cpu(Protocol):
    """What the heuristics ask of a machine."""

    @property
    def vector_bits(self) -> int:
        """The width of a vector register."""
        ...

    @property
    def registers(self) -> int:
        """The number of vector registers."""
        ...

    @property
    def compresses(self) -> bool:
        """Whether it soon brings the lanes that a mask chooses to the front of a vector."""
        ...

    @property
    def keeps(self) -> float:
        """How many times as much memory as one several threads find in the caches again."""
        ...

    @property
    def turns(self) -> bool:
        """Whether vectors are turned, and lines taken from many places, at little cost."""
        ...

    @property
    def hands_over(self) -> bool:
        """Whether a core that looks for work has it so soon that 2 us of it are worth sharing."""
        ...


class CachedCpu(Cpu, NarrowCpu, Protocol):
    """What is asked of a machine where memory is read and written: by products, scans, passes."""

    @property
    def l1(self) -> int:
        """Bytes of the first data cache."""
        ...

    @property
    def l2(self) -> int:
        """Bytes of the second cache."""
        ...

    @property
    def cores(self) -> int:
        """How many there are."""
        ...

    @property
    def fma(self) -> bool:
        """Whether products are fused into sums."""
        ...

    @property
    def has_masks(self) -> bool:
        """Whether memory under a mask is as fast as without."""
        ...

    @property
    def waits_for_lines(self) -> bool:
        """Whether products wait for vectors that lie in two lines."""
        ...

    @property
    def waits_for_few(self) -> bool:
        """Whether the first cache waits for few lines at a time."""
        ...

    @property
    def reads_on(self) -> bool:
        """Whether rows that lie one behind the other had better be left to prefetchers."""
        ...

    def masks(self, bits: int) -> bool:
        """Whether lanes of so many bits are loaded and stored under a mask."""
        ...


@runtime_checkable
class Gpu(Protocol):
    """What the heuristics ask of a GPU."""

    @property
    def multiprocessors(self) -> int:
        """How many there are."""
        ...

    @property
    def threads_per_block(self) -> int:
        """The most threads of a block."""
        ...


@dataclass(frozen=True, slots=True)
class CpuModel:
    """A machine of so many registers of so many bits."""

    vector_bits: int = 256
    registers: int = 16
    compresses: bool = False
    keeps: float = 1.5
    turns: bool = True
    hands_over: bool = True
