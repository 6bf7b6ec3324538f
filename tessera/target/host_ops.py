"""Target ops of the program that runs on the host and uses a GPU: starting kernels, reading back,
copying to the host for a while.

Only `main` of a GPU program has them. Pointers to the GPU's memory are numbers to it: it moves them
and passes them on. Its first argument is the record of the run, which belongs to the runtime: the
stream in which everything happens, and what failed. Its last one is the table of the kernels. An
entry of that has 16 bytes: the driver's handle of a kernel, then two i32, the threads of a block
and its bytes of shared memory.
"""

from __future__ import annotations

from tessera.dtypes import int64
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import READ_WRITE
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.types import ScalarType, Type
from tessera.target.ops import TargetOp
from tessera.target.types import PtrType

I64 = ScalarType(int64)


class LaunchKernel(TargetOp):
    """Starts `grid` blocks of a kernel, whose parameters are `args`, 8 bytes each; of 0 blocks,
    nothing. If the driver refuses, main ends.

    Attributes:
        kernel: its name, for readers.
        index: its place in the table.
    """

    name = "target.launch_kernel"
    effects = READ_WRITE
    record: Value = operand()
    table: Value = operand()
    grid: Value = operand()
    args: tuple[Value, ...] = operands()
    kernel: str = attr()
    index: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        _pointers(self.record, self.table)
        if self.grid.type != I64 or self.index < 0:
            raise VerifyError(f"kernel {self.index} with a grid of {self.grid.type}")
        for arg in self.args:
            if arg.type != I64 and not isinstance(arg.type, PtrType):
                raise VerifyError(f"a kernel's parameter is a pointer or an i64, not {arg.type}")
        return ()


class ReadBack(TargetOp):
    """The scalar at element `offset` of the GPU's memory, once everything before it in the stream
    is done. If the driver refuses, main ends.
    """

    name = "target.read_back"
    effects = READ_WRITE
    record: Value = operand()
    ptr: Value = operand()
    offset: Value = operand()
    type: Type = attr()

    def infer(self) -> Type:
        """The given type."""
        _pointers(self.record, self.ptr)
        if self.offset.type != I64 or not isinstance(self.type, ScalarType):
            raise VerifyError(f"reads {self.type} at an offset of type {self.offset.type}")
        return self.type


class _Copy(TargetOp):
    """Starts a copy between the GPU's memory and that of the host which the run has, once all
    before it in the stream is done. Copies run one after the other, beside the stream. If the
    driver refuses, main ends.

    Attributes:
        at: where in the memory of the host, in bytes.
        size: bytes.
        number: by which it is waited for.
    """

    effects = READ_WRITE
    record: Value = operand()
    ptr: Value = operand()
    at: int = attr()
    size: int = attr()
    number: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        _pointers(self.record, self.ptr)
        return ()


class Offload(_Copy):
    """To the host."""

    name = "target.offload"


class Fetch(_Copy):
    """From the host."""

    name = "target.fetch"


class WaitForCopy(TargetOp):
    """What follows in the stream begins once a copy has ended.

    Attributes:
        number: of the copy.
    """

    name = "target.wait_for_copy"
    effects = READ_WRITE
    record: Value = operand()
    number: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        _pointers(self.record)
        return ()


def _pointers(*values: Value) -> None:
    for value in values:
        if not isinstance(value.type, PtrType):
            raise VerifyError(f"expected a pointer, not {value.type}")
