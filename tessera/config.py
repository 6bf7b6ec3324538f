"""Settings: an immutable snapshot that can be changed for a while.

The settings in force belong to the running context (thread or task), start from the environment,
and never change under somebody who took a snapshot: work that runs later on another thread takes
``config.current()`` with it and enters ``config.using(snapshot)`` there.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Generator, Hashable, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final

from tessera.errors import TesseraError, api_boundary

ASSEMBLERS: Final = ("auto", "nvjitlink", "ptxas", "driver")
"""What ``assembler`` may be."""


MATMUL_PRECISIONS: Final = ("float32", "tf32")
"""What ``matmul_precision`` may be."""


RANK_PROMOTIONS: Final = ("allow", "forbid")
"""What ``rank_promotion`` may be."""


SENTINELS: Final = ("nan", "inf", "overflow", "bounds")
"""What ``sentinels`` may name."""


class ConfigError(TesseraError, ValueError):
    """A setting does not exist, or cannot have this value."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings at one moment.

    Attributes:
        verify: Verify programs after each pass (``TESSERA_VERIFY=1``).
        dump: Which layers or passes write their programs to files (``TESSERA_DUMP=graph,tile``).
        dump_dir: Where they go (``TESSERA_DUMP_DIR``).
        cpu_level: CPU level to compile for in place of the machine's own, such as ``x86-64-v3``,
            which this machine must be able to run
            (``TESSERA_CPU_LEVEL``).
        cache_dir: Folder of the compilation cache; empty for none (``TESSERA_CACHE_DIR``).
        threads: Threads that a compiled function may use, the caller's included; by default as
            many as this process may use cores (``TESSERA_THREADS``).
        memory_cache: Mebibytes of freed memory of the host that are kept for later arrays; by
            default an eighth of the machine's, and no more than 1024. What is kept above it goes
            with the next large array (``TESSERA_MEMORY_CACHE``).
        assembler: What assembles PTX text: ``ptxas``, ``nvjitlink``, ``driver``, or ``auto`` for
            the first of them that there is (``TESSERA_ASSEMBLER``).
        matmul_precision: How products of float32 matrices are computed on a GPU: ``float32``, or
            ``tf32`` for tensor cores, which read 10 bits of each mantissa and add in float32
            (``TESSERA_MATMUL_PRECISION``).
        rank_promotion: What happens to arrays of different numbers of dims that are broadcast
            together: ``allow``, or ``forbid`` for an error; numbers and arrays without dims always
            are (``TESSERA_RANK_PROMOTION``).
        cuda_debug: Wait for each launch on a GPU, so that errors name their kernel
            (``TESSERA_CUDA_DEBUG=1``).
        cuda_timeout: Seconds after which a kernel counts as hung in that mode; 0 for any time
            (``TESSERA_CUDA_TIMEOUT``).
        cuda_graphs: Launches from which on a compiled function becomes a CUDA graph when it runs
            on the same memory again; 0 for never (``TESSERA_CUDA_GRAPHS``).
        nvtx: Mark runs for NVIDIA's profilers, by the package nvtx (``TESSERA_NVTX=1``).
        disable_jit: Run jitted functions as Python, op by op (``TESSERA_DISABLE_JIT=1``).
        debug_nans: Fail where an operation gives NaN (``TESSERA_DEBUG_NANS=1``).
        debug_infs: Fail where an operation gives an infinity (``TESSERA_DEBUG_INFS=1``).
        debug_bounds: Compile code for CPUs that checks each access to memory, and fails where one
            leaves its buffer; what it is to write is NaN, or -1, before
            (``TESSERA_DEBUG_BOUNDS=1``).
        promises: What the functions that run promise of their ops; no setting of its own.
        sentinels: What compiled code looks for in the values that it computes: some of
            ``nan``, ``inf``, ``overflow`` and ``bounds``, separated by commas
            (``TESSERA_SENTINELS=nan,inf``).
        memory_budget: Bytes that a call of the function that is compiled may need, 0 for any
            number; no setting of its own.
        policy: The numerics policy in force, set by ``ts.policy``; None for none.
    """

    verify: bool
    dump: str
    dump_dir: str
    cpu_level: str | None
    cache_dir: str
    threads: int
    memory_cache: int = 1024
    assembler: str = "auto"
    matmul_precision: str = "float32"
    rank_promotion: str = "allow"
    cuda_debug: bool = False
    cuda_timeout: float = 10.0
    cuda_graphs: int = 0
    nvtx: bool = False
    disable_jit: bool = False
    debug_nans: bool = False
    debug_infs: bool = False
    debug_bounds: bool = False
    sentinels: str = ""
    memory_budget: int = field(default=0, repr=False)
    promises: tuple[Hashable, ...] = field(default=(), repr=False)
    policy: Hashable = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ConfigError(f"config: threads is {self.threads}, but must be at least 1")
        if self.assembler not in ASSEMBLERS:
            raise ConfigError(
                f"config: assembler is {self.assembler!r}",
                fix=f"set it (or TESSERA_ASSEMBLER) to one of {', '.join(ASSEMBLERS)}",
            )
        if self.matmul_precision not in MATMUL_PRECISIONS:
            raise ConfigError(
                f"config: matmul_precision is {self.matmul_precision!r}",
                fix="set it (or TESSERA_MATMUL_PRECISION) to one of "
                f"{', '.join(MATMUL_PRECISIONS)}",
            )
        if self.rank_promotion not in RANK_PROMOTIONS:
            raise ConfigError(
                f"config: rank_promotion is {self.rank_promotion!r}",
                fix="set it (or TESSERA_RANK_PROMOTION) to one of "
                f"{', '.join(RANK_PROMOTIONS)}",
            )
        if not self.sentinel_set <= set(SENTINELS):
            raise ConfigError(
                f"config: sentinels is {self.sentinels!r}",
                fix=f"name some of {', '.join(SENTINELS)}, separated by commas, or none",
            )
        for name in ("memory_cache", "cuda_timeout", "cuda_graphs"):
            if not 0 <= getattr(self, name) < 1e9:
                raise ConfigError(
                    f"config: {name} is {getattr(self, name)}, but must not be below 0"
                )

    @property
    def sentinel_set(self) -> frozenset[str]:
        """What compiled code looks for in the values that it computes."""
        return frozenset(self.sentinels.split(",")) if self.sentinels else frozenset()

    def dumps(self, name: str) -> bool:
        """Whether a layer or pass of this name writes its programs."""
        return bool(self.dump) and not {name, "all"}.isdisjoint(self.dump.split(","))

    def key(self) -> Hashable:
        """The settings that compiled code depends on, for cache keys."""
        return (
            self.cpu_level, self.threads, self.assembler, self.matmul_precision, self.debug_bounds,
            self.rank_promotion, self.promises, self.sentinels, self.policy,
            self.memory_budget,
        )  # fmt: skip


def from_environment(environ: Mapping[str, str] | None = None) -> Config:
    """The settings that environment variables ask for.

    Args:
        environ: The variables; by default the process's.

    Raises:
        ConfigError: A variable has a value that it cannot have.
    """
    env = os.environ if environ is None else environ
    threads = env.get("TESSERA_THREADS", "").strip()
    if threads and not (threads.isdecimal() and int(threads)):
        raise ConfigError(
            f"config: TESSERA_THREADS is {threads!r}", fix="set it to a number of at least 1"
        )
    base = env.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Config(
        verify=_switch(env, "TESSERA_VERIFY"),
        dump=env.get("TESSERA_DUMP", "").replace(" ", ""),
        dump_dir=env.get("TESSERA_DUMP_DIR", "tessera-dump"),
        cpu_level=env.get("TESSERA_CPU_LEVEL") or None,
        cache_dir=env.get("TESSERA_CACHE_DIR", os.path.join(base, "tessera")),
        threads=int(threads) if threads else usable_cpus(),
        memory_cache=int(_number(env, "TESSERA_MEMORY_CACHE", _usual_memory_cache())),
        assembler=env.get("TESSERA_ASSEMBLER", "").strip().lower() or "auto",
        matmul_precision=env.get("TESSERA_MATMUL_PRECISION", "").strip().lower() or "float32",
        rank_promotion=env.get("TESSERA_RANK_PROMOTION", "").strip().lower() or "allow",
        cuda_debug=_switch(env, "TESSERA_CUDA_DEBUG"),
        cuda_timeout=_number(env, "TESSERA_CUDA_TIMEOUT", 10.0),
        cuda_graphs=int(_number(env, "TESSERA_CUDA_GRAPHS", 0.0)),
        nvtx=_switch(env, "TESSERA_NVTX"),
        disable_jit=_switch(env, "TESSERA_DISABLE_JIT"),
        debug_nans=_switch(env, "TESSERA_DEBUG_NANS"),
        debug_infs=_switch(env, "TESSERA_DEBUG_INFS"),
        debug_bounds=_switch(env, "TESSERA_DEBUG_BOUNDS"),
        sentinels=env.get("TESSERA_SENTINELS", "").replace(" ", ""),
    )


def _switch(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "").strip().lower()
    if value not in ("", "0", "1", "false", "true", "no", "yes", "off", "on"):
        raise ConfigError(f"config: {name} is {value!r}", fix="set it to 0 or 1")
    return value in ("1", "true", "yes", "on")


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    value = env.get(name, "").strip()
    if value and not re.fullmatch(r"\d{1,8}(\.\d*)?", value):
        raise ConfigError(f"config: {name} is {value!r}", fix="set it to a number from 0 on")
    return float(value) if value else default


def usable_cpus() -> int:
    """How many CPUs this process may run on now."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _usual_memory_cache() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        memory = 1 << 32
    return min(1024, memory // 8 >> 20)


OVERRIDDEN: Final = ctypes.c_int64()
"""Whether a `with` block ever put settings in force, for native code: contexts are copied, so that
they may outlive the block."""

# Promises and policies have blocks of their own.
_INNER: Final = ("promises", "memory_budget", "policy")
_NAMES: Final = tuple([f.name for f in fields(Config) if f.name not in _INNER])


class Settings:
    """Access to the settings in force; ``tessera.config`` is the only instance needed.

    Attributes:
        override: the snapshot that a `with` block put in force, or None.
    """

    __slots__ = ("_base", "override")

    _base: Config | None
    override: ContextVar[Config | None]

    def __init__(self, base: Config | None = None) -> None:
        self._base = base
        self.override: ContextVar[Config | None] = ContextVar("tessera.config", default=None)

    @api_boundary
    def __setattr__(self, name: str, value: object) -> None:
        if name in ("_base", "override"):
            object.__setattr__(self, name, value)
            return
        if name not in _NAMES:
            raise _no_setting(name)
        raise ConfigError(
            f"config: assignment to {name}",
            rule="settings are changed for a block, or for the process by its environment",
            fix=f"write `with ts.config.update({name}={value!r}):`, or set TESSERA_{name.upper()} "
            "in the environment",
        )

    def current(self) -> Config:
        """The settings in force, as a snapshot."""
        override = self.override.get()
        return self.outermost() if override is None else override

    def outermost(self) -> Config:
        """The settings outside of all `with` blocks."""
        if self._base is None:
            self._base = from_environment()
        return self._base

    @property
    def verify(self) -> bool:
        """Whether programs are verified after each pass."""
        return self.current().verify

    @property
    def dump(self) -> str:
        """Which layers or passes write their programs to files."""
        return self.current().dump

    @property
    def dump_dir(self) -> str:
        """Where dumped programs go."""
        return self.current().dump_dir

    @property
    def cpu_level(self) -> str | None:
        """CPU level to compile for in place of the machine's own."""
        return self.current().cpu_level

    @property
    def cache_dir(self) -> str:
        """Folder of the compilation cache."""
        return self.current().cache_dir

    @property
    def threads(self) -> int:
        """Threads that a compiled function may use."""
        return self.current().threads

    @property
    def memory_cache(self) -> int:
        """Mebibytes of freed memory of the host that are kept for later arrays."""
        return self.current().memory_cache

    @property
    def assembler(self) -> str:
        """What assembles PTX text."""
        return self.current().assembler

    @property
    def matmul_precision(self) -> str:
        """How products of float32 matrices are computed on a GPU."""
        return self.current().matmul_precision

    @property
    def cuda_debug(self) -> bool:
        """Whether to wait for each launch on a GPU."""
        return self.current().cuda_debug

    @property
    def cuda_timeout(self) -> float:
        """Seconds after which a kernel counts as hung in that mode."""
        return self.current().cuda_timeout

    @property
    def cuda_graphs(self) -> int:
        """Launches from which on a compiled function becomes a CUDA graph; 0 for never."""
        return self.current().cuda_graphs

    @property
    def nvtx(self) -> bool:
        """Whether to mark runs for NVIDIA's profilers."""
        return self.current().nvtx

    @property
    def disable_jit(self) -> bool:
        """Whether jitted functions run as Python, op by op."""
        return self.current().disable_jit

    @property
    def debug_nans(self) -> bool:
        """Whether to fail where an operation gives NaN."""
        return self.current().debug_nans

    @property
    def debug_infs(self) -> bool:
        """Whether to fail where an operation gives an infinity."""
        return self.current().debug_infs

    @property
    def debug_bounds(self) -> bool:
        """Whether compiled code checks its accesses to memory."""
        return self.current().debug_bounds

    @property
    def sentinels(self) -> str:
        """What compiled code looks for in the values that it computes."""
        return self.current().sentinels

    def dumps(self, name: str) -> bool:
        """Whether a layer or pass of this name writes its programs."""
        return self.current().dumps(name)

    def key(self) -> Hashable:
        """The settings that compiled code depends on, for cache keys."""
        return self.current().key()

    @api_boundary
    def update(self, **changes: Any) -> AbstractContextManager[Config]:
        """Change settings within a ``with`` block: ``with config.update(verify=True): ...``.

        Raises:
            ConfigError: There is no such setting, or it cannot have this value.
        """
        for name in changes:
            if name not in _NAMES:
                raise _no_setting(name)
        _changed(self.current(), changes)  # which checks the values
        return self._updating(changes)

    @contextmanager
    def _updating(self, changes: Mapping[str, Any]) -> Generator[Config, None, None]:
        with self.using(_changed(self.current(), changes)) as snapshot:
            yield snapshot

    @contextmanager
    def using(self, snapshot: Config) -> Generator[Config, None, None]:
        """Put a snapshot in force within a ``with`` block."""
        if snapshot is self.current():
            yield snapshot  # so calls from then on need not ask what is in force
            return
        OVERRIDDEN.value = 1
        snapshot = _one(snapshot)
        token = self.override.set(snapshot)
        try:
            yield snapshot
        finally:
            # An interruption may have kept it from its turn, until the blocks around had ended.
            if self.override.get() is snapshot:
                self.override.reset(token)

    def __repr__(self) -> str:
        return repr(self.current())


# Native code knows settings by their identity, so that equal ones are one object; it is asked again
# for those that are dropped here.
@lru_cache(256)
def _one(settings: Config) -> Config:
    return settings


@lru_cache(256, typed=True)
def _replaced(settings: Config, **changes: Any) -> Config:
    return replace(settings, **changes)


def _changed(settings: Config, changes: Mapping[str, Any]) -> Config:
    try:
        return _replaced(settings, **changes)
    except TypeError:  # a value without a hash
        return replace(settings, **changes)


def _no_setting(name: str) -> ConfigError:
    import difflib  # slow to load, and seldom needed

    close = difflib.get_close_matches(name, _NAMES, 1)
    return ConfigError(
        f"config: there is no setting {name!r}",
        rule=f"the settings are {', '.join(_NAMES)}",
        fix=f"did you mean {close[0]!r}?" if close else None,
    )


config: Final = Settings()
"""The settings of this process."""
