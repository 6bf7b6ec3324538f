"""Watching for NaN and infinities: which operation gave the first one, of which values.

Operations that run at once are checked one by one. A compiled function is checked by its results;
where one of these is not finite, its Graph is computed once more by the interpreter, operation by
operation, also inside loops and branches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tessera.api.sentinels import (
    HARMLESS,
    MAX_SHOWN,
    fix_of,
    is_harmless,
    is_suspect,
    look_closer,
)
from tessera.config import Config, config
from tessera.dtypes import dtype_of
from tessera.errors import NonFiniteError
from tessera.graph import interp
from tessera.graph.array import Array
from tessera.graph.engine import Engine, current_engine, install_engine
from tessera.graph.ops.checks import title
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.trace import as_tuple, items_of
from tessera.graph.transforms.silence import recorded, silenced_block
from tessera.ir import loc
from tessera.ir.builder import Builder
from tessera.ir.core import Block, Func, Op
from tessera.ir.loc import Loc


def is_watching(settings: Config) -> bool:
    """Whether the settings ask for it."""
    return settings.debug_nans or settings.debug_infs


_LOCK = threading.Lock()
_watchers = 0


@contextmanager
def watching() -> Generator[None, None, None]:
    """While it lasts, operations outside of compiled functions are checked where the settings of
    the thread say so."""
    global _watchers
    with _LOCK:
        _watchers += 1
        if _watchers == 1:
            install_engine(WatchedEngine(current_engine()))
    try:
        yield
    finally:
        with _LOCK:
            _watchers -= 1
            engine = current_engine()
            if _watchers == 0 and isinstance(engine, WatchedEngine):
                install_engine(engine.engine)


class WatchedEngine:
    """Computes ops at once by another engine, and checks the results where the settings say so."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # These do not check results.
        self.starters: dict[type[Op], Callable[..., Any]] = {}
        self.operators: dict[int, object] = {}

    def evaluate(self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The results of one op."""
        settings = config.current()
        if is_watching(settings) or settings.sentinels:
            attrs = {k: recorded(v) if isinstance(v, Block) else v for k, v in attrs.items()}
        if attrs.get("inside") and "bounds" in settings.sentinel_set:
            func, flat = _alone(cls, operands, attrs)
            look_closer(func, None, flat, (), {})
        found = self.engine.evaluate(cls, operands, attrs)
        is_quiet = getattr(cls, "family", None) in HARMLESS
        if is_watching(settings) and not is_quiet:
            results = as_tuple(found)
            if any(_wrong(x, settings) for x in results):
                self._explain(cls, operands, attrs, results)
        if settings.sentinels and not is_quiet and any(map(is_suspect, as_tuple(found))):
            func, flat = _alone(cls, operands, attrs)
            look_closer(func, None, flat, (), {})
        return found

    def _explain(
        self,
        cls: type[Op],
        operands: Sequence[Any],
        attrs: dict[str, Any],
        results: Sequence[Any],
    ) -> None:
        func, flat = _alone(cls, operands, attrs)
        (op,) = func.ops
        if op.regions:
            explain(func, flat)
        raise _error(op, [x.host for x in flat], [x.host for x in results], loc.current())


def _alone(
    cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]
) -> tuple[Func, list[Array]]:
    """A Graph of one operation, and its inputs."""
    flat: list[Array] = [x for item in operands for x in items_of(item)]
    builder = Builder([x.type for x in flat])
    values = iter(builder.args)
    groups: list[Any] = []
    for item in operands:
        several = isinstance(item, (tuple, list))
        found = tuple([next(values) for _ in items_of(item)])
        groups.append(found if several else found[0])
    op = builder.add(cls(*groups, **attrs))
    return builder.func("f", op.results), flat


def check_outputs(
    func: Func, traced: Loc, inputs: Sequence[Array], outputs: Sequence[Array]
) -> None:
    """The results of a compiled function are what the settings allow.

    Args:
        func: its Graph.
        traced: the call that it was traced for.
        inputs: what it was called with, captured values first.
        outputs: its results.

    Raises:
        NonFiniteError: one is not.
    """
    settings = config.current()
    wrong = [k for k, x in enumerate(outputs) if _wrong(x, settings)]
    if not wrong:
        return
    explain(func, inputs, traced)
    word = _word(outputs[wrong[0]].host, settings)
    raise NonFiniteError(
        f"{func.name}: result {wrong[0]} has {word}",
        loc=loc.current(),
        rule=_rule(settings),
        notes=("no operation gives it where they are computed one by one",),
        fix="look at the result with `ts.debug.print` inside the function",
    )


def explain(func: Func, inputs: Sequence[Array], traced: Loc | None = None) -> None:
    """Fails at the first operation of a Graph that gives what is watched for; perhaps at none.

    Args:
        func: the Graph.
        inputs: its arguments.
        traced: the call that it was traced for, if that is not the one that runs it.
    """
    settings = config.current()
    here = loc.current()

    def observe(op: Op, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        if not is_harmless(op) and any(_word(x, settings) for x in results):
            place = op.loc if traced is None else op.loc.inside(traced).called_from(here)
            raise _error(op, operands, results, place)

    quiet = func.with_body(silenced_block(func.body))
    with np.errstate(all="ignore"):
        interp.run(quiet, [x.host for x in inputs], observer=observe)


def _error(
    op: Op, operands: Sequence[np.ndarray], results: Sequence[np.ndarray], place: Loc
) -> NonFiniteError:
    settings = config.current()
    result = next(x for x in results if _word(x, settings))
    word = _word(result, settings)
    wrong = _is_wrong(result, settings)
    index = tuple([int(i) for i in np.argwhere(wrong)[0]])
    count = int(np.count_nonzero(wrong))
    where = f" at {list(index)}" if index else ""
    many = f", and {count - 1} more" if count > 1 else ""
    direction = "backward" if place.is_backward else "forward"
    notes: list[str] = []
    for k, x in enumerate(operands):
        text = np.array2string(x, threshold=MAX_SHOWN, edgeitems=3, separator=", ")
        text = text if "\n" not in text else text.replace("\n", "\n  ")
        there = f", there {x[index]}" if isinstance(op, Elementwise) and index else ""
        already = f"; it has {_word(x, settings)} already" if _word(x, settings) else ""
        notes.append(f"operand {k} is {text}{there}{already}")
    return NonFiniteError(
        f"{title(op)}: the result has {word}{where}{many}, in the {direction} pass",
        loc=place,
        rule=_rule(settings),
        notes=notes,
        fix=fix_of(op, place),
    )


def _rule(settings: Config) -> str:
    words = [w for w, on in (("NaN", settings.debug_nans), ("Inf", settings.debug_infs)) if on]
    return f"`ts.debug.nans()` is in force: no operation may give {' or '.join(words)}"


def _wrong(x: Any, settings: Config) -> bool:
    return x.dtype.is_inexact and bool(_word(x.host, settings))


def _is_wrong(x: np.ndarray, settings: Config) -> np.ndarray:
    """The elements that are watched for, NaN before infinities."""
    nans = np.isnan(x) if settings.debug_nans else np.zeros(x.shape, bool)
    return nans if nans.any() or not settings.debug_infs else np.isinf(x)


def _word(x: np.ndarray, settings: Config) -> str:
    """What is wrong with an array; empty for nothing."""
    if not x.size or not dtype_of(x.dtype).is_inexact:
        return ""
    if settings.debug_nans and np.isnan(x).any():
        return "NaN"
    return "Inf" if settings.debug_infs and np.isinf(x).any() else ""
