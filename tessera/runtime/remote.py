"""Executables whose arrays are on a device: native code of the host starts kernels there.

What a kind of device does for them is a `RemoteBackend`; `runtime/cuda/backend.py` is the one for
NVIDIA's. A call allocates the outputs, hands addresses to the native entry, and returns when all is
started: nothing is waited for, unless a condition of the program has to be read back.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from tessera.config import config
from tessera.errors import Location
from tessera.graph.device import Backend, Device
from tessera.graph.remote import Remote
from tessera.ir.core import Func
from tessera.ir.intexpr import evaluate
from tessera.ir.types import TensorType
from tessera.runtime.executable import Signature
from tessera.runtime.hostcall import checked
from tessera.runtime.memory import COUNTED, Output, is_all_its_own
from tessera.target.gpu import Gpu


class Buffer(Protocol):
    """Memory of a device, for as long as the object lives."""

    @property
    def pointer(self) -> int:
        """Its address on the device."""
        ...


@dataclass(frozen=True)
class KernelCode:
    """A kernel of a program.

    Attributes:
        func: Target IR of one thread, as it was written.
        threads: of a block.
        shared: bytes of shared memory of a block.
        place: where in the user's program it comes from.
    """

    func: Func
    threads: int
    shared: int
    place: Location | None

    @property
    def name(self) -> str:
        """The name of its entry."""
        return self.func.name


@dataclass(frozen=True)
class Code:
    """A program that is to be loaded.

    Attributes:
        name: what messages call it.
        kernels: in the order of the table.
        machine: what they are for.
        cubin: assembles them; by the assembler of the device's driver, which it is given, where
            the settings say so or no other is there.
        sentinels: how many the kernels have.
        host: bytes of the host's memory that buffers are moved to.
        copies: how many copies to it and from it there are.
    """

    name: str
    kernels: Sequence[KernelCode]
    machine: Gpu
    cubin: Callable[[Any], Any]
    sentinels: int = 0
    host: int = 0
    copies: int = 0


Spec: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any]]"
"""Shape and dtype of an input."""

Starter: TypeAlias = Callable[..., Any]
"""A function of the inputs that starts a program and gives fresh outputs, or `NotImplemented` if it
has done nothing and the caller has to find another way."""


@dataclass(frozen=True)
class Job:
    """What a program is run for, again and again.

    Attributes:
        inputs: per input, the shape and dtype that an array has to have; None where the input is
            not an array, but what it has on the device, which is right.
        outputs: shape, dtype and bytes of each.
        types: of the arrays that are wanted as outputs, each None if it follows from the elements;
            by default the outputs are what arrays have on the device.
        is_single: whether the only output is wanted, not a list.
        scratch: bytes of scratch memory.
        dims: values of the symbolic dims.
        device: where.
        keep: what must stay alive with it.
        slow: what is called in place of declining; the starter takes a list of the inputs then, and
            gives that to it.
        on: for each output the input that it becomes, whose memory it takes; it has that shape, and
            inputs and outputs are what arrays have. Nothing where all are fresh.
    """

    inputs: Sequence[Spec | None]
    outputs: Sequence[Output]
    types: Sequence[TensorType | None] | None
    is_single: bool
    scratch: int
    dims: Sequence[int]
    device: Device
    keep: object
    slow: Callable[..., Any] | None = None
    on: Sequence[int | None] = ()

    def overwritten(self, k: int) -> int | None:
        """The input whose memory an output takes."""
        return self.on[k] if self.on else None


class LoadedCode(Protocol):
    """A program on a device."""

    table: np.ndarray
    """What the native entry reads: per kernel its handle, threads and bytes of shared memory."""

    def allocate(self, nbytes: int) -> Buffer:
        """New memory."""
        ...

    def starter(self, job: Job) -> Starter | None:
        """A faster way to run it, if there is one."""
        ...

    def run(self, inputs: Sequence[Remote], words: Sequence[Any]) -> None:
        """Runs the native entry.

        Args:
            inputs: what it reads, to be ordered after the work that makes them.
            words: its arguments after the record.
        """
        ...

    def told(self) -> int:
        """The number of the sentinel that was the first to tell of something since it was asked
        last, or 0. Waits for what was started.
        """
        ...


class RemoteBackend(Backend, Protocol):
    """What a kind of device does for executables."""

    def machine(self, device: Device) -> Gpu:
        """What to compile for."""
        ...

    def symbols(self) -> Mapping[str, int]:
        """The addresses of the functions that native entries call."""
        ...

    def load(self, code: Code, main: int, device: Device) -> LoadedCode:
        """Loads a program.

        Args:
            code: its kernels.
            main: the address of the native entry.
            device: where.
        """
        ...


TABLE_ENTRY = np.dtype([("function", "u8"), ("threads", "i4"), ("shared", "i4")])
"""An entry of the table; the native code reads it at these offsets."""


def make_table(kernels: Sequence[KernelCode], handles: Sequence[int]) -> np.ndarray:
    """The table of a program.

    Args:
        kernels: in order.
        handles: the driver's, for each.
    """
    rows = [(h, k.threads, k.shared) for k, h in zip(kernels, handles, strict=True)]
    return np.array(rows, TABLE_ENTRY)


def output_shapes(signature: Signature, dims: Mapping[str, int]) -> list[Output]:
    """Shape, dtype and bytes of each output for given dims."""
    found: list[Output] = []
    for dims_of, dtype in signature.outputs:
        shape = tuple([int(evaluate(d, dims)) for d in dims_of])
        found.append((shape, dtype.np, math.prod(shape) * dtype.np.itemsize))
    return found


def scratch_bytes(signature: Signature, dims: Sequence[int]) -> int:
    """Bytes of scratch memory for given dims."""
    if isinstance(signature.arena, int):
        return signature.arena
    return int(evaluate(signature.arena, dict(zip(signature.dims, dims, strict=True))))


@dataclass(frozen=True, slots=True)
class _Program:
    """A loaded program, and the way to run it that always works."""

    signature: Signature
    backend: RemoteBackend
    device: Device
    code: LoadedCode
    keep: object

    def run(self, inputs: Sequence[Remote], dims: Sequence[int] = ()) -> list[Remote]:
        """Starts it; see `RemoteExecutable.run`."""
        return self.run_on(inputs, (), dims)

    def run_on(
        self, inputs: Sequence[Remote], owned: Collection[int], dims: Sequence[int] = ()
    ) -> list[Remote]:
        """Starts it; see `RemoteExecutable.run_on`."""
        named = dict(zip(self.signature.dims, dims, strict=True))
        outputs = output_shapes(self.signature, named)
        return self.start(inputs, outputs, scratch_bytes(self.signature, dims), dims, owned)

    def start(
        self,
        inputs: Sequence[Remote],
        outputs: Sequence[Output],
        scratch: int,
        dims: Sequence[int],
        owned: Collection[int] = (),
    ) -> list[Remote]:
        """Starts it; see `RemoteExecutable.start`, and `run_on` about the last argument."""
        code, backend, device = self.code, self.backend, self.device
        allocate = code.allocate
        overwritten = self.signature.overwritten
        if any([on is not None and on not in owned for on in overwritten]):
            # Whoever sees these elements goes on seeing them: the program gets a copy.
            taken = {on for on in overwritten if on is not None and on not in owned}
            inputs = [backend.move(x, device) if k in taken else x for k, x in enumerate(inputs)]
        words: list[Any] = [x.address for x in inputs]
        found: list[Remote] = []
        for k, (shape, dtype, size) in enumerate(outputs):
            on = overwritten[k] if overwritten else None
            if on is not None:
                words.append(inputs[on].address)
                found.append(inputs[on].reshape(shape))
                continue
            buffer = allocate(size)
            address = buffer.pointer
            words.append(address)
            found.append(Remote(backend, device, buffer, address, shape, dtype))
        # Given back when this returns: whoever gets it next uses it after this program.
        room = allocate(scratch) if scratch else None
        words.append(0 if room is None else room.pointer)
        words += dims
        words.append(code.table)
        code.run(inputs, words)
        return found


class RemoteExecutable:
    """A compiled program on a device.

    Args:
        signature: what it takes and gives.
        backend: of the device.
        device: where it runs.
        code: the loaded program.
        keep: what must stay alive with it.
        calls_host: whether it calls functions of the host.
        suspects: where the program has sentinels, says whether results have what no sentinel looks
            at; else None.
        reads: whether it waits for conditions of loops and branches.

    Attributes:
        is_interruptible: whether Ctrl-C may end it in the middle: where it waits.
        told: whether sentinels have found something in the last call on this thread, which had
            these results; asked again it says no. None where the program has no sentinels. Calls of
            such a program wait for its end, and take turns.
        run: starts the program on a list of inputs, elements on the device of the right types, and
            on values of the symbolic dims, if there are any; gives a list of fresh outputs, which
            are computed later. Of inputs whose memory outputs take it makes copies.
        run_on: the same for inputs of which some, by their numbers, are nobody else's, now or later
            (see `is_its_own`): outputs take their memory. The values of the dims come last.
    """

    __slots__ = (
        "_code",
        "_found",
        "_lock",
        "_outputs",
        "_program",
        "_suspects",
        "_wrap",
        "device",
        "dtypes",
        "is_interruptible",
        "keep",
        "run",
        "run_on",
        "signature",
        "told",
    )

    def __init__(
        self,
        signature: Signature,
        backend: RemoteBackend,
        device: Device,
        code: LoadedCode,
        keep: object,
        calls_host: bool = False,
        suspects: Callable[[Sequence[Remote]], bool] | None = None,
        reads: bool = False,
    ) -> None:
        self.signature = signature
        self.is_interruptible = reads
        self.device = device
        self.keep = keep
        self.dtypes: list[np.dtype[Any]] = [dtype.np for _, dtype in signature.outputs]
        self._code = code
        self._outputs = None if signature.dims else output_shapes(signature, {})
        # A function that needs nothing of this object: it would keep itself alive by that.
        self._program = _Program(signature, backend, device, code, keep)
        self.run: Callable[..., list[Remote]] = self._program.run
        self.run_on: Callable[..., list[Remote]] = self._program.run_on
        self._suspects = suspects
        self._lock = threading.RLock()
        self._found = threading.local()
        self.told: Callable[[Sequence[Remote]], bool] | None = None
        self._wrap: list[Callable[..., Any]] = [_calling] if calls_host else []
        if suspects is not None:
            self.told = self._was_told
            self._wrap.append(self._watching)
        if self._wrap:
            self.run, self.run_on = self._wrapped(self.run), self._wrapped(self.run_on)
        elif self.overwrites:
            self._start_in_place()
        elif self._outputs is not None:
            found = self.starter(self._outputs, self.scratch(()), (), slow=self.run)
            self.run = found or self.run

    def _start_in_place(self) -> None:
        """A faster way to run it on inputs all of which it may write to that it writes to."""
        slow, on = self._program.run_on, self.signature.overwritten
        taken = frozenset([k for k in on if k is not None])
        inputs, outputs = self.signature.inputs, self.signature.outputs
        same = all([k is None or inputs[k] == outputs[n] for n, k in enumerate(on)])
        if self._outputs is None or not same:
            return
        job = Job(
            *([None] * len(inputs), self._outputs, None, False, self.scratch(()), (), self.device),
            keep=self.keep,
            slow=functools.partial(slow, owned=taken),
            on=on,
        )
        start = self._code.starter(job)
        if start is None:
            return

        def run_on(
            inputs: list[Remote], owned: Collection[int], dims: Sequence[int] = ()
        ) -> list[Remote]:
            if not taken <= frozenset(owned):
                return slow(inputs, owned, dims)
            found: list[Remote] = start(inputs)
            return found

        self.run_on = run_on

    @property
    def overwrites(self) -> bool:
        """Whether some of its outputs take the memory of inputs."""
        return any([on is not None for on in self.signature.overwritten])

    def scratch(self, dims: Sequence[int]) -> int:
        """Bytes of scratch memory that it needs for given dims."""
        return scratch_bytes(self.signature, dims)

    def starter(
        self,
        outputs: Sequence[Output],
        scratch: int,
        dims: Sequence[int],
        *,
        inputs: Sequence[Spec | None] | None = None,
        types: Sequence[TensorType | None] | None = None,
        is_single: bool = False,
        slow: Callable[..., Any] | None = None,
    ) -> Starter | None:
        """A faster way to `start` it again and again, if there is one.

        Args:
            outputs: as for `start`.
            scratch: bytes.
            dims: values of the symbolic dims.
            inputs: see `Job`; by default elements on the device.
            types: see `Job`.
            is_single: see `Job`.
            slow: see `Job`.
        """
        if self._wrap or self.overwrites:
            return None
        specs = [None] * len(self.signature.inputs) if inputs is None else inputs
        return self._code.starter(
            Job(specs, outputs, types, is_single, scratch, dims, self.device, self.keep, slow)
        )

    def array_starter(
        self,
        inputs: Sequence[Spec | None],
        types: Sequence[TensorType],
        is_single: bool,
        dims: Sequence[int] = (),
    ) -> Starter | None:
        """The same from arrays to arrays, for values of the symbolic dims; see `Job`."""
        outputs = self._outputs
        if outputs is None:
            outputs = output_shapes(
                self.signature, dict(zip(self.signature.dims, dims, strict=True))
            )
        return self.starter(
            outputs, self.scratch(dims), dims, inputs=inputs, types=types, is_single=is_single
        )

    def start(
        self,
        inputs: Sequence[Remote],
        outputs: Sequence[Output],
        scratch: int,
        dims: Sequence[int],
    ) -> list[Remote]:
        """`run` for a caller who knows the outputs and the scratch memory.

        Args:
            inputs: elements on the device.
            outputs: shape, dtype and bytes of each; the shape may be another one of as many.
            scratch: bytes.
            dims: values of the symbolic dims.
        """
        return self._wrapped(self._program.start)(inputs, outputs, scratch, dims)

    def _wrapped(self, run: Callable[..., list[Remote]]) -> Callable[..., list[Remote]]:
        """A way to run the program with all that a call of it takes."""
        for wrap in self._wrap:
            run = wrap(run)
        return run

    def _watching(self, run: Callable[..., list[Remote]]) -> Callable[..., list[Remote]]:
        """A way to run a program with sentinels: one call after the other, for it has one word that
        they tell by."""

        def call(*args: Any) -> list[Remote]:
            with self._lock:
                found = run(*args)
                if self._code.told():
                    self._found.is_bad = True
            return found

        return call

    def _was_told(self, outputs: Sequence[Remote]) -> bool:
        assert self._suspects is not None
        found: bool = getattr(self._found, "is_bad", False)
        self._found.is_bad = False
        return found or self._suspects(outputs)


def _owners(data: Remote) -> int:
    return sys.getrefcount(data.owner)


class _NoBackend:
    """What the elements have that references are counted at."""


def _one_owner() -> int:
    nothing: Any = _NoBackend()
    return _owners(Remote(nothing, Device("cpu"), _NoBackend(), 0, (), np.dtype(np.uint8)))


_ONE_OWNER = _one_owner()


def is_its_own(data: np.ndarray | Remote) -> bool:
    """Whether nobody else can see the memory of elements that nobody else has, on any device: no
    view, no other library; and what is started now writes to it after all that uses it."""
    if not isinstance(data, Remote):
        return is_all_its_own(data)
    return COUNTED and _owners(data) == _ONE_OWNER and data.backend.is_private(data)


def _calling(run: Callable[..., list[Remote]]) -> Callable[..., list[Remote]]:
    """A way to run a program that calls the host: each time, so that it is no CUDA graph, which
    would do the work of the device alone again."""
    run = checked(run)

    def call(*args: Any) -> list[Remote]:
        with config.update(cuda_graphs=0):
            return run(*args)

    return call
