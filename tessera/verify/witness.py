"""The search for arguments that break a promise about numbers.

Corners of the bounds first, so that what is found is simple; then special forms (equal elements,
one that differs, signs in turn) and random ones; then changes to what came nearest to the failure
of the op that analysis blames: the largest operand of an exponential, the smallest divisor. The
same search finds the same witness.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import DType, dtype_of, finfo
from tessera.errors import TesseraError
from tessera.graph import interp
from tessera.graph.ops.elementwise import Elementwise
from tessera.graph.ops.generate import Constant
from tessera.ir.core import Func, Op
from tessera.ir.interval import Interval
from tessera.ir.walk import walk

Arrays = list[np.ndarray]

MOST_TRIES = 320
MOST_OPS = 20_000
"""A loop may not end, of some arguments; so many operations are computed, at most."""

MOST_OPS_AT_ALL = 60_000
"""So many operations of such loops, and then no more."""

MOST_WORK = 4e7
"""So many elements times operations are computed, at most."""

_DIVISIONS = frozenset(("div", "floordiv", "mod", "rem"))
_SMALL_IS_BAD = frozenset(("log", "log2", "log10", "log1p", "sqrt", "rsqrt"))


class _TooLong(TesseraError):
    """A program that takes more operations than a search has patience for."""


class Search:
    """Looks for arguments of a Graph of which a result is bad.

    Args:
        graph: the Graph.
        captured: its first arguments, which are known.
        shapes: of the others.
        dtypes: of the others.
        bounds: of the others.
        dims: sizes of symbolic dims.
        is_bad: whether a result breaks the promise.
        blamed: where NaN or infinities may begin.
    """

    def __init__(
        self,
        graph: Func,
        captured: Sequence[np.ndarray],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[DType],
        bounds: Sequence[Interval],
        dims: Mapping[str, int],
        is_bad: Callable[[np.ndarray], bool],
        blamed: Op | None,
    ) -> None:
        self.graph, self.captured, self.dims = graph, captured, dims
        self.shapes, self.dtypes, self.bounds = shapes, dtypes, bounds
        self.is_bad, self.blamed = is_bad, blamed
        self.rng = np.random.default_rng(0)
        elements = sum([math.prod(s) for s in shapes], 1)
        work = elements * max(1, sum(1 for _ in walk(graph.body)))
        self.tries = int(min(MOST_TRIES, max(8, MOST_WORK / work)))
        self.score = -math.inf
        self.first = 0.0
        self.left = 0
        self.total = MOST_OPS_AT_ALL

    def run(self) -> tuple[Arrays, list[np.ndarray]] | None:
        """The first arguments found, and what comes of them."""
        best: list[tuple[float, int, Arrays]] = []
        # Each kind gets its part where there are few tries: many corners look alike to a program.
        part = max(self.tries // 3, 3)
        candidates = itertools.chain(
            itertools.islice(self._special(), part // 2),
            itertools.islice(self._corners_of_all(), part),
            itertools.islice(self._random(), part),
        )
        for k, given in enumerate(candidates):
            found = self._try(given)
            if found is not None:
                return given, found
            best.append((self.score, -k, given))
            best = sorted(best, key=lambda item: item[:2], reverse=True)[:4]
        for k in range(self.tries // 3):
            if not best:
                break
            source = best[k % len(best)]
            given = self._changed(source[2])
            found = self._try(given)
            if found is not None:
                return given, found
            if self.score > source[0]:
                best[k % len(best)] = (self.score, -k, given)
        return self._by_halving()

    def _by_halving(self) -> tuple[Arrays, list[np.ndarray]] | None:
        """Between arguments for which a divisor has different signs lies one for which it is 0."""
        if not (isinstance(self.blamed, Elementwise) and self.blamed.scalar in _DIVISIONS):
            return None
        for _ in range(min(3, self.tries)):
            ends: list[Arrays] = []
            signs: list[bool] = []
            for _ in range(16):
                given = [self._draw(k, self._any) for k in range(len(self.shapes))]
                found = self._try(given)
                if found is not None:
                    return given, found
                if (self.first > 0) not in signs:
                    ends.append(given)
                    signs.append(self.first > 0)
                if len(ends) == 2:
                    break
            for _ in range(80 if len(ends) == 2 else 0):
                middle = [self._fitted(k, _between(ends, k)) for k in range(len(ends[0]))]
                found = self._try(middle)
                if found is not None:
                    return middle, found
                ends[signs.index(self.first > 0)] = middle
        return None

    def _try(self, given: Arrays) -> list[np.ndarray] | None:
        self.score = -math.inf
        if self.total <= 0:
            return None
        self.left = MOST_OPS
        try:
            with np.errstate(all="ignore"):
                outs = interp.run(
                    self.graph, [*self.captured, *given], dims=self.dims, observer=self._observe
                )
        except (TesseraError, MemoryError):
            return None
        return outs if any(self.is_bad(x) for x in outs) else None

    # --- how near it came -----------------------------------------------------------------------

    def _observe(
        self, op: Op, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> None:
        self.left -= 1
        if self.left < 0:
            self.total -= MOST_OPS
            raise _TooLong("a loop does not end soon")
        if op is not self.blamed:
            return
        if isinstance(op, Elementwise) and op.scalar in _DIVISIONS and operands[1].size:
            self.first = float(operands[1].reshape(-1)[0])
        with np.errstate(all="ignore"):
            self.score = max(self.score, self._nearness(op, operands, results))

    def _nearness(
        self, op: Op, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> float:
        row = op.scalar if isinstance(op, Elementwise) else ""
        if row in _SMALL_IS_BAD and operands[0].size:
            return -_extreme(operands[0], np.min)
        if row in _DIVISIONS and operands[1].size:
            return -_extreme(np.abs(operands[1].astype(np.float64)), np.min)
        if row in ("exp", "exp2", "expm1") and operands[0].size:
            return _extreme(operands[0], np.max)
        if row in ("asin", "acos", "atanh", "erfinv") and operands[0].size:
            return _extreme(np.abs(operands[0].astype(np.float64)), np.max)
        if results and results[0].size and dtype_of(results[0].dtype).is_float:
            return _extreme(np.abs(results[0].astype(np.float64)), np.max)
        return -math.inf

    # --- candidates -----------------------------------------------------------------------------

    def _filled(self, numbers: Sequence[Any]) -> Arrays:
        return [
            np.full(s, x).astype(d.np)
            for s, x, d in zip(self.shapes, numbers, self.dtypes, strict=True)
        ]

    def _corners_of_all(self) -> Iterator[Arrays]:
        """Arguments that are filled with one number each, of those where something may happen."""
        choices: list[list[Any]] = []
        special = _numbers_in(self.graph)
        for b, d in zip(self.bounds, self.dtypes, strict=True):
            numbers = dict.fromkeys([b.hi, b.lo, 0, 1, *_tiny(d), *special])
            choices.append([x for x in numbers if b.contains(x)])
        yield from itertools.islice(map(self._filled, itertools.product(*choices)), 64)

    def _special(self) -> Iterator[Arrays]:
        """Equal elements, one apart, and signs in turn."""
        ends = [b.hi if self.dtypes[k].is_float else 0 for k, b in enumerate(self.bounds)]
        yield [self._fitted(k, np.full(self.shapes[k], x)) for k, x in enumerate(ends)]
        yield [self._draw(k, self._corners) for k in range(len(self.shapes))]
        for _ in range(6):
            yield [self._draw(k, self._equal) for k in range(len(self.shapes))]
        for high, low in ((1, 0), (0, 1)):
            yield [self._fitted(k, self._one_apart(k, high, low)) for k in range(len(self.shapes))]
        yield [self._draw(k, self._in_turn) for k in range(len(self.shapes))]

    def _random(self) -> Iterator[Arrays]:
        makers = (self._corners, self._any, self._many_sizes)
        while True:
            for make in makers:
                yield [self._draw(k, make) for k in range(len(self.shapes))]

    def _draw(self, k: int, make: Callable[[int], np.ndarray]) -> np.ndarray:
        return self._fitted(k, make(k))

    def _fitted(self, k: int, found: np.ndarray) -> np.ndarray:
        """An array of an argument's dtype within its bounds; of other dtypes than floats any."""
        b, d = self.bounds[k], self.dtypes[k]
        if d.is_float:
            with np.errstate(all="ignore"):
                return _inside(np.asarray(found).astype(d.np), b, d)
        if d.is_bool:
            return np.asarray(self.rng.integers(0, 2, self.shapes[k])).astype(np.bool_)
        low, high = int(b.lo), int(b.hi)
        wide = np.uint64 if low >= 0 else np.int64
        drawn = self.rng.integers(low, high, self.shapes[k], dtype=wide, endpoint=True)
        return np.asarray(drawn).astype(d.np)

    def _ends(self, k: int) -> tuple[float, float]:
        return float(self.bounds[k].lo), float(self.bounds[k].hi)

    def _uniform(self, k: int, shape: tuple[int, ...]) -> np.ndarray:
        low, high = self._ends(k)
        t = self.rng.random(shape)
        return np.asarray(low * (1 - t) + high * t)

    def _any(self, k: int) -> np.ndarray:
        return self._uniform(k, self.shapes[k])

    def _equal(self, k: int) -> np.ndarray:
        return np.full(self.shapes[k], self._uniform(k, ()))

    def _corners(self, k: int) -> np.ndarray:
        low, high = self._ends(k)
        return np.asarray(np.where(self.rng.random(self.shapes[k]) < 0.5, low, high))

    def _many_sizes(self, k: int) -> np.ndarray:
        scale = 10.0 ** self.rng.uniform(-30, 0, self.shapes[k])
        return self._corners(k) * scale

    def _one_apart(self, k: int, one: int, rest: int) -> np.ndarray:
        ends = self._ends(k)
        found = np.full(self.shapes[k], ends[rest])
        if found.size:
            found.reshape(-1)[0] = ends[one]
        return found

    def _in_turn(self, k: int) -> np.ndarray:
        low, high = self._ends(k)
        places = np.arange(math.prod(self.shapes[k])).reshape(self.shapes[k])
        return np.where(places % 2 == 0, high, low)

    def _changed(self, given: Arrays) -> Arrays:
        """Some elements of arguments moved a little, or to an end."""
        found: Arrays = []
        for k, x in enumerate(given):
            if not self.dtypes[k].is_float or not x.size:
                found.append(x)
                continue
            low, high = self._ends(k)
            wide = x.astype(np.float64)
            chosen = self.rng.random(x.shape) < self.rng.choice([0.1, 0.5, 1.0])
            with np.errstate(all="ignore"):
                step = (high / 2 - low / 2) * 2 * self.rng.normal(size=x.shape)
                moved = wide + step * self.rng.choice([1e-6, 1e-3, 0.1])
            if self.rng.random() < 0.3:
                moved = self._corners(k)
            found.append(self._fitted(k, np.where(chosen, moved, wide)))
        return found


def _inside(x: np.ndarray, bounds: Interval, dtype: DType) -> np.ndarray:
    """An array with its numbers moved into the bounds, as roundings may have left them."""
    low, high = (np.asarray(v).astype(dtype.np) for v in (bounds.lo, bounds.hi))
    wide = x.astype(np.float64)
    found = np.where(wide > float(bounds.hi), high, np.where(wide < float(bounds.lo), low, x))
    return np.asarray(np.where(np.isnan(wide), low, found)).astype(dtype.np)


def _between(ends: Sequence[Arrays], k: int) -> np.ndarray:
    a, b = (x[k].astype(np.float64) for x in ends)
    return a / 2 + b / 2


def _tiny(dtype: DType) -> list[float]:
    if not dtype.is_float:
        return []
    limits = finfo(dtype)
    return [limits.smallest_subnormal, limits.smallest_normal]


def _numbers_in(graph: Func) -> list[float]:
    """Numbers that the program mentions, where things may happen."""
    found: dict[float, None] = {}
    for op in walk(graph.body):
        if isinstance(op, Constant) and op.value.dtype.is_float and not op.value.shape:
            x = float(op.value.array)
            if math.isfinite(x):
                found.update({x: None, -x: None})
    return list(found)[:12]


def _extreme(x: np.ndarray, reduce: Callable[..., Any]) -> float:
    wide = x.astype(np.float64)
    wide = wide[np.isfinite(wide)]
    return float(reduce(wide)) if wide.size else -math.inf
