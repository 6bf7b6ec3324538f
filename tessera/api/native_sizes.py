"""What native code is told of a function with annotated shapes, so that it runs calls of any sizes.

It is what `unify.py` does for the arrays of a call, and what a class of sizes is told by, as code
about the words of a key (`runtime/dispatch/sizes.py`). Errors stay in Python: where the code says
no, the call goes there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.api.annotations import Stated
from tessera.api.classes import Case
from tessera.api.matching import Place
from tessera.api.unify import Unifier
from tessera.ir.constraints import Relation
from tessera.ir.intexpr import Dim, linear_in, solved_for, symbols
from tessera.ir.types import TensorType
from tessera.runtime.dispatch.signatures import Work
from tessera.runtime.dispatch.sizes import Code, SizedPlan, sized_plan
from tessera.runtime.executable import Executable


class NativeSizes:
    """A program for a class of sizes, for native code.

    Args:
        places: the annotated leaves.
        types: of the leaves of one call.
        stated: what the sizes of a call are asked for.
        case: the class.
        anchors: sizes that belong to other classes, by name.
        tiles: for each name with a tile, what it is.
        values: for each run-time dim of the program the name that it comes from, and the divisor.

    Attributes:
        is_called: whether the program was run before.
        tried: how often native code was told of it, or could not be.
    """

    def __init__(
        self,
        places: Sequence[Place],
        types: Sequence[TensorType],
        stated: Sequence[Stated],
        case: tuple[Case, ...],
        anchors: Mapping[str, tuple[int, ...]],
        tiles: Mapping[str, int],
        values: Sequence[tuple[str, int]],
    ) -> None:
        self._places = tuple(places)
        self._ranks = [t.rank for t in types]
        self._axes = [Unifier("").axes(p, types[p.leaf]) for p in places if p.leaf is not None]
        self._stated = tuple(stated)
        self._case = case
        self._anchors = anchors
        self._tiles = tiles
        self._values = tuple(values)
        self.is_called = False
        self.tried = 0

    def plan(
        self,
        key: Sequence[int],
        numbers: Sequence[type | None],
        work: Work,
        executable: Executable,
        refs: Sequence[bool],
    ) -> SizedPlan | None:
        """How calls with keys like one are run; None where native code cannot.

        Args:
            key: of a call, from `key_of`.
            numbers: per leaf the class of a number, likewise.
            work: how that call is run.
            executable: the program.
            refs: of all leaves, which are refs.
        """
        starts = self._starts(key, numbers, refs)
        if starts is None or len(numbers) != len(self._ranks) or not work.fits():
            return None
        inputs, outputs = executable.signature.inputs, executable.signature.outputs
        for k, on in enumerate(executable.signature.overwritten):
            if on is not None and inputs[on] != outputs[k]:
                return None
        for (dims, _), type in zip(executable.signature.outputs, work.types, strict=True):
            # The types of weak results have their sizes in them.
            if type is not None and type.weak and not all([isinstance(d, int) for d in dims]):
                return None
        pairs = list(zip(self._places, self._axes, strict=True))
        free = [starts[p.leaf] + k for p, axes in pairs for k, _ in axes if p.leaf is not None]
        code = Code(free)
        env = self._names(code, starts)
        if env is None:
            return None
        self._conditions(code, env)
        self._class(code, env)
        tail = [
            env[name] if n == 1 else code.value("floordiv", env[name], code.constant(n))
            for name, n in self._values
        ]
        dims = dict(zip(executable.signature.dims, tail, strict=True))
        shapes = [shape for shape, _ in outputs]
        return sized_plan(key, code, work, shapes, executable.signature.arena, tail, dims)

    def _starts(
        self, key: Sequence[int], numbers: Sequence[type | None], refs: Sequence[bool]
    ) -> list[int] | None:
        """Where the dims of each leaf that is no ref stand in the key."""
        at, found = 1, list[int]()
        leaves = zip(numbers, self._ranks, strict=False)
        for is_ref in refs:
            each = None if is_ref else next(leaves, None)
            if each is None:
                at += 1  # what kind of ref it is
                continue
            kind, rank = each
            found.append(at + 2)
            at += 2 if kind is not None else 2 + rank
        return found if at == len(key) else None

    def _names(self, code: Code, starts: Sequence[int]) -> dict[str, int] | None:
        """The values of the names, with code that asks whether all dims agree."""
        env: dict[str, int] = {}
        waiting: list[tuple[Dim, int]] = []
        for place, axes in zip(self._places, self._axes, strict=True):
            assert place.leaf is not None
            for axis, wanted in axes:
                size = code.value("key", starts[place.leaf] + axis)
                if isinstance(wanted, int):
                    code.is_equal(size, code.constant(wanted))
                elif str(wanted) in wanted.symbols:
                    code.is_equal(size, env.setdefault(str(wanted), size))
                else:
                    waiting.append((wanted, size))
        while waiting:
            rest = [each for each in waiting if not self._solve(code, env, *each)]
            if len(rest) == len(waiting):
                return None
            waiting = rest
        self._given(code, env)
        return env

    def _given(self, code: Code, env: dict[str, int]) -> None:
        """Names that no array says, by equations; see `Unifier.solve`."""
        waiting = [s.condition.expr for s in self._stated if s.condition.relation is Relation.EQUAL]
        while waiting:
            rest = [e for e in waiting if not self._is_given(code, env, e)]
            if len(rest) == len(waiting):
                return
            waiting = rest

    def _is_given(self, code: Code, env: dict[str, int], expr: Dim) -> bool:
        unknown = sorted(symbols(expr) - env.keys())
        if not unknown:
            return True  # one of the conditions
        found = solved_for(expr, unknown[0]) if len(unknown) == 1 else None
        if found is None or not symbols(found[1]) <= env.keys():
            return False
        env[unknown[0]] = _quotient(code, code.dim(found[1], env), found[0])
        return True

    def _solve(self, code: Code, env: dict[str, int], wanted: Dim, size: int) -> bool:
        """Whether a dim that is an expression could be compared, or says what a name is."""
        unknown = sorted(symbols(wanted) - env.keys())
        if not unknown:
            code.is_equal(size, code.dim(wanted, env))
            return True
        found = linear_in(wanted, unknown) if len(unknown) == 1 else None
        if found is None:
            return False
        coefficient, rest = found[0][unknown[0]], found[1]
        if not isinstance(coefficient, int) or coefficient <= 0:
            return False
        left = code.difference(size, code.dim(rest, env))
        env[unknown[0]] = _quotient(code, left, coefficient)
        return True

    def _conditions(self, code: Code, env: Mapping[str, int]) -> None:
        for each in self._stated:
            expr = each.condition.expr
            if symbols(expr) <= env.keys():
                value = code.dim(expr, env)
                is_equation = each.condition.relation is Relation.EQUAL
                (code.is_zero if is_equation else code.is_least)(value)

    def _class(self, code: Code, env: Mapping[str, int]) -> None:
        for name, size, divisor in self._case:
            own = env[name]
            if size is not None:
                code.is_equal(own, code.constant(size))
                continue
            for other in self._anchors[name]:
                code.is_other(code.difference(own, code.constant(other)))
            tile = self._tiles[name]
            if tile > 1:
                rest = code.value("mod", own, code.constant(tile))
                (code.is_zero if divisor > 1 else code.is_other)(rest)


def _quotient(code: Code, left: int, divisor: int) -> int:
    """A size, which times a divisor is what is left; code asks that there is one."""
    by = code.constant(divisor)
    code.is_zero(code.value("mod", left, by))
    code.is_least(left)
    return code.value("floordiv", left, by)
