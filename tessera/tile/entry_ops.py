"""Ops of the entry: they group launches, sort, and copy between a GPU and its host."""

from __future__ import annotations

from tessera.dtypes import DType, int64, uint32, uint64
from tessera.errors import VerifyError
from tessera.graph.ops.largest import groups_of
from tessera.ir.core import Block, Value
from tessera.ir.effects import READ_WRITE
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand, operands, region
from tessera.ir.types import Type
from tessera.schedule.sort_ops import REGISTER, rank_of, room_of, room_of_row
from tessera.tile.ops import Launch, TileOp
from tessera.tile.types import MemType


class Together(TileOp):
    """Launches, in any order or at the same time, that threads of a CPU share: what one of them
    writes no other reads or writes."""

    name = "tile.together"
    effects = READ_WRITE
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """There are launches only."""
        if self.body.args or self.body.outputs:
            raise VerifyError("it takes nothing, and yields nothing")
        if not all([isinstance(op, Launch) for op in self.body.ops]):
            raise VerifyError("it has launches only")


class SortWords(TileOp):
    """Sorts rows of unsigned integers of 32 or 64 bits; see `schedule.sort_words`.

    Attributes:
        words: rows one after the other, each in the first places of its room.
        numbers: perhaps memory of i64 for what threads that share a row tell each other.
        rows: how many.
        count: places of a row.
        until: of the places of a row from this on nobody asks for the words.
        grain: rows that are worth a thread's while; 0: one thread sorts all.
        register: bits of a vector register.
    """

    name = "tile.sort_words"
    effects = READ_WRITE
    words: Value = operand()
    numbers: tuple[Value, ...] = operands()
    rows: Dim = attr()
    count: Dim = attr()
    until: Dim = attr()
    grain: int = attr(0)
    register: int = attr(REGISTER)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if not isinstance(self.words.type, MemType) or self.dtype not in (uint32, uint64):
            raise VerifyError(f"a sort of words in {self.words.type}")
        if any(v.type != MemType(int64) for v in self.numbers):
            raise VerifyError(f"numbers beside words are {MemType(int64)}")
        return ()

    @property
    def dtype(self) -> DType:
        """Of the words."""
        assert isinstance(self.words.type, MemType)
        return self.words.type.dtype

    @property
    def room(self) -> Dim:
        """Places of a row in memory."""
        return room_of_row(self.count, self.dtype, self.register)


class SelectWords(TileOp):
    """Writes the words of the first places of rows of keys; see `schedule.select_words`.

    Attributes:
        keys: rows one after the other.
        words: rows of u64, one after the other, each with its `room`.
        tops: memory of u32, or of u64 for keys of 64 bits.
        rows: how many.
        count: places of a row.
        until: how many of these are asked for.
        grain: rows that are worth a thread's while; 0: one thread has all.
        descending: whether the largest keys come first.
    """

    name = "tile.select_words"
    effects = READ_WRITE
    keys: Value = operand()
    words: Value = operand()
    tops: Value = operand()
    rows: Dim = attr()
    count: Dim = attr()
    until: int = attr()
    grain: int = attr(0)
    descending: bool = attr(False)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if not isinstance(self.keys.type, MemType) or self.until < 1:
            raise VerifyError(f"the first {self.until} of {self.keys.type}")
        for value, dtype in ((self.words, uint64), (self.tops, rank_of(self.dtype))):
            if value.type != MemType(dtype):
                raise VerifyError(f"a selection of words in {value.type}, not {MemType(dtype)}")
        return ()

    @property
    def dtype(self) -> DType:
        """Of the keys."""
        assert isinstance(self.keys.type, MemType)
        return self.keys.type.dtype

    @property
    def room(self) -> int:
        """Words of a row."""
        return room_of(groups_of(self.until))


class _Copy(TileOp):
    """A copy that begins when what was started before it has ended. Copies run one after the other,
    beside launches.

    Attributes:
        mem: memory of the device.
        at: where in the executable's memory of the host, in bytes.
        size: bytes.
        number: by which it is waited for; each copy of a program has its own.
    """

    effects = READ_WRITE
    mem: Value = operand()
    at: int = attr()
    size: int = attr()
    number: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if not isinstance(self.mem.type, MemType):
            raise VerifyError(f"a copy of {self.mem.type}")
        if min(self.at, self.size, self.number) < 0:
            raise VerifyError(f"a copy of {self.size} bytes at {self.at}, number {self.number}")
        return ()


class Offload(_Copy):
    """Copies from the device to the host; see `schedule.offload`."""

    name = "tile.offload"


class Fetch(_Copy):
    """Copies from the host to the device; see `schedule.fetch`."""

    name = "tile.fetch"


class Wait(TileOp):
    """What follows begins once a copy has ended.

    Attributes:
        number: of the copy.
    """

    name = "tile.wait"
    effects = READ_WRITE
    number: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


COPIES = (Offload, Fetch, Wait)
"""What only programs for a GPU have."""
