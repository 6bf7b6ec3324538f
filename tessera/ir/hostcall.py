"""Functions of the host that programs call back: the attribute that names one.

A program that is compiled still has to reach Python where the user asks for it, to print or to
check, or where a library does what no code is generated for. The op that does so
(`graph.host_call` and what it is lowered to) holds a `HostFunction`: a function of arrays to
arrays, and a number that stands for it in the text of programs.
"""

from __future__ import annotations

import itertools
import re
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.errors import DTypeError, ShapeError, TesseraError
from tessera.ir.loc import Loc, current
from tessera.ir.routines import ROUTINES, run_routine

if TYPE_CHECKING:
    from tessera.ir.parser import Parser

Data: TypeAlias = "npt.NDArray[Any]"

Spec: TypeAlias = "tuple[tuple[int | None, ...], np.dtype[Any]]"
"""The shape and the dtype of a result; None for a dim of any size."""


class _State(threading.local):
    failures = 0


_STATE = _State()


def failures() -> int:
    """How many calls of the host have ended in an exception in this thread."""
    return _STATE.failures


class HostFunction:
    """A function of arrays, for ops to call. Equal to itself only, but for those with a key.

    Text: `host<print, 3>`, the name for readers and the number; it can be read back in the same
    process, for as long as the function lives.

    Args:
        name: what messages and texts call it.
        run: takes the operands, which are its own, and gives a sequence of results.
        loc: where the user asked for the call.
        traced: where the program that has the call was called as it was traced, if that is some
            other call than the one that runs it.
        labels: what messages call the results.
        key: functions with equal keys compute the same, and are equal.
    """

    __slots__ = ("__weakref__", "key", "labels", "loc", "name", "number", "run", "traced")

    _numbers: ClassVar[itertools.count[int]] = itertools.count()
    _known: ClassVar[weakref.WeakValueDictionary[int, HostFunction]] = weakref.WeakValueDictionary()

    def __init__(
        self,
        name: str,
        run: Callable[..., Sequence[Data]],
        loc: Loc,
        traced: Loc | None = None,
        labels: Sequence[str] = (),
        key: Hashable = None,
    ) -> None:
        self.name = name
        self.run = run
        self.loc = loc
        self.traced = traced
        self.labels = tuple(labels)
        self.key = key
        self.number = next(self._numbers)
        self._known[self.number] = self

    def __call__(self, inputs: Sequence[Data]) -> tuple[Data, ...]:
        """The results for operands, which stay as they are.

        What the function raises says where the call stands in the program, unless it does already.
        """
        try:
            return tuple(self.run(*[np.array(x) for x in inputs]))
        except BaseException as error:
            _STATE.failures += 1
            if isinstance(error, TesseraError):
                error.at(self.place())
            elif isinstance(error, Exception) and not getattr(error, "__notes__", None):
                place = self.place().render()
                if place:
                    error.add_note(f"raised in {self.name}, {place}")
            raise

    def checked(self, inputs: Sequence[Data], specs: Sequence[Spec]) -> tuple[Data, ...]:
        """The results for operands, which are of the shapes and dtypes that they should be.

        Raises:
            ShapeError: a result has another shape.
            DTypeError: a result has another dtype.
        """
        found = self(inputs)
        for k, (value, (shape, dtype)) in enumerate(zip(found, specs, strict=True)):
            same = value.ndim == len(shape) and all(
                [want is None or n == want for n, want in zip(value.shape, shape, strict=True)]
            )
            if same and value.dtype == dtype:
                continue
            _STATE.failures += 1
            label = self.labels[k] if k < len(self.labels) else "the result"
            raise (DTypeError if same else ShapeError)(
                f"{self.name}: {label} is {_show(value.shape, value.dtype)}, not "
                f"{_show(shape, dtype)}",
                loc=self.place(),
                rule="a host function gives what it was said to give",
                fix=f'convert it, by `.astype("{dtype}")`, or change what it is said to give'
                if same
                else "change what it returns, or what it is said to give",
            )
        return found

    def fill(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Calls it with operands, and stores the results in other arrays; see `checked`."""
        found = self.checked(inputs, [(target.shape, target.dtype) for target in outputs])
        for value, target in zip(found, outputs, strict=True):
            target[...] = value

    def __eq__(self, other: object) -> bool:
        if self is other or self.key is None or not isinstance(other, HostFunction):
            return self is other
        return self.key == other.key

    def __hash__(self) -> int:
        return object.__hash__(self) if self.key is None else hash(self.key)

    def place(self) -> Loc:
        """Where the call stands, within the call of the program that runs now."""
        if self.traced is None:
            return self.loc
        return self.loc.inside(self.traced).called_from(current())

    def __str__(self) -> str:
        word = re.sub(r"[^\w.]+", "_", self.name, flags=re.ASCII).strip("_")
        return f"host<{word}, {self.number}>"

    __repr__ = __str__

    @classmethod
    def parse(cls, parser: Parser) -> HostFunction:
        """Reads what `str` writes."""
        if parser.accept("library"):
            return LibraryFunction.parse(parser)
        parser.expect("host")
        parser.expect("<")
        parser.word()
        parser.expect(",")
        number = parser.integer()
        parser.expect(">")
        found = cls._known.get(number)
        if found is None:
            raise parser.error(f"there is no host function {number} any more")
        return found


def _show(shape: Sequence[int | None], dtype: np.dtype[Any]) -> str:
    return f"{dtype}[{', '.join(['?' if n is None else str(n) for n in shape])}]"


class LibraryFunction(HostFunction):
    """A routine of the table in `routines.py`, which writes its results in place, and reads its
    operands without a copy. Two are equal if they are the same routine with the same options.

    Text: `library<fft, 1, 0>`, the routine and its options.

    Args:
        routine: its name in the table.
        options: what it is told besides the arrays.
    """

    __slots__ = ("options",)

    def __init__(self, routine: str, options: Sequence[int] = ()) -> None:
        super().__init__(routine, self._results, Loc.unknown)
        self.options = tuple(options)

    def fill(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Calls the routine."""
        run_routine(self.name, inputs, outputs, self.options)

    @staticmethod
    def _results(*inputs: Data) -> Sequence[Data]:
        raise AssertionError("a routine is given memory for its results")

    def __str__(self) -> str:
        return f"library<{', '.join([self.name, *map(str, self.options)])}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LibraryFunction) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash((self.name, self.options))

    @classmethod
    def parse(cls, parser: Parser) -> LibraryFunction:
        """Reads what `str` writes, behind `library`."""
        parser.expect("<")
        name = parser.word()
        if name not in ROUTINES:
            raise parser.error(f"there is no routine {name}")
        options: list[int] = []
        while parser.accept(","):
            options.append(parser.integer())
        parser.expect(">")
        return cls(name, options)


NOTHING = HostFunction("nothing", lambda *_: (), Loc.unknown)
"""Does nothing; it has the number 0."""
