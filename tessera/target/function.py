"""A builder of whole functions of Target IR: loops and branches besides single ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.ir.builder import Builder
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.types import ScalarType, Type
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.types import PtrType
from tessera.tile.types import FINISHED, RARE

I64 = ScalarType(t.INDEX.dtype)
PTR = PtrType()

Values = Sequence[Value]


class FunctionBuild(Build):
    """Builds one function.

    Args:
        types: of the arguments.
        names: of the arguments.
        fused: whether the machine has a fused multiply-add.

    Attributes:
        args: the arguments.
    """

    __slots__ = ("args",)

    def __init__(self, types: Sequence[Type], names: Sequence[str], fused: bool = False) -> None:
        super().__init__(fused=fused)
        self.args = Builder(types, names).args

    def func(self, name: str, is_rare: bool = False) -> Func:
        """The finished function.

        Args:
            name: its name.
            is_rare: whether what it calls takes nearly all of its time.
        """
        how = RARE if is_rare else "true"
        return Func(name, Block(self.args, self.ops, ()), attrs={FINISHED: how})

    # --- indices ---

    def index(self, value: int) -> Value:
        """An i64 constant."""
        return self.emit(t.Const(value, I64, loc=self.loc))

    def plus(self, at: Value, by: int) -> Value:
        """An index further on."""
        return self.map("add", at, self.index(by)) if by else at

    def times(self, at: Value, by: int) -> Value:
        """A multiple of an index."""
        return self.map("mul", at, self.index(by)) if by != 1 else at

    # --- control ---

    def region(self, types: Sequence[Type], body: Callable[[list[Value]], Values]) -> Block:
        """What `body` builds."""
        outer: list[Op] = self.ops
        self.ops = []
        args = [Value(type) for type in types]
        outputs = body(args)
        block = Block(args, self.ops, tuple(outputs))
        self.ops = outer
        return block

    def carry(
        self, lo: Value, hi: Value, step: int, init: Values, body: Callable[[Value, Values], Values]
    ) -> list[Value]:
        """Runs `body` for lo, lo + step, ... below hi, and carries values."""
        by = self.index(step)
        block = self.region([I64, *[v.type for v in init]], lambda args: body(args[0], args[1:]))
        op = t.For(lo, hi, by, tuple(init), 0, block, loc=self.loc)
        self.ops.append(op)
        return list(op.results)

    def span(self, lo: Value, hi: Value, body: Callable[[Value], None]) -> None:
        """Runs `body` for lo to hi - 1."""

        def run(counter: Value, _: Values) -> Values:
            body(counter)
            return ()

        self.carry(lo, hi, 1, (), run)

    def loop(self, count: int, body: Callable[[Value], None]) -> None:
        """Runs `body` for 0 to count - 1; what runs once has no loop."""
        if count == 1:
            body(self.index(0))
        elif count:
            self.span(self.index(0), self.index(count), body)

    def repeat(
        self, init: Values, test: Callable[[Values], Value], body: Callable[[Values], Values]
    ) -> list[Value]:
        """Runs `body` while the test holds, and carries values."""
        types = [v.type for v in init]
        cond = self.region(types, lambda args: (test(args),))
        op = t.While(tuple(init), cond, self.region(types, body), loc=self.loc)
        self.ops.append(op)
        return list(op.results)

    def choose(
        self, condition: Value, then: Callable[[], Values], otherwise: Callable[[], Values]
    ) -> list[Value]:
        """Runs one or the other; what it gives."""
        blocks = [self.region((), lambda _, part=part: part()) for part in (then, otherwise)]
        op = t.If(condition, *blocks, loc=self.loc)
        self.ops.append(op)
        return list(op.results)

    def when(
        self,
        condition: Value,
        then: Callable[[], None],
        otherwise: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs one or the other."""

        def nothing(part: Callable[[], None]) -> Callable[[], Values]:
            def run() -> Values:
                part()
                return ()

            return run

        self.choose(condition, nothing(then), nothing(otherwise))
