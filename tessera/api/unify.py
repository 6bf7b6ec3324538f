"""The sizes of a call by the names of its annotations, and the errors where they do not agree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

from tessera.api.annotations import DTypeVar, PolicedDType, Stated
from tessera.api.matching import Place
from tessera.dtypes import DType
from tessera.errors import DTypeError, LeafError, ShapeError, TesseraError
from tessera.graph.ops.checks import may_equal, shape_text
from tessera.ir import assumptions, loc
from tessera.ir.constraints import Condition, Relation
from tessera.ir.intexpr import Dim, linear_in, solved_for, substitute, sym, symbols
from tessera.ir.intfunction import as_function
from tessera.ir.types import TensorType


@dataclass
class Sizes:
    """What the names of a call's annotations stand for.

    Attributes:
        dims: sizes by name.
        dtypes: dtypes by name.
        origins: by name, the place of the dim or of the array that said it.
    """

    dims: dict[str, Dim] = field(default_factory=dict[str, Dim])
    dtypes: dict[str, DType] = field(default_factory=dict[str, DType])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    sources: dict[str, Place] = field(default_factory=dict[str, Place])

    def explain(self, names: Sequence[str]) -> str:
        """`S is 8 (`x: dim 1 "S"`)` for each of some names."""
        return " and ".join([f"{n} is {self.dims[n]} ({self.origins[n]})" for n in names])


@functools.cache
def _condition(condition: Condition) -> tuple[list[str], Callable[..., tuple[int, ...]]]:
    """The names in a condition, and its expression as a function of them."""
    names = sorted(symbols(condition.expr))
    return names, as_function([condition.expr], names)


class Unifier:
    """Compares arrays with their annotations.

    Args:
        function: the name of the function, which starts messages.
        sizes: what is known already, and is added to.
        place_of: where the user is told that a leaf does not fit; None for the call.
    """

    def __init__(
        self,
        function: str,
        sizes: Sizes | None = None,
        place_of: Callable[[int], loc.Loc] | None = None,
    ) -> None:
        self.function = function
        self.sizes = Sizes() if sizes is None else sizes
        self._place_of = place_of

    def unify(self, places: Sequence[Place], types: Sequence[TensorType]) -> Sizes:
        """The sizes of all names.

        Raises:
            ShapeError: a dim is not what its annotation says.
            DTypeError: a dtype is not.
            LeafError: something else stands where an array should.
        """
        waiting: list[tuple[Place, int, Dim, Dim]] = []
        for place in places:
            if place.leaf is None:
                raise self._no_array(place)
            type = types[place.leaf]
            self._dtype(place, type)
            for axis, wanted in self.axes(place, type):
                size = type.shape[axis]
                if isinstance(wanted, int):
                    if not may_equal(size, wanted):
                        raise self._wrong(place, axis, wanted, size, f"not {wanted}", (place,))
                elif len(wanted.symbols) == 1 and str(wanted) in wanted.symbols:
                    self._name(place, axis, str(wanted), size)
                else:
                    waiting.append((place, axis, wanted, size))
        while waiting:
            rest = [each for each in waiting if not self._expression(*each)]
            if len(rest) == len(waiting):
                place, axis, wanted, _ = rest[0]
                unknown = sorted(symbols(wanted) - self.sizes.dims.keys())
                raise self._error(
                    ShapeError,
                    f"the arguments do not say what {unknown[0]} is, in {place.dim(axis, wanted)}",
                    "a name stands alone in some annotation, or in an expression with known names "
                    "and once, as in `2*B`",
                    place,
                    (place,),
                )
            waiting = rest
        return self.sizes

    # --- one leaf ---

    def axes(self, place: Place, type: TensorType) -> list[tuple[int, Dim]]:
        """The dims of an array and what is said of them, without those at `...`."""
        dims = place.spec.dims
        at = next((k for k, d in enumerate(dims) if isinstance(d, EllipsisType)), None)
        count = len(dims) - (at is not None)
        if type.rank < count or (at is None and type.rank != count):
            least = "at least " if at is not None else ""
            raise self._error(
                ShapeError,
                f"`{place.path}` has shape {shape_text(type.shape)}, of {_dims(type.rank)}",
                f"its annotation has {least}{_dims(count)}",
                place,
                (place,),
            )
        found: list[tuple[int, Dim]] = []
        for k, dim in enumerate(dims):
            if not isinstance(dim, EllipsisType):
                after = at is not None and k > at
                found.append((k + type.rank - len(dims) if after else k, dim))
        return found

    def _dtype(self, place: Place, type: TensorType) -> None:
        wanted = place.spec.dtype
        if wanted is None:
            return
        if isinstance(wanted, PolicedDType):
            wanted = wanted.dtype
        if isinstance(wanted, DTypeVar):
            known = self.sizes.dtypes.setdefault(wanted.name, type.dtype)
            first = self.sizes.sources.setdefault(f"dtype {wanted.name}", place)
            if wanted.allowed and type.dtype not in wanted.allowed:
                allowed = " or ".join([d.full_name for d in wanted.allowed])
                raise self._bad_dtype(place, type, f"{wanted.name} is {allowed}", (place,))
            if known is not type.dtype:
                rule = f"{wanted.name} is {known.full_name}, the dtype of `{first.path}`"
                raise self._bad_dtype(place, type, rule, (first, place))
        elif wanted is not type.dtype:
            what = "arguments" if self._place_of is None else "results"
            rule = f"its annotation says {wanted.full_name}; {what} are not converted"
            error = self._bad_dtype(place, type, rule, (place,))
            error.fix = f"convert it: `{place.path}.astype(ts.{wanted.full_name})`"
            raise error

    def _name(self, place: Place, axis: int, name: str, size: Dim) -> None:
        known = self.sizes.dims.get(name)
        if known is None:
            self.sizes.dims[name] = size
            self.sizes.origins[name] = place.dim(axis, sym(name))
            self.sizes.sources[name] = place
        elif not may_equal(known, size):
            other, first = self.sizes.origins[name], self.sizes.sources.get(name)
            notes = (place,) if first is None else (first, place)
            raise self._wrong(place, axis, sym(name), size, f"but {other} is {known}", notes)

    def _expression(self, place: Place, axis: int, wanted: Dim, size: Dim) -> bool:
        """Whether a dim that is an expression could be checked."""
        known = self.sizes.dims
        unknown = sorted(symbols(wanted) - known.keys())
        value = substitute(wanted, {n: known[n] for n in symbols(wanted) & known.keys()})
        if not unknown:
            if not may_equal(value, size):
                names = sorted(symbols(wanted))
                sources = [s for n in names if (s := self.sizes.sources.get(n))]
                why = f"but {wanted} is {value}: {self.sizes.explain(names)}"
                raise self._wrong(place, axis, wanted, size, why, (*sources, place))
            return True
        found = linear_in(value, unknown) if len(unknown) == 1 else None
        if found is None:
            return False
        coefficient, rest = found[0][unknown[0]], found[1]
        left = size - rest
        if not isinstance(coefficient, int) or coefficient == 0:
            return False
        if isinstance(left, int) and (left % coefficient or left // coefficient < 0):
            rule = f"no size of {unknown[0]} gives that"
            raise self._error(
                ShapeError, f"{place.dim(axis, wanted)} is {size}", rule, place, (place,)
            )
        name = unknown[0]
        known[name] = left // coefficient
        self.sizes.origins[name] = place.dim(axis, wanted)
        self.sizes.sources[name] = place
        return True

    # --- conditions ---

    def solve(self, stated: Sequence[Stated]) -> None:
        """Finds names that no array says, by equations with those that are known.

        Raises:
            ShapeError: no size of such a name satisfies an equation.
        """
        waiting = [each for each in stated if each.condition.relation is Relation.EQUAL]
        while waiting:
            rest = [each for each in waiting if not self._solved(each)]
            if len(rest) == len(waiting):
                return
            waiting = rest

    def _solved(self, stated: Stated) -> bool:
        known, expr = self.sizes.dims, stated.condition.expr
        names = symbols(expr)
        unknown = sorted(names - known.keys())
        if not unknown:
            return True
        name = unknown[0]
        value = substitute(expr, {n: known[n] for n in names & known.keys()})
        found = solved_for(value, name) if len(unknown) == 1 else None
        if found is None:
            return False
        coefficient, left = found
        if isinstance(left, int):
            if left % coefficient or left < 0:
                raise self._violated(stated, sorted(names & known.keys()))
        elif coefficient > 1 and assumptions.decide(left % coefficient, "==", 0) is not True:
            return False
        known[name] = left // coefficient
        self.sizes.origins[name] = f"{name} in `{stated.condition}`"
        return True

    def check(self, stated: Sequence[Stated]) -> None:
        """Conditions hold for the sizes.

        Raises:
            ShapeError: one does not.
        """
        for each in stated:
            names, function = _condition(each.condition)
            values = [self.sizes.dims.get(n) for n in names]
            if None in values:
                continue
            expr: Dim = 0
            if all([type(v) is int for v in values]):
                (expr,) = function(*values)
            else:
                expr = substitute(each.condition.expr, self.sizes.dims)
            if not isinstance(expr, int):
                relation = "==" if each.condition.relation is Relation.EQUAL else ">="
                if assumptions.decide(expr, relation, 0) is not False:
                    continue
            elif expr == 0 or (expr > 0 and each.condition.relation is Relation.LEAST):
                continue
            raise self._violated(each, names)

    # --- errors ---

    def _violated(self, stated: Stated, names: Sequence[str]) -> TesseraError:
        frames = stated.loc.frames
        sources = [s for n in names if (s := self.sizes.sources.get(n))]
        why = f"asked for at {frames[0]}" if frames else f"as long as nobody says {names[0]} >= 0"
        rule = f"{stated.condition}, {why}"
        error = self._error(ShapeError, self.sizes.explain(names), rule, None, sources)
        error.fix = "pass arrays of sizes for which it holds" + (
            "" if frames else f', or write `@ts.constrain("{names[0]} >= 0")`'
        )
        return error

    def _wrong(
        self, place: Place, axis: int, wanted: Dim, size: Dim, why: str, notes: Sequence[Place]
    ) -> TesseraError:
        rule = "a dim is what its annotation says, and a name is one size in all of them"
        text = f"{place.dim(axis, wanted)} is {size}, {why}"
        error = self._error(ShapeError, text, rule, place, notes)
        if self._place_of is not None:
            error.fix = "change the result, or its annotation"
        elif isinstance(wanted, int):
            error.fix = f'pass an array with {wanted}, or name the dim, as in `ts.Tensor["N"]`'
        else:
            error.fix = "pass arrays whose dims agree, or give the dims other names"
        return error

    def _bad_dtype(
        self, place: Place, type: TensorType, rule: str, notes: Sequence[Place]
    ) -> TesseraError:
        text = f"`{place.path}` has dtype {type.dtype.full_name}"
        error = self._error(DTypeError, text, rule, place, notes)
        error.fix = f"convert it: `{place.path}.astype(...)`"
        return error

    def _no_array(self, place: Place) -> TesseraError:
        text = f"`{place.path}` is of type {type(place.given).__name__}, and no array"
        rule = "its annotation is that of one array"
        error = self._error(LeafError, text, rule, place, (place,))
        if self._place_of is None and isinstance(place.given, (list, tuple)):
            error.fix = "make an array of it with `ts.asarray`"
        return error

    def _error(
        self,
        cls: type[TesseraError],
        text: str,
        rule: str,
        place: Place | None,
        notes: Sequence[Place],
    ) -> TesseraError:
        where: Any = loc.current()
        if self._place_of is not None and place is not None and place.leaf is not None:
            where = self._place_of(place.leaf)
        lines = dict.fromkeys([each.note() for each in notes])
        return cls(f"{self.function}: {text}", loc=where, rule=rule, notes=tuple(lines))


def _dims(count: int) -> str:
    return f"{count} dim" if count == 1 else f"{count} dims"
