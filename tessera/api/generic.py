"""Functions with annotated shapes: one program for all sizes, one executable per class of sizes.

Such a function is traced with a symbol for each name in its annotations. What a trace needs of the
sizes is proved from the conditions or becomes a guard. The program is then compiled for classes of
sizes, as `ts.dim` tells them: for one size (an anchor), for multiples of a tile, and for the rest.

Invariants:

1. A trace does not look at the sizes of the call that it is made in: every call with the same
   dtypes and structure has the same trace.
2. In a program every dim is an expression of its run-time dims: names, divided by what is known to
   divide them, and without those that equations give.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from tessera.api.annotations import PolicedDType, Stated, TensorSpec
from tessera.api.classes import (
    Case,
    Classes,
    Specialization,
    Specializations,
    conditions_of,
    text_of,
)
from tessera.api.leaves import name_of
from tessera.api.matching import Annotations, Place, Slot, match
from tessera.api.native_sizes import NativeSizes
from tessera.api.owned import donated_leaves
from tessera.api.signature import Arguments, Entry, lowered_for
from tessera.api.specialized import Program, Specialized, fits
from tessera.api.stateful import State
from tessera.api.static import StaticArguments
from tessera.api.traced import Traced
from tessera.api.unify import Sizes, Unifier
from tessera.compile import Stages
from tessera.compile import lower as lower_graph
from tessera.errors import OptionError, RetraceError, ShapeError, TesseraError
from tessera.graph.device import CPU, Device
from tessera.graph.placement import moved
from tessera.graph.trace import Tracer
from tessera.graph.transforms.resize import resize
from tessera.ir import assumptions, loc
from tessera.ir.assumptions import Assumptions
from tessera.ir.constraints import Relation, System, condition
from tessera.ir.core import Func
from tessera.ir.intexpr import Dim, Sym, coeffs_of, solved_for, substitute, sym, symbols
from tessera.ir.ranges import MOST_ELEMENTS, with_ranges
from tessera.ir.types import TensorType
from tessera.target.gpu import Gpu
from tessera.target.machine import Machine

if TYPE_CHECKING:
    from tessera.schedule.memory_use import MemoryUse

MOST_CLASSES = 4096
"""More are not listed."""

Trace = Callable[[Arguments, Sequence[TensorType]], Traced]
"""Traces a function for other types of the leaves of a call."""


class ShapeGeneric:
    """The programs of one function with annotations.

    Args:
        fn: the function.
        annotations: what is said of its arrays.
        stated: conditions from outside of the function.
        limit: how many executables there may be; None for any number.
        compiled: is told of each.
        donated: which arguments are donated.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        annotations: Annotations,
        stated: Sequence[Stated],
        limit: int | None,
        compiled: Callable[[Stages], None],
        donated: StaticArguments | None = None,
    ) -> None:
        self.name = name_of(fn)
        self.annotations = annotations
        self.limit, self._compiled, self._donated = limit, compiled, donated
        self.stated = (*stated, *annotations.stated)
        self._equal = _equations(self.stated)
        conditions = [s.condition for s in self.stated]
        free = {str(c.expr) for c in conditions if c.relation is Relation.LEAST}
        stated_names = [n for c in conditions for n in symbols(c.expr)]
        self.names = names = sorted({*annotations.names, *stated_names})
        self._check_names()
        # A name is at least 1, unless somebody says `B >= 0`; what only results say is as it is.
        free |= annotations.result_names.difference(*[symbols(c.expr) for c in conditions])
        least = [condition(sym(n), ">=", 1, f"{n} >= 1") for n in names if n not in free]
        self.stated = (*[Stated(c, loc.Loc()) for c in least], *self.stated)
        conditions += least
        self.system = System(conditions)
        if self.system.is_impossible:
            raise self._contradiction()
        self.classes = Classes(names, annotations.declared, self.system)
        self._places: dict[Hashable, list[Place]] = {}
        self._fixed_leaves: dict[Hashable, frozenset[int | None]] = {}
        self._types: dict[Hashable, tuple[TensorType, ...]] = {}
        self._programs: dict[Hashable, Program] = {}
        self._lock = threading.Lock()

    def _contradiction(self) -> OptionError:
        core = self.system.contradiction()
        texts = [str(c) for c in core]
        places = {s.condition: s.loc for s in self.stated}
        last = next((places[c] for c in reversed(core) if places.get(c)), None)
        return OptionError(
            f"{self.name}: no sizes satisfy {' and '.join(texts)}",
            loc=last or loc.current(),
            rule="some sizes satisfy all conditions; a dim is 1 or more unless they say `S >= 0`",
            fix="leave one of them out",
        )

    def _check_names(self) -> None:
        """Conditions are about names that annotations say, or that equations give by these."""
        known = set(self.annotations.names)
        for _ in self.stated:
            for each in self.stated:
                unknown = sorted(symbols(each.condition.expr) - known)
                is_equation = each.condition.relation is Relation.EQUAL
                if len(unknown) == 1 and is_equation and solved_for(each.condition.expr, *unknown):
                    known.update(unknown)
        for each in self.stated:
            unknown = sorted(symbols(each.condition.expr) - known)
            if unknown:
                raise OptionError(
                    f"{self.name}: nothing says what {unknown[0]} is, in {each.condition}",
                    loc=each.loc,
                    rule="a condition is about names of the function's annotations, or gives a "
                    "name by these, as `H == D // 64` does",
                    fix=f"its annotations name {', '.join(self.annotations.names)}; or name a dim "
                    f'so: `ts.Tensor["{unknown[0]}"]`',
                )

    # --- calls ---

    def places(self, call: Arguments) -> list[Place]:
        """The annotated leaves of a call."""
        key = call.structure or len(call.leaves)
        found = self._places.get(key)
        if found is None:
            slots = [Slot(k) for k in range(len(call.leaves))]
            found = self._places[key] = self.annotations.places(*call.rebuild()(slots))
        return found

    def check(self, call: Arguments) -> Sizes:
        """The sizes of a call.

        Raises:
            ShapeError: they are not what the annotations and conditions say.
        """
        unifier = Unifier(self.name)
        sizes = unifier.unify(self.places(call), [x.type for x in call.leaves])
        unifier.solve(self.stated)
        unifier.check(self.stated)
        return sizes

    def check_result(self, traced: Traced, sizes: Sizes) -> None:
        """The result of a trace is what its annotation says."""
        if self.annotations.result is None:
            return
        slots = [Slot(k) for k in range(len(traced.types))]
        places = list(match(self.annotations.result, traced.treedef.unflatten(slots), "result"))

        def place_of(k: int) -> loc.Loc:
            leaf = traced.leaves[k]
            op = leaf.value.op if isinstance(leaf, Tracer) else None
            return traced.trace.loc if op is None else op.loc

        copy = Sizes(dict(sizes.dims), dict(sizes.dtypes), dict(sizes.origins), dict(sizes.sources))
        unifier = Unifier(self.name, copy, place_of)
        unifier.unify(places, traced.types)
        fresh = copy.dims.keys() - sizes.dims.keys()
        stated = [s for s in self.stated if fresh & symbols(s.condition.expr)]
        unifier.check(stated)
        facts = assumptions.current()
        for each in stated:
            expr = substitute(each.condition.expr, copy.dims)
            if facts is not None and facts.covers(expr):
                facts.asked_for(replace(each.condition, expr=expr), each.loc)

    def entry(
        self, call: Arguments, settings: Hashable, trace: Trace, device: Device = CPU
    ) -> Entry | None:
        """What runs a call; None if the function uses values of an outer trace.

        Args:
            call: the call.
            settings: those that programs depend on.
            trace: traces the function for types of the leaves.
            device: where it runs.
        """
        sizes = self.check(call)
        program = self._program(call, sizes, settings, trace, device)
        if program is None:
            return None
        Unifier(self.name, sizes).check(program.guards)
        env = _numbers(sizes)
        found = self._specialized(program, env, call)
        found.native.is_called = bool(found.loaded)
        executable = self._executable(program, found, call)
        values = [env[name] // divisor for name, divisor in found.values]
        outputs = program.outputs(env)
        captured: list[Any] = program.traced.captured
        if device != CPU:
            captured = [moved(x, device) for x in captured]
        return Entry(
            *(found.lowered, executable, program.traced, captured),
            donated=[k - len(captured) for k in program.donated],
            dims=values,
            types=outputs,
            state=program.state,
            sizes=found.native,
        )

    def lowered(
        self, call: Arguments, settings: Hashable, trace: Trace, device: Device = CPU
    ) -> Stages | None:
        """The program that would run a call, without its machine code."""
        sizes = self.check(call)
        program = self._program(call, sizes, settings, trace, device)
        if program is None:
            return None
        return self._specialized(program, _numbers(sizes), call).lowered

    def memory(
        self, call: Arguments, settings: Hashable, trace: Trace, where: Device | Machine | Gpu = CPU
    ) -> MemoryUse | None:
        """What the program needs that would run a call."""
        sizes = self.check(call)
        program = self._program(call, sizes, settings, trace, where)
        if program is None:
            return None
        case = self.classes.of(env := _numbers(sizes))
        if isinstance(where, Device):
            found = self._specialized(program, env, call)
            lowered, values = found.lowered, found.values
        else:
            graph, values = self._graph(program, case, isinstance(where, Gpu))
            lowered: Stages = lowered_for(graph, CPU, where, program.donated)
        names = zip(lowered.traced.dims, values, strict=True)
        return lowered.memory(**{own: env[name] // n for own, (name, n) in names})

    def for_all_sizes(self, call: Arguments, trace: Trace, where: Device, machine: Any) -> Stages:
        """The program for sizes that no class of their own has.

        Args:
            call: types of arguments, whose dims may be names.
            trace: traces the function for them.
            where, machine: what it is for.
        """
        with assumptions.assuming(self.facts()):
            shapes = [[substitute(d, self._equal) for d in x.type.shape] for x in call.leaves]
            leaves = zip(call.leaves, shapes, strict=True)
            traced = trace(call, [x.type.with_shape(shape) for x, shape in leaves])
        state = State.of(traced, self.name, CPU)
        donated = [] if state is None else state.inputs_of(traced.graph)
        return lowered_for(traced.graph, where, machine, donated)

    def lowered_for(
        self, call: Arguments, settings: Hashable, trace: Trace, machine: Machine | Gpu | str
    ) -> Stages | None:
        """The program that would run a call on a machine that may be elsewhere."""
        from tessera.compile_gpu import lower_for, machine_named  # loads the backend

        machine = machine_named(machine)
        sizes = self.check(call)
        program = self._program(call, sizes, settings, trace, machine)
        if program is None:
            return None
        case = self.classes.of(env := _numbers(sizes))
        graph, values = self._graph(program, case, isinstance(machine, Gpu))
        found = lower_for(graph, machine, program.donated)
        if isinstance(machine, Gpu):
            dims = [env[name] // divisor for name, divisor in values]
            if not fits(found, dict(zip(graph.dims, dims, strict=True))):
                graph, _ = self._graph(program, case, True, is_large=True)
                found = lower_for(graph, machine, program.donated)
        return found

    def _program(
        self,
        call: Arguments,
        sizes: Sizes,
        settings: Hashable,
        trace: Trace,
        where: Device | Machine | Gpu = CPU,
    ) -> Program | None:
        types = self._types_of(call)
        key = (settings, where, types, call.structure)
        found = self._programs.get(key)
        if found is not None and found.state is not None and not found.state.is_alive():
            self._programs.pop(key, None)
            found = None
        if found is None:
            device = where if isinstance(where, Device) else CPU
            found = self._trace(call, types, sizes, trace, device)
            if found is not None:
                with self._lock:
                    found = self._programs.setdefault(key, found)
        return found

    # --- traces ---

    def facts(self) -> Assumptions:
        """What a trace begins with."""
        return Assumptions(self.system, self.names, self._equal)

    def _types_of(self, call: Arguments) -> tuple[TensorType, ...]:
        """The types of the leaves, with names for sizes; made once for all calls that are alike."""
        key: list[Hashable] = [call.structure or len(call.leaves)]
        fixed = self._fixed(call)
        for k, x in enumerate(call.leaves):
            key.append(x.type if k in fixed else (x.dtype, x.type.weak))
        found = self._types.get(tuple(key))
        if found is None:
            found = self._types[tuple(key)] = self._make_types(call)
        return found

    def _fixed(self, call: Arguments) -> frozenset[int | None]:
        """The leaves whose sizes are as they are, wholly or at `...`."""
        key = call.structure or len(call.leaves)
        found = self._fixed_leaves.get(key)
        if found is None:
            named = {p.leaf for p in self.places(call) if not _has_dots(p.spec)}
            every = frozenset[int | None](range(len(call.leaves)))
            found = self._fixed_leaves[key] = every.difference(named)
        return found

    def _make_types(self, call: Arguments) -> tuple[TensorType, ...]:
        types: list[TensorType] = [x.type for x in call.leaves]
        for place in self.places(call):
            if place.leaf is None:
                continue
            type, dims = types[place.leaf], place.spec.dims
            shape: list[Dim] = []
            for k, dim in enumerate(dims):
                if isinstance(dim, EllipsisType):
                    shape += type.shape[k : type.rank - (len(dims) - k - 1)]
                else:
                    shape.append(substitute(dim, self._equal))
            types[place.leaf] = type.with_shape(shape)
        return tuple(self.under_policies(call, types))

    def under_policies(self, call: Arguments, types: Sequence[TensorType]) -> list[TensorType]:
        """The types of the leaves with the policies of their annotations."""
        found = list(types)
        for place in self.places(call):
            dtype = place.spec.dtype
            if place.leaf is not None and isinstance(dtype, PolicedDType):
                found[place.leaf] = found[place.leaf].with_policy(dtype.changes)
        return found

    def _trace(
        self,
        call: Arguments,
        types: Sequence[TensorType],
        sizes: Sizes,
        trace: Trace,
        device: Device,
    ) -> Program | None:
        facts = self.facts()
        with assumptions.assuming(facts):
            try:
                traced = trace(call, types)
            except ShapeError as error:
                self._explain(error, sizes)
                raise
            if any([isinstance(x, Tracer) for x in traced.captured]):
                return None
            named: dict[str, Dim] = {n: substitute(sym(n), self._equal) for n in sizes.dims}
            known = Sizes(named, sizes.dtypes, sizes.origins, sizes.sources)
            self.check_result(traced, known)
        given_away = tuple(donated_leaves(self._donated, call))
        return Program(traced, facts, device, State.of(traced, self.name, device), given_away)

    def _explain(self, error: TesseraError, sizes: Sizes) -> None:
        """Says of an error in the function's body where the names in it come from."""
        sides = _sides(error.what)
        about = " ".join(sides) or error.what
        words = [n for n in dict.fromkeys(_WORD.findall(about)) if n in sizes.sources]
        if not words:
            return
        lines = [f"{n} is any size: that of {sizes.origins[n]}" for n in words]
        notes = dict.fromkeys([sizes.sources[n].note() for n in words])
        error.notes = (*error.notes, *lines, *notes)
        quotient = re.search(r"([^\W\d]\w*) // (\d+)", error.what)
        if sides and set(_WORD.findall(about)) <= set(words):
            # A name, then what else it may be.
            left, right = sorted(sides, key=lambda side: not _WORD.fullmatch(side))
            use = f"write {right} in the place of {left}" if right.isdecimal() else "use one name"
            error.fix = (
                f'if these are one size, {use}, or say so: `@ts.constrain("{left} == {right}")`'
            )
        elif quotient is not None:
            name, divisor = quotient.groups()
            condition = f"{name} % {divisor} == 0"
            error.fix = f'if {divisor} divides {name}, say so: `@ts.constrain("{condition}")`'

    def programs(self) -> list[Program]:
        """The traces, in order."""
        return list(self._programs.values())

    def why(self) -> list[str]:
        """For each trace, what of its sizes was proved and what calls are asked for, with the
        lines of the user that need it."""
        found: list[str] = []
        for program in self.programs():
            lines = [f"{c}: proved, for {place}" for c, place in program.facts.proofs.items()]
            guards = program.facts.guards.values()
            lines += [f"{g.condition}: asked of each call, for {g.loc}" for g in guards]
            if lines:
                found.append("\n".join(lines))
        return found

    # --- classes ---

    def specializations(self) -> Specializations:
        """The classes of sizes, each with an executable of its own."""
        counts: dict[tuple[Case, ...], int] = {}
        for program in self.programs():
            for case in program.loaded():
                counts[case] = counts.get(case, 0) + 1
        cases = itertools.islice(self.classes.all(), MOST_CLASSES)
        return Specializations(
            [Specialization(tuple(map(str, conditions_of(c))), counts.get(c, 0)) for c in cases]
        )

    def _specialized(
        self, program: Program, env: Mapping[str, int], call: Arguments
    ) -> Specialized:
        """The program for the class of some sizes; on a GPU, that for large arrays where it needs
        wider indices."""
        found = self._made(program, self.classes.of(env), False, call)
        if program.device != CPU and not found.fits(env):
            found = self._made(program, self.classes.of(env), True, call)
        return found

    def _made(
        self, program: Program, case: tuple[Case, ...], is_large: bool, call: Arguments
    ) -> Specialized:
        found = program.classes.get((case, is_large))
        if found is None:
            graph, own_values = self._graph(program, case, program.device != CPU, is_large)
            lowered: Stages
            if program.device == CPU:
                lowered = lower_graph(graph, program.donated)
            else:
                from tessera.compile_gpu import lower_on  # loads the backend

                lowered = lower_on(graph, program.device, program.donated)
            native = NativeSizes(
                self.places(call),
                [x.type for x in call.leaves],
                [*self.stated, *program.guards],
                case,
                {name: dim.anchors for name, dim in self.annotations.declared.items()},
                {name: dim.tile for name, dim in self.annotations.declared.items()},
                own_values,
            )
            found = Specialized(lowered, own_values, native)
            with self._lock:
                found = program.classes.setdefault((case, is_large), found)
        return found

    def _graph(
        self, program: Program, case: tuple[Case, ...], is_for_gpu: bool, is_large: bool = False
    ) -> tuple[Func, tuple[tuple[str, int], ...]]:
        """The Graph for a class of sizes; and for each run-time dim its name, and the divisor."""
        mapping, values = self._substitution(case)
        graph = resize(program.traced.graph, mapping) if mapping else program.traced.graph
        own = {_run_time_name(*value): value for value in values}
        if is_for_gpu:
            system = self.system.adding(*conditions_of(case))
            ranges = {n: _range_of(system, *own[n]) for n in graph.dims}
            graph = with_ranges(graph, ranges, None if is_large else MOST_ELEMENTS)
        return graph, tuple([own[n] for n in graph.dims])

    def _executable(self, program: Program, found: Specialized, call: Arguments) -> Any:
        if not found.loaded:
            known = [c for p in self.programs() for c in p.loaded()]
            if self.limit is not None and len(known) >= self.limit:
                case = next(c for (c, _), s in program.classes.items() if s is found)
                raise self._too_many(case, call, known)
            lowered: Any = found.lowered
            executable = lowered.executable(*[d for d in (program.device,) if d != CPU])
            with self._lock:
                if not found.loaded:
                    found.loaded.append(executable)
                    self._compiled(found.lowered)
        return found.loaded[0]

    def _substitution(self, case: tuple[Case, ...]) -> tuple[dict[str, Dim], list[tuple[str, int]]]:
        """What names become in a class of sizes, and the run-time dims: name and divisor."""
        system = self.system.adding(*conditions_of(case))
        chosen = {name: (size, divisor) for name, size, divisor in case}
        mapping: dict[str, Dim] = {}
        values: list[tuple[str, int]] = []
        for name in self.names:
            if name in self._equal:
                continue
            low, high = system.bounds(sym(name))
            size, _ = chosen.get(name, (None, 1))
            size = low if size is None and low == high else size
            if size is not None:
                mapping[name] = size
                continue
            divisor = max(system.divisor(sym(name)), 1)
            if divisor > 1:
                mapping[name] = divisor * sym(_run_time_name(name, divisor))
            values.append((name, divisor))
        for name, value in self._equal.items():
            mapping[name] = substitute(value, mapping)
        return mapping, values

    def _too_many(
        self, case: tuple[Case, ...], call: Arguments, known: Sequence[tuple[Case, ...]]
    ) -> RetraceError:
        types = [str(x.type.strong()) for x in call.leaves]
        return RetraceError(
            f"jit: {self.name} would be compiled once more, for {text_of(case)}, by a call "
            f"with {', '.join(types)}",
            loc=loc.current(),
            rule=f"it was made with max_specializations={self.limit}",
            notes=(f"compiled before: {'; '.join(map(text_of, known)) or 'nothing'}",),
            fix="call it with sizes of these classes, or raise `max_specializations`; "
            "`f.specializations()` lists all",
        )


_WORD = re.compile(r"[^\W\d]\w*")
_SIDE = r"([\w*/%+() -]*?[\w)])"
_DIFFERENCE = re.compile(rf"(?:: {_SIDE} and {_SIDE}|is {_SIDE}, but dim \d+ of \w+ is {_SIDE})$")


def leaf_types(generic: ShapeGeneric | None, call: Arguments) -> list[TensorType]:
    """The types of the leaves of a call, for a trace that is of these sizes."""
    types = [x.type for x in call.leaves]
    return types if generic is None else generic.under_policies(call, types)


def _sides(what: str) -> list[str]:
    """The two dims that differ, by the text of an error."""
    found = _DIFFERENCE.search(what)
    return [side for side in found.groups() if side] if found else []


def _numbers(sizes: Sizes) -> dict[str, int]:
    return {name: d for name, d in sizes.dims.items() if isinstance(d, int)}


def _has_dots(spec: TensorSpec) -> bool:
    return any([isinstance(d, EllipsisType) for d in spec.dims])


def _range_of(system: System, name: str, divisor: int) -> tuple[int | None, int | None]:
    """What a run-time dim can be: a name, divided by what is known to divide it."""
    low, high = system.bounds(sym(name))
    return (
        None if low is None else -(-low // divisor),
        None if high is None else high // divisor,
    )


def _run_time_name(name: str, divisor: int) -> str:
    return name if divisor == 1 else f"{name}_{divisor}"


def _equations(stated: Sequence[Stated]) -> dict[str, Dim]:
    """Names that conditions give by others: `H == D // 64` gives H."""
    found: dict[str, Dim] = {}
    for each in stated:
        if each.condition.relation is not Relation.EQUAL:
            continue
        e = substitute(each.condition.expr, found)
        for mono, c in sorted(coeffs_of(e).items(), key=lambda item: str(item[0]), reverse=True):
            if len(mono) != 1 or not isinstance(mono[0], Sym) or abs(c) != 1:
                continue
            name = mono[0].name
            rest = (e - c * sym(name)) * -c
            if name not in symbols(rest):
                found = {n: substitute(d, {name: rest}) for n, d in found.items()}
                found[name] = rest
                break
    return found
