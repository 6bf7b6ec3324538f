"""A driver in memory, shaped like `cuda.bindings.driver`: our own bookkeeping is tested on it.

It knows nothing of the device's speed or faults. Work in a stream ends when a test says so
(`finish`), so what is ordered after what can be seen. Every call is in `calls`.
"""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

NOT_READY, OUT_OF_MEMORY, INVALID_CONTEXT, NOT_SUPPORTED = 600, 2, 201, 801

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MEMORY_POOLS_SUPPORTED": 1,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
}


class Names:
    """An enumeration: its members are their own names, or what it is called with."""

    def __getattr__(self, name: str) -> str:
        return name

    def __call__(self, value: Any) -> Any:
        return value


class FakeDriver:
    """The module; an instance is a driver that was started.

    Attributes:
        calls: names and arguments of all calls, but those about contexts.
        memory: bytes of each device.
        used: bytes in use.
        blocks: content of the device's memory, by address.
        failures: statuses that functions give from now on, by name.
        contexts: contexts that are current, innermost last.
    """

    def __init__(self, *, devices: int = 2, memory: int = 1 << 20) -> None:
        self.devices = devices
        self.memory = memory
        self.calls: list[tuple[Any, ...]] = []
        self.used = 0
        self.blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.sizes: dict[int, int] = {}
        self.failures: dict[str, int] = {}
        self.attributes = dict(ATTRIBUTES)
        self.contexts: list[int] = []
        self.pending: dict[int, list[int]] = {}
        self.events: dict[int, list[int]] = {}
        self.destroyed: set[int] = set()
        self.host: dict[int, Any] = {}
        self.version = 13000
        self.foreign_index = 0
        self._numbers = itertools.count(0x100)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("CU") or name in ("cuuint64_t", "cuuint32_t"):
            return Names()
        if name.startswith("cu"):
            return self._function(name)
        raise AttributeError(name)

    def _function(self, name: str) -> Any:
        implementation = getattr(type(self), "_" + name, None)
        if implementation is None:
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            if not name.startswith("cuCtx"):
                self.calls.append((name, *args))
            if name in self.failures:
                return (self.failures[name], None, None)
            result = implementation(self, *args)
            if isinstance(result, _Status):
                return (int(result), None, None)
            if result is None:
                return (0,)
            return (0, *result) if isinstance(result, tuple) else (0, result)

        return call

    def called(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of a function."""
        return [args for found, *args in self.calls if found == name]

    # Work, and its end.

    def work(self, stream: int) -> None:
        """Start something in a stream."""
        self.pending.setdefault(int(stream), []).append(next(self._numbers))

    def finish(self) -> None:
        """End all work."""
        self.pending.clear()

    def _is_done(self, work: list[int]) -> bool:
        running = {number for numbers in self.pending.values() for number in numbers}
        return running.isdisjoint(work)

    # Functions of the driver.

    def _cuInit(self, flags: int) -> None:
        pass

    def _cuDriverGetVersion(self) -> int:
        return self.version

    def _cuDeviceGetCount(self) -> int:
        return self.devices

    def _cuDeviceGet(self, index: int) -> int:
        return index

    def _cuDeviceGetName(self, length: int, device: int) -> bytes:
        return b"Fake" + b"\0" * 4

    def _cuDeviceTotalMem(self, device: int) -> int:
        return self.memory

    def _cuDeviceGetAttribute(self, attribute: str, device: int) -> int:
        return self.attributes.get(attribute.removeprefix("CU_DEVICE_ATTRIBUTE_"), 1)

    def _cuDevicePrimaryCtxRetain(self, device: int) -> int:
        return 0xC000 + device

    def _cuCtxPushCurrent(self, context: int) -> None:
        self.contexts.append(context)

    def _cuCtxPopCurrent(self) -> int:
        return self.contexts.pop()

    def _cuCtxSynchronize(self) -> None:
        self.finish()

    def _cuCtxRecordEvent(self, context: int, event: int) -> None:
        self.events[event] = [n for numbers in self.pending.values() for n in numbers]

    def _cuStreamCreateWithPriority(self, flags: int, priority: int) -> int:
        return self._new_in_context()

    def _cuStreamDestroy(self, stream: int) -> None:
        assert self.contexts
        self.destroyed.add(int(stream))

    def _cuStreamQuery(self, stream: int) -> tuple[Any, ...] | None:
        return self._answer(self.pending.get(int(stream), []))

    def _cuStreamSynchronize(self, stream: int) -> None:
        self.pending.pop(int(stream), None)

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        assert self.contexts
        assert int(stream) not in self.destroyed

    def _cuStreamBeginCapture(self, stream: int, mode: str) -> None:
        assert self.contexts

    def _cuStreamEndCapture(self, stream: int) -> int:
        return next(self._numbers)

    def _cuGraphInstantiate(self, graph: int, flags: int) -> int:
        return next(self._numbers)

    def _cuGraphDestroy(self, graph: int) -> None:
        pass

    def _cuGraphLaunch(self, graph: int, stream: int) -> None:
        self.work(stream)

    def _cuGraphExecDestroy(self, graph: int) -> None:
        pass

    def _cuEventCreate(self, flags: int) -> int:
        return self._new_in_context()

    def _cuEventDestroy(self, event: int) -> None:
        assert self.contexts

    def _cuEventRecord(self, event: int, stream: int) -> None:
        assert self.contexts
        assert int(stream) not in self.destroyed
        self.events[event] = list(self.pending.get(int(stream), []))

    def _cuEventQuery(self, event: int) -> Any:
        return self._answer(self.events.get(event, []))

    def _cuEventSynchronize(self, event: int) -> None:
        self.finish()

    def _cuEventElapsedTime(self, start: int, end: int) -> float:
        return 1.5

    def _cuMemPoolCreate(self, properties: Any) -> int:
        return next(self._numbers)

    def CUmemPoolProps(self) -> Any:
        return SimpleNamespace(location=SimpleNamespace())

    def _cuMemPoolSetAttribute(self, pool: int, attribute: str, value: int) -> None:
        pass

    def _cuMemPoolGetAttribute(self, pool: int, attribute: str) -> int:
        return self.used

    def _cuMemPoolTrimTo(self, pool: int, size: int) -> None:
        pass

    def _cuMemAllocFromPoolAsync(self, size: int, pool: int, stream: int) -> Any:
        return self._allocate(size)

    def _cuMemAlloc(self, size: int) -> Any:
        return self._allocate(size)

    def _cuMemFreeAsync(self, pointer: int, stream: int) -> None:
        self._free(pointer)

    def _cuMemFree(self, pointer: int) -> None:
        self._free(pointer)

    def _cuMemGetInfo(self) -> tuple[int, int]:
        return self.memory - self.used, self.memory

    def _cuMemHostAlloc(self, size: int, flags: int) -> int:
        block = ctypes.create_string_buffer(size)
        self.host[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def _cuMemFreeHost(self, pointer: int) -> None:
        del self.host[pointer]

    def _cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(target, source, size)

    _cuMemcpyDtoHAsync = _cuMemcpyHtoDAsync
    _cuMemcpyDtoDAsync = _cuMemcpyHtoDAsync

    def _cuMemcpyPeerAsync(
        self, target: int, there: int, source: int, here: int, size: int, stream: int
    ) -> None:
        ctypes.memmove(target, source, size)

    def _cuMemsetD8Async(self, pointer: int, byte: int, size: int, stream: int) -> None:
        ctypes.memset(pointer, byte, size)

    def _cuPointerGetAttribute(self, attribute: str, pointer: int) -> Any:
        if attribute.endswith("DEVICE_ORDINAL"):
            return self.foreign_index
        if any(start <= pointer < start + len(b) for start, b in self.host.items()):
            return 1
        known = any(start <= pointer < start + len(b) for start, b in self.blocks.items())
        return 2 if known else _Status(1)

    def _cuModuleLoadData(self, image: bytes) -> int:
        return next(self._numbers)

    def _cuModuleUnload(self, module: int) -> None:
        assert self.contexts

    def _cuModuleGetFunction(self, module: int, name: bytes) -> Any:
        return _Status(500) if name == b"missing" else next(self._numbers)

    def _cuFuncSetAttribute(self, function: int, attribute: str, value: int) -> None:
        pass

    def _cuFuncGetAttribute(self, attribute: str, function: int) -> int:
        names = {"MAX_THREADS_PER_BLOCK": 512, "NUM_REGS": 128, "SHARED_SIZE_BYTES": 0}
        return names.get(attribute.removeprefix("CU_FUNC_ATTRIBUTE_"), 0)

    def _cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, function: int, threads: int, shared: int
    ) -> int:
        return 2

    def CUlaunchAttribute(self) -> Any:
        return SimpleNamespace(value=SimpleNamespace(clusterDim=SimpleNamespace()))

    def CUlaunchConfig(self) -> Any:
        return SimpleNamespace()

    def _cuLaunchKernel(self, kernel: int, *arguments: Any) -> None:
        self.work(arguments[7])

    def _cuLaunchKernelEx(self, config: Any, kernel: int, *arguments: Any) -> None:
        self.work(config.hStream)

    def _cuLinkCreate(self, count: int, options: list[str], values: list[Any]) -> int:
        self.log = dict(zip(options, values, strict=True))["CU_JIT_ERROR_LOG_BUFFER"]
        return next(self._numbers)

    def _cuLinkAddData(self, state: int, kind: str, data: bytes, *rest: Any) -> Any:
        if b"bad" in data:
            self.log[:9] = b"ptxas bad"
            return _Status(218)
        self.image = ctypes.create_string_buffer(b"\x7fELF" + data)
        return None

    def _cuLinkComplete(self, state: int) -> tuple[int, int]:
        return ctypes.addressof(self.image), len(self.image)

    def _cuLinkDestroy(self, state: int) -> None:
        pass

    def _cuTensorMapEncodeTiled(self, *arguments: Any) -> Any:
        block = ctypes.create_string_buffer(bytes(range(128)), 128)
        return SimpleNamespace(getPtr=lambda: ctypes.addressof(block), block=block)

    def _cuGetErrorName(self, status: int) -> bytes:
        return f"CUDA_ERROR_{status}".encode()

    def _cuGetErrorString(self, status: int) -> bytes:
        return b"the driver's words"

    def _answer(self, work: list[int]) -> Any:
        return None if self._is_done(work) else _Status(NOT_READY)

    def _new_in_context(self) -> Any:
        return next(self._numbers) if self.contexts else _Status(INVALID_CONTEXT)

    def _allocate(self, size: int) -> Any:
        assert self.contexts
        if self.used + size > self.memory:
            return _Status(OUT_OF_MEMORY)
        self.used += size
        block = ctypes.create_string_buffer(size + 256)
        pointer = -(-ctypes.addressof(block) // 256) * 256
        self.blocks[pointer] = block
        self.sizes[pointer] = size
        return pointer

    def _free(self, pointer: int) -> None:
        assert self.contexts
        self.used -= self.sizes.pop(pointer)
        del self.blocks[pointer]


class _Status(int):
    """A result that is a status, with nothing besides."""
