"""Sentinels: compiled code that looks for NaN, infinities and overflow in what it computes.

A program with sentinels tells that some value was bad, at no more cost than a few instructions a
vector. Only then is its Graph computed once more, operation by operation, by the interpreter, to
say which operation it was, of which values, in which step of a loop. So what is reported does not
depend on how operations were fused, nor on which thread was first:

- NaN counts at the first operation that gives it of operands without NaN;
- an infinity at the first that gives one of finite operands; overflow is one that is no value at a
  pole, as 1 / 0 and log(0) are;
- elements that `ts.where` does not choose do not count, where nothing else uses them;
- an index that is data counts where it is out of range, unless its `mode` says what becomes of it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from tessera.config import SENTINELS, Config, config
from tessera.dtypes import dtype_of
from tessera.errors import IndexOutOfBoundsError, NonFiniteError, OptionError
from tessera.graph import interp
from tessera.graph.array import Array
from tessera.graph.ops.arithmetic import Select
from tessera.graph.ops.base import Family
from tessera.graph.ops.checks import title
from tessera.graph.ops.control import While
from tessera.graph.ops.elementwise import Elementwise, Mul
from tessera.graph.ops.gather import Gather, Scatter
from tessera.graph.ops.scan import Scan
from tessera.graph.transforms.silence import silenced_block
from tessera.ir import loc
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.loc import Loc
from tessera.schedule.sentinels import POLE_AT_ZERO, POLES

_AS_THEY_ARE = nullcontext()


# What only moves or states values gives none that are new.
HARMLESS = frozenset({Family.REARRANGE, Family.GENERATE, Family.HOST})

MAX_SHOWN = 6
"""Elements of an operand that are shown, if it has more."""


_BACKWARD_FIX = (
    "choose the operand, not the result: `ts.sqrt(ts.where(x > 0, x, 1))`, as the derivative of "
    "what `ts.where` does not choose is computed all the same"
)

def is_harmless(op: Op) -> bool:
    """Whether an op gives nothing new, or only what ops inside of it give."""
    return getattr(op, "family", None) in HARMLESS or bool(op.regions)


def fix_of(op: Op, place: Loc) -> str | None:
    """What to do where an op is the first to give what is watched for."""
    return _BACKWARD_FIX if place.is_backward and isinstance(op, Mul) else None


def checks_of(what: str, check: str | Sequence[str]) -> tuple[str, ...]:
    """The names in `check`.

    Args:
        what: the function that has the option, for messages.
        check: names separated by commas, or one by one.

    Raises:
        OptionError: there is no such check.
    """
    names = check.split(",") if isinstance(check, str) else check
    found = tuple(dict.fromkeys([name.strip() for name in names if name.strip()]))
    unknown = [name for name in found if name not in SENTINELS]
    if unknown:
        raise OptionError(
            f"{what}: there is no check {unknown[0]!r}",
            loc=loc.current(),
            rule=f"`check` names some of {', '.join(SENTINELS)}",
            fix='write for example `check="nan,inf"`',
        )
    return found


def checking(checks: Collection[str], budget: int = 0) -> AbstractContextManager[object]:
    """Puts the settings with more checks, and a budget of memory, in force for a block."""
    if not checks and not budget:
        return _AS_THEY_ARE
    return config.using(_with_checks(config.current(), tuple(checks), budget))


@functools.lru_cache(256)
def _with_checks(settings: Config, checks: tuple[str, ...], budget: int) -> Config:
    wanted = {*settings.sentinel_set, *checks}
    return replace(
        settings,
        sentinels=",".join([name for name in SENTINELS if name in wanted]),
        memory_budget=budget or settings.memory_budget,
    )


def is_suspect(x: Array) -> bool:
    """Whether an array has what is looked for, whatever gave it."""
    if not x.dtype.is_inexact:
        return False
    checks = config.current().sentinel_set - {"bounds"}
    if not checks:
        return False
    only_nan = not checks - {"nan"}
    return bool(np.isnan(x.host).any() if only_nan else not np.isfinite(x.host).all())


# --- looking closer ---------------------------------------------------------------------------


def look_closer(
    func: Func,
    traced: Loc | None,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    dims: dict[str, int],
) -> None:
    """Fails at the operation that gave what a sentinel has told of; perhaps there is none.

    Args:
        func: the Graph of the program.
        traced: the call that it was traced for, if that is not the one that runs it.
        inputs: its arguments, captured values first.
        outputs: its results.
        dims: the values of its symbolic dims.

    Raises:
        NonFiniteError: there is one.
        IndexOutOfBoundsError: it read or wrote out of range.
    """
    checks = config.current().sentinel_set
    search = _Search(func.body, checks, traced)
    quiet = func.with_body(silenced_block(func.body))
    search.note(quiet.body)
    with np.errstate(all="ignore"):
        interp.run(quiet, [x.host for x in inputs], dims, search.observe)
    search.finish()
    if "nan" in checks:
        _check_nan(func, inputs, outputs)


def _check_nan(func: Func, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Fails if a result has NaN although no operation gives it."""
    for k, x in enumerate(outputs):
        if not _has_nan(x.host):
            continue
        given = [n for n, arg in enumerate(inputs) if _has_nan(arg.host)]
        captured = len(inputs) - len(func.args)
        raise NonFiniteError(
            f"{func.name}: result {k} has NaN",
            loc=loc.current(),
            rule=f"{_names()}: results have no NaN",
            notes=(
                f"input {given[0] - captured} has NaN already"
                if given
                else "no operation gives it where they are computed one by one",
            ),
            fix='leave "nan" out of `check`, or remove NaN from the data' if given else None,
        )


def _has_nan(x: np.ndarray) -> bool:
    return dtype_of(x.dtype).is_inexact and bool(np.isnan(x).any())


class _Hit:
    """An operation that gave something bad.

    Attributes:
        wrong: where.
        waits: the `select` ops that choose among what it gave and have not run yet, in order, each
            with whether it is their first branch.
        steps: in which steps of which loops it ran.
    """

    def __init__(
        self,
        op: Op,
        operands: Sequence[np.ndarray],
        result: np.ndarray,
        wrong: np.ndarray,
        waits: list[tuple[Op, bool]],
    ) -> None:
        self.op = op
        self.operands = operands
        self.result = result
        self.wrong = wrong
        self.waits = waits
        self.steps = _steps(interp.around())


class _Search:
    """Looks at operations as the interpreter computes them, for the first that gives something bad
    which is used."""

    def __init__(self, body: Block, checks: Collection[str], traced: Loc | None) -> None:
        self.checks = frozenset(checks)
        self.traced = traced
        self.hits: list[_Hit] = []
        self.users: dict[Value, Counter[Op]] = {}
        self.kept: set[Value] = set()

    def note(self, block: Block) -> None:
        """Notes who uses what in a block."""
        self.kept.update(block.outputs)
        for op in block.ops:
            for value in op.operands:
                self.users.setdefault(value, Counter())[op] += 1
            for region in op.regions:
                self.note(region)

    def observe(
        self, op: Op, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> None:
        """Looks at one operation."""
        if "bounds" in self.checks:
            stray = stray_index(op, [x.shape for x in operands], lambda k: operands[k])
            if stray is not None:
                raise self.stray_error(op, stray)
        if isinstance(op, Select):
            for hit in self.hits:
                if hit.waits and hit.waits[0][0] is op:
                    _, chosen = hit.waits.pop(0)
                    hit.wrong = hit.wrong & (operands[0] == chosen)
            self.hits = [hit for hit in self.hits if hit.wrong.any()]
        if not is_harmless(op):
            for value, result in zip(op.results, results, strict=True):
                wrong = self.wrong(op, operands, result, op.results.index(value))
                if wrong is not None:
                    self.hits.append(_Hit(op, operands, result, wrong, self.waits(value)))
        if self.hits and not self.hits[0].waits:
            self.finish()

    def waits(self, value: Value) -> list[tuple[Op, bool]]:
        """The choices that have to be made for a value to be used."""
        found: list[tuple[Op, bool]] = []
        while value not in self.kept and len(self.users.get(value, ())) == 1:
            ((op, count),) = self.users[value].items()
            if count > 1 or not isinstance(op, Elementwise):
                break
            if isinstance(op, Select):
                if op.operands[0] is value:
                    break
                found.append((op, op.operands[1] is value))
            value = op.result
        return found

    def wrong(
        self, op: Op, operands: Sequence[np.ndarray], result: np.ndarray, at: int
    ) -> np.ndarray | None:
        """The elements that an operation has made bad, NaN before infinities."""
        if not result.size or not dtype_of(result.dtype).is_inexact:
            return None
        if "nan" in self.checks:
            found = np.isnan(result)
            if found.any():
                found = found & ~self.inherited(op, operands, at, np.isnan)
                if found.any():
                    return found
        if self.checks & {"inf", "overflow"}:
            found = np.isinf(result)
            if found.any():
                found = found & ~self.inherited(op, operands, at, _is_infinite)
                if "inf" not in self.checks:
                    found = found & ~_poles(op, operands)
                if found.any():
                    return found
        return None

    def inherited(
        self, op: Op, operands: Sequence[np.ndarray], at: int, is_bad: Callable[[Any], Any]
    ) -> Any:
        """Which elements of a result may be bad because operands are."""
        bad = [is_bad(x) if dtype_of(x.dtype).is_inexact else np.False_ for x in operands]
        if not any(np.any(x) for x in bad):
            return np.False_
        if isinstance(op, Elementwise):
            return functools.reduce(np.logical_or, bad)
        clean = [
            np.where(b, np.ones((), x.dtype), x) if np.any(b) else x
            for x, b in zip(operands, bad, strict=True)
        ]
        return ~is_bad(interp.evaluate_op(op, clean)[at])

    def finish(self) -> None:
        """Fails at the first hit, if there is one."""
        if self.hits:
            raise self.error(self.hits[0])

    def place(self, op: Op) -> Loc:
        """Where an operation is, for the call that found it."""
        if self.traced is None:
            return op.loc
        return op.loc.inside(self.traced).called_from(loc.current())

    def stray_error(self, op: Op, what: str) -> IndexOutOfBoundsError:
        """What is said of an index that is out of range."""
        place = self.place(op)
        direction = "backward" if place.is_backward else "forward"
        return IndexOutOfBoundsError(
            f"{title(op)}: {what}, in the {direction} pass{_steps(interp.around())}",
            loc=place,
            rule=f"{_names()}: an index is in range, unless `mode` says what becomes of it",
            fix="write `mode=\"clip\"`, \"fill\" or \"drop\" if it may be out of range",
        )

    def error(self, hit: _Hit) -> NonFiniteError:
        """What is said of a hit."""
        op, place = hit.op, self.place(hit.op)
        index = tuple([int(i) for i in np.argwhere(hit.wrong)[0]])
        count = int(np.count_nonzero(hit.wrong))
        word = "NaN" if np.isnan(hit.result[index]) else "Inf"
        where = f" at {list(index)}" if index else ""
        many = f", and {count - 1} more" if count > 1 else ""
        direction = "backward" if place.is_backward else "forward"
        notes: list[str] = []
        for k, x in enumerate(hit.operands):
            text = np.array2string(x, threshold=MAX_SHOWN, edgeitems=3, separator=", ")
            text = text.replace("\n", "\n  ")
            there = f", there {x[index]}" if isinstance(op, Elementwise) and index else ""
            notes.append(f"operand {k} is {text}{there}")
        return NonFiniteError(
            f"{title(op)}: the result has {word}{where}{many}, in the {direction} pass"
            f"{hit.steps}",
            loc=place,
            rule=_rule(word),
            notes=notes,
            fix=fix_of(op, place),
        )


def stray_index(
    op: Op, shapes: Sequence[tuple[int, ...]], operand: Callable[[int], np.ndarray]
) -> str | None:
    """Says which index of an operation is the first that is out of range; None if none is.

    Args:
        op: the operation.
        shapes: of its operands.
        operand: gives the elements of one of them.
    """
    if not isinstance(op, (Gather, Scatter)) or not op.inside:
        return None
    first = 1 if isinstance(op, Gather) else 2
    for k, axis in enumerate(op.axes):
        index, size = operand(first + k), shapes[0][axis]
        bad = (index < 0) | (index >= size)
        if bad.any():
            at = tuple([int(i) for i in np.argwhere(bad)[0]])
            number = int(index[at])
            where = f", element {list(at)} of the indices," if at else ""
            count = int(np.count_nonzero(bad))
            many = f", and {count - 1} more" if count > 1 else ""
            # Those that count from the end have had the length added.
            shown = number if number >= 0 else number - size
            type = f"{dtype_of_operand(op)}[{', '.join(map(str, shapes[0]))}]"
            return f"index {shown}{where} is out of range for dim {axis} of {type}{many}"
    return None


def dtype_of_operand(op: Op) -> str:
    """The dtype of what an operation indexes."""
    return str(op.operands[0].type).partition("[")[0]


def _steps(around: Sequence[interp.Around]) -> str:
    """In which steps of which loops an op stands, innermost first."""
    found: list[str] = []
    for each in reversed(around):
        if isinstance(each.op, Scan):
            found.append(f", in step {int(each.inputs[0])} of the scan")
        elif isinstance(each.op, While):
            found.append(f", in step {max(each.runs.values()) - 1} of the loop")
    return "".join(found)


def _rule(word: str) -> str:
    text = "NaN of operands without NaN" if word == "NaN" else "an infinity of finite operands"
    return f"{_names()}: no operation gives {text}"


def _names() -> str:
    return f'sentinels are on (check="{config.current().sentinels}")'


def _is_infinite(x: np.ndarray) -> np.ndarray:
    return ~np.isfinite(x)


def _poles(op: Op, operands: Sequence[np.ndarray]) -> Any:
    """Where an elementwise operation is at a pole."""
    if not isinstance(op, Elementwise):
        return np.False_
    at = POLE_AT_ZERO.get(op.scalar)
    if at is not None:
        return operands[at] == 0
    return np.bool_(op.scalar in POLES)
