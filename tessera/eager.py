"""Eager evaluation: each op at once, through the same pipeline as everything else.

An op is compiled once per class, attributes, dtypes, ranks and layout class, with its sizes as
symbolic dims, and the executable serves every size (`eager_sizes`); repeated operands of
elementwise ops are read as they are (`eager_repeats`). Ops that only rearrange elements without
computing anything give views where strides can say it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from tessera.compile import lower as lower_graph
from tessera.config import Config, config
from tessera.eager_functions import Functions
from tessera.eager_libraries import Libraries
from tessera.eager_order import (
    Spaces,
    adding,
    as_it_lies,
    as_they_lie,
    common,
    first_in_memory,
    inverse,
    is_apart,
    is_worth_turning,
    merged,
    needs_copy,
    order_of,
    spaced,
    turned,
)
from tessera.eager_plans import MOST_SHAPES, Compiler, Plan, drop_oldest
from tessera.eager_repeats import WORTH, Pattern, backwards, lines, pattern_of
from tessera.eager_sizes import collapse, patterned, symbolic
from tessera.errors import TesseraError
from tessera.graph.array import Array, repeated, view_of
from tessera.graph.device import CPU, default_device
from tessera.graph.engine import add_operator
from tessera.graph.namespace.operators import PLACES
from tessera.graph.ops import rearrange as r
from tessera.graph.ops import reshape as s
from tessera.graph.ops import windows as w
from tessera.graph.ops.base import Family
from tessera.graph.ops.control import Control
from tessera.graph.ops.generate import Constant, Dense
from tessera.graph.ops.hostcall import HostCall, specs
from tessera.graph.ops.library import LibraryCall
from tessera.graph.remote import Remote
from tessera.graph.trace import items_of
from tessera.ir.builder import Builder
from tessera.ir.core import Func, Op, Value
from tessera.ir.hash import content_hash
from tessera.ir.types import TensorType, Type
from tessera.ir.walk import walk
from tessera.runtime.dispatch import direct
from tessera.runtime.dispatch.conversions import conversions
from tessera.runtime.dispatch.native import operate_natively, prepare
from tessera.runtime.dispatch.run import Run
from tessera.runtime.dispatch.signatures import Key, Signatures, Work, key_of
from tessera.runtime.dispatch.structure import leaves_alone
from tessera.runtime.executable import Executable
from tessera.runtime.memory import aligned_empty


def attrs_key(cls: type[Op], attrs: dict[str, Any]) -> Hashable:
    """Attributes of an op, but for what they are by default, as part of a cache key, where
    `1 == True == 1.0`, `-0.0 == 0.0` and `nan != nan` would mix programs up.
    """
    key: list[Hashable] = []
    defaults = {name: default for name, _, default in cls.layout}
    for name in sorted(attrs):
        value: object = attrs[name]
        if value is defaults[name]:
            continue
        kind = type(value)
        key.append((name, kind, str(value) if kind in (float, complex) else value))
    return tuple(key)


ViewRule = Callable[[np.ndarray, dict[str, Any]], np.ndarray]


def _view_slice(x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    index = tuple(
        slice(a, b, c)
        for a, b, c in zip(attrs["start"], attrs["limit"], attrs["stride"], strict=True)
    )
    return x[index]


VIEWS: dict[type[Op], ViewRule] = {
    s.Reshape: lambda x, attrs: x.reshape(attrs["shape"]),  # copies where strides cannot say it
    s.Broadcast: lambda x, attrs: repeated(x, attrs["shape"], attrs["dims"]),
    s.Transpose: lambda x, attrs: x.transpose(attrs["perm"]),
    s.Reverse: lambda x, attrs: np.flip(x, attrs["axes"]),
    r.Slice: _view_slice,
    w.Windows: w.moved_view,
}


# From so many elements on, other threads may run meanwhile.
_LONG = 4096


def _no_devices(operands: Sequence[Any]) -> Eager:
    raise AssertionError("there is only the host")


class Eager:
    """The engine that computes ops outside any trace.

    Args:
        engine_for: gives the engine of the device that operands are on, where that is not the host.

    Attributes:
        starters, operators: see `Engine`.
        functions: what runs functions of several ops as one.
    """

    def __init__(self, engine_for: Callable[[Sequence[Any]], Eager] = _no_devices) -> None:
        self._engine_for = engine_for
        self.starters: dict[type[Op], Callable[..., Any]] = {}
        self.operators: dict[int, object] = {}
        self._checked: set[Hashable] = set()
        self._plans: dict[Hashable, Plan] = {}
        # Of operands of some shapes and strides: the program, its sizes, and what lies backwards.
        self._lying: dict[Hashable, tuple[Any, list[int], tuple[int, ...]]] = {}
        self._cache: dict[Hashable, Any] = {}
        # Of ops with regions, whose sizes are known.
        self._regions: dict[Hashable, Any] = {}
        # What native code knows of each op, and the signatures that it was told or cannot know.
        self._signatures: dict[type[Op], Signatures] = {}
        self._noted: set[Hashable] = set()
        # Orders of large arrays, and their dtypes, that came before.
        self._orders: set[Hashable] = set()
        compiler = Compiler(self._settings_key, self._executable, self._new_plan)
        self.functions, self._libraries = Functions(compiler), Libraries(compiler)
        # The settings that were last in force, and their part of keys.
        self._settings: tuple[Config | None, Hashable] = (None, None)

    def _settings_key(self) -> Hashable:
        settings = config.current()
        last = self._settings
        if last[0] is not settings:
            last = self._settings = (settings, settings.key())
        return last[1]

    def evaluate(self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The results of one op."""
        if getattr(cls, "family", None) is Family.ELEMENTWISE:
            start = None if attrs else self.starters.get(cls)
            if start is not None and (found := start(*operands)) is not NotImplemented:
                return found
            order = common(operands)
            if order is None:
                return self._elementwise(cls, operands, attrs)
            found = self._elementwise(cls, [turned(x, order) for x in operands], attrs)
            return turned(found, inverse(order))
        if not operands and default_device() is not CPU:
            return self._elsewhere(cls, operands, attrs)
        if cls is Constant:
            return constant(attrs["value"], attrs.get("weak", False))
        if cls in VIEWS:
            return self._view(cls, operands[0], attrs)
        flat: list[Array] = []
        groups: list[int | None] = []
        for item in operands:
            if isinstance(item, (tuple, list)):
                found = items_of(item)
                flat.extend(found)
                groups.append(len(found))
            else:
                flat.append(item)
                groups.append(None)
        if any([type(x.storage) is Remote for x in flat]):
            return self._elsewhere(cls, operands, attrs)
        return self._run(cls, flat, groups, attrs)

    def _run(
        self, cls: type[Op], flat: list[Array], groups: list[int | None], attrs: dict[str, Any]
    ) -> Any:
        if issubclass(cls, Control):
            return self._control(cls, flat, groups, attrs)
        if cls is HostCall:
            direct.noted(None)
            results = self._host_call(flat, attrs)
            return tuple(results) if len(results) != 1 else results[0]
        if issubclass(cls, LibraryCall):
            return self._library_call(cls, flat, attrs)
        found = as_they_lie(cls, flat, attrs)
        if found is None:
            return self._compute(cls, flat, groups, attrs)
        flat, attrs, order = found
        result = self._compute(cls, flat, groups, attrs)
        return turned(result, order) if order else result

    def turn(self, data: np.ndarray) -> np.ndarray | None:
        """A copy of a large array in row-major order, if it can be read as it lies and is not the
        first like it; else None."""
        if not is_apart(data) or 0 in data.strides:
            return None
        base, perm = merged(data, order_of(data) or range(data.ndim))
        x = view_of(base)
        space = spaced(x)
        key = (perm, data.dtype, space and space[0])
        if not is_worth_turning(base) or (is_apart(base) and space is None):
            return None
        if key not in self._orders:
            self._orders.add(key)
            return None
        found: Array = self._compute(s.Transpose, [x], [None], {"perm": perm})
        return found.contiguous.reshape(data.shape)

    def _host_call(self, flat: list[Array], attrs: dict[str, Any]) -> list[Array]:
        """A call of the host, without machine code around it: results stay results, exceptions
        exceptions."""
        types = specs(attrs.get("types", ()))
        found = attrs["function"].checked([x.host for x in flat], types)
        # Copies: the function may keep what it gave, and change it.
        return [Array(np.array(x)) for x in found]

    def _elsewhere(self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The results of an op on a device that is not the host."""
        direct.noted(None)
        return self._engine_for(operands).evaluate(cls, operands, attrs)

    def _view(self, cls: type[Op], x: Array, attrs: dict[str, Any]) -> Array:
        data = x.storage
        if isinstance(data, Remote):
            return self._elsewhere(cls, (x,), attrs)
        key = (cls, data.shape, tuple(attrs.items()))
        if key not in self._checked:
            # The op's own check, whose errors are the user's.
            cls(Value(x.type), **attrs)
            if len(self._checked) >= MOST_SHAPES:
                self._checked.clear()
            self._checked.add(key)
        is_whole = cls is s.Broadcast
        if cls is s.Reshape:
            is_whole = direct.STATE.runs is not None or needs_copy(data, attrs["shape"])
        if is_whole:
            # A copy that NumPy would make, or that what reads the view makes each time.
            data = data if x.is_splat else direct.contiguous(x)
        data = VIEWS[cls](data, attrs)
        return Array(data, x.type.with_shape(data.shape) if x.weak else None)

    def _compute(
        self, cls: type[Op], flat: list[Array], groups: list[int | None], attrs: dict[str, Any]
    ) -> Any:
        key = (
            cls,
            self._settings_key(),
            tuple(groups),
            tuple(attrs.items()),
            *[(x.storage.shape, x.storage.dtype, x.weak) for x in flat],
        )
        spaces = [spaced(x) for x in flat] if any([is_apart(x.storage) for x in flat]) else ()
        key = (*key, *[(of, *values) for of, values in filter(None, spaces)])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(cls, flat, groups, attrs, spaces)
            if len(self._plans) >= MOST_SHAPES:
                self._plans.clear()
            self._plans[key] = plan
        if not any(spaces):
            return plan.run([direct.contiguous(x) for x in flat])
        direct.noted(None)
        return plan.run([as_it_lies(x, own) for x, own in zip(flat, spaces, strict=True)])

    def _library_call(
        self, cls: type[LibraryCall], flat: list[Array], attrs: dict[str, Any]
    ) -> Any:
        return self._libraries.call(cls, flat, attrs)

    def _generalizations(self, op: Op) -> Sequence[Callable[..., Any]]:
        """What may make the sizes of an op run-time values, best first."""
        return (symbolic, patterned)

    def _plan(
        self,
        cls: type[Op],
        flat: list[Array],
        groups: list[int | None],
        attrs: dict[str, Any],
        spaces: Sequence[tuple[Spaces, list[int]] | None] = (),
    ) -> Plan:
        # The op on concrete sizes first: its errors are the user's.
        op = _build(cls, [Value(x.type) for x in flat], groups, attrs)
        shapes = [x.shape for x in flat]
        apart = [None if own is None else own[0] for own in spaces] or [None] * len(flat)
        if not any(spaces):
            shapes, attrs = collapse(cls, shapes, attrs)
        found: Any = None
        for generalize in self._generalizations(op):
            sizes, dims, generic = generalize(cls, shapes, attrs)
            types = [TensorType(d, x.dtype, x.weak) for d, x in zip(dims, flat, strict=True)]
            key = (cls, self._settings_key(), tuple(groups), tuple(types), attrs_key(cls, generic))
            key = (*key, tuple(apart))
            # Both may give one program; what stopped it is then said the second time.
            last = generalize is patterned
            if key not in self._cache or (last and self._cache[key] is None):
                try:
                    found = self._compile(cls, types, groups, generic, sizes.names, apart)
                except TesseraError:
                    # An op may ask for more than its ties say, about which nothing is known here.
                    if last:
                        raise
                self._cache[key] = found
            found = self._cache[key]
            if found is not None:
                values = [*sizes.values, *[n for own in spaces if own is not None for n in own[1]]]
                return self._new_plan(found, [v.type for v in op.results], values)
        raise AssertionError("the last resort fails or compiles")

    def _new_plan(self, found: Any, results: Sequence[Type], dims: list[int]) -> Plan:
        return Plan(found, results, dims)

    def _elementwise(
        self, cls: type[Op], operands: Sequence[Array], attrs: dict[str, Any]
    ) -> Array:
        """One result; all operands have one shape, so they are one-dimensional to the kernel, but
        for those that are one number repeated.
        """
        first = operands[0].storage
        if type(first) is Remote:
            return self._elsewhere(cls, operands, attrs)
        shape = first.shape
        key: list[Hashable] = [cls, self._settings_key(), *attrs.items()]
        inputs: list[np.ndarray] = []
        is_repeated = False
        for x in operands:
            data: Any = x.storage
            if type(data) is Remote:
                return self._elsewhere(cls, operands, attrs)
            if data.shape != shape:
                # The op's own check of its operands, whose error is the user's.
                cls(*[Value(x.type) for x in operands], **attrs)
            if x.is_splat:
                key.append(_SPLAT)  # and the kernel reads one element
            elif 0 in data.strides or is_apart(data):
                is_repeated = True
            else:
                data = direct.contiguous(x)
            inputs.append(data)
            key.append(data.dtype)
            key.append(x.weak)
        if is_repeated:
            whole = self._repeated(cls, operands, attrs, key, inputs)
            if whole is not None:
                return whole
            pairs = zip(operands, inputs, strict=True)
            inputs = [data if x.is_splat else direct.contiguous(x) for x, data in pairs]
        signature = tuple(key)
        found = self._cache.get(signature)
        if found is None:
            pattern = lines([x.is_splat for x in operands])
            found = self._compile_elementwise(cls, operands, attrs, pattern)
            self._cache[signature] = found
        elif not attrs and (id(config.override.get()), signature) not in self._noted:
            self._note(cls, operands, found, signature)
        result = aligned_empty(shape, found.dtypes[0])
        found.run_into(inputs, (result,), (result.size,))
        if direct.STATE.runs is not None:
            read = [x[(*[0] * x.ndim, ...)] if x.size and not any(x.strides) else x for x in inputs]
            direct.noted(Run(found, read, (result,), (result.size,)))
        return Array(result)

    def _repeated(
        self,
        cls: type[Op],
        operands: Sequence[Array],
        attrs: dict[str, Any],
        key: Sequence[Hashable],
        data: Sequence[np.ndarray],
    ) -> Array | None:
        """The op on operands some of which are repeated, read as they are; None where copies of
        them are better.
        """
        is_watched = direct.STATE.runs is not None
        shape = data[0].shape
        if not is_watched and data[0].size < WORTH:
            return None
        which = (shape, *key, *[(x.strides, x.flags.aligned) for x in data])
        known = None if is_watched else self._lying.get(which)
        if known is not None:
            program, dims, read = known
            inputs = [first_in_memory(x) if k in read else x for k, x in enumerate(data)]
        else:
            found = pattern_of(shape, data, direct.whole)
            if found is None:
                return None
            pattern, dims, inputs = found
            signature = (pattern, *key)
            program = self._cache.get(signature)
            if program is None:
                program = self._compile_elementwise(cls, operands, attrs, pattern)
                self._cache[signature] = program
            if (read := backwards(data, inputs)) is not None:
                if len(self._lying) >= MOST_SHAPES:
                    self._lying.clear()
                self._lying[which] = program, dims, read
        result = aligned_empty(shape, program.dtypes[0])
        program.run_into(inputs, (result,), dims)
        if is_watched:
            whole = all([x.flags.c_contiguous for x in inputs])
            direct.noted(Run(program, inputs, (result,), dims) if whole else None)
        return Array(result)

    def _note(
        self, cls: type[Op], operands: Sequence[Array], found: Any, signature: Hashable
    ) -> None:
        """Lets native code compute what is like this: it comes for the second time."""
        settings = config.current()
        # Where a policy is in force, this is a part of what the operator is.
        if settings.policy is not None or settings.debug_nans or settings.debug_infs:
            return
        self._noted.add((id(config.override.get()), signature))
        if not isinstance(found, Executable) or found.main is None or found.scratch((1,)):
            return
        dtypes = [x.storage.dtype for x in operands]
        splats = [x.is_splat for x in operands]
        if all(splats) or len(set(dtypes)) > 1 or any([x.weak for x in operands]):
            splats = [False] * len(splats)
        # A number beside an array takes the array's dtype, if it is of that kind.
        kinds = [1.0, 1] if any(splats) and dtypes[0].kind == "f" else [1]
        for number in kinds if any(splats) else [None]:
            leaves = [number if splat else x for x, splat in zip(operands, splats, strict=True)]
            given = key_of(leaves, lines=True)
            converted = None if given is None else conversions(given[2], dtypes)
            if given is not None and converted is not None:
                self._add(cls, given, converted, found)

    def _add(self, cls: type[Op], given: Key, converted: Sequence[int], found: Executable) -> None:
        result, count = found.dtypes[0], len(converted)
        work = Work(
            main=found.main or 0,
            captured=(),
            outputs=[((), result, result.itemsize)],
            types=[None],
            tree=None,
            scratch=0,
            converted=converted,
            release=_LONG,
            keep=found,
        )
        signatures = self._signatures.get(cls)
        if signatures is None:
            signatures = self._signatures[cls] = Signatures(most_copied=direct.MOST_COPIED)
            start = signatures.start()
            if start is not None:
                self.starters[cls] = start
                place = PLACES.get(cls)
                if place is not None:
                    operate_natively()
                    add_operator(self, place, signatures.table)
        known = signatures.find(count)
        known = known or signatures.note(count, leaves_alone(count), lines=True)
        if known is not None:
            signatures.add(known, given[0], given[1], work)

    def _compile_elementwise(
        self, cls: type[Op], operands: Sequence[Array], attrs: dict[str, Any], pattern: Pattern
    ) -> Any:
        # The op on concrete sizes first: its errors are the user's.
        cls(*[Value(x.type) for x in operands], **attrs)
        types = [(x.dtype, x.weak) for x in operands]
        return self._executable(pattern.program(cls, types, attrs))

    def _executable(self, func: Func) -> Any:
        """The compiled program."""
        prepare()
        return lower_graph(func).executable()

    def _compile(
        self,
        cls: type[Op],
        types: list[TensorType],
        groups: list[int | None],
        attrs: dict[str, Any],
        dims: list[str],
        spaces: Sequence[Spaces | None],
    ) -> Any:
        params: list[TensorType] = []
        names = [*dims]
        for k, (type, own) in enumerate(zip(types, spaces, strict=True)):
            params.append(type if own is None else type.with_shape(own.shape(type.shape, k)))
            names += () if own is None else own.names(k)
        builder = Builder(params)
        each, add = zip(builder.args, types, spaces, strict=True), adding(builder)
        values = [x if own is None else own.read(add, x, t.shape) for x, t, own in each]
        op = builder.add(_build(cls, values, groups, attrs))
        return self._executable(builder.func(cls.name.split(".")[-1], op.results, names))

    def _control(
        self, cls: type[Op], flat: list[Array], groups: list[int | None], attrs: dict[str, Any]
    ) -> Any:
        """Ops with regions: compiled for their sizes, found again by content."""
        builder = Builder([x.type for x in flat])
        op = builder.add(_build(cls, builder.args, groups, attrs))
        func = builder.func(cls.name.split(".")[-1], op.results)
        key = (content_hash(func), self._settings_key())
        found = self._regions.get(key)
        if found is None:
            found = self._executable(func)
            # What calls the host does so with a function of its own each time.
            if not any([isinstance(inner, HostCall) for inner in walk(func.body)]):
                self._regions[key] = found
                drop_oldest(self._regions)
        inputs = [direct.contiguous(x) for x in flat]
        outputs = found.run(inputs)
        direct.noted(None if op.get_effects() else Run(found, inputs, outputs, ()))
        return tuple([Array(x) for x in outputs])


# In a key, before an operand that is one number repeated.
_SPLAT = "splat"


def constant(value: Dense, weak: bool) -> Array:
    """A constant needs no code, which would be compiled anew for each number."""
    return Array(value.array, TensorType(value.shape, value.dtype, weak=True) if weak else None)


def _build(
    cls: type[Op], values: Sequence[Value], groups: Sequence[int | None], attrs: dict[str, Any]
) -> Op:
    fields: list[Any] = []
    position = 0
    for count in groups:
        if count is None:
            fields.append(values[position])
            position += 1
        else:
            fields.append(tuple(values[position : position + count]))
            position += count
    return cls(*fields, **attrs)
