"""`JitFunction`: a function that is compiled once per signature of its arguments."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import numpy as np

from tessera import pytree
from tessera.api.annotated_types import annotated_types, sized
from tessera.api.bound import BoundJit
from tessera.api.collectives import named_axes
from tessera.api.effects import Declared
from tessera.api.generic import ShapeGeneric, leaf_types
from tessera.api.inspection import Inspected
from tessera.api.leaves import (
    argument_name,
    name_of,
    parameter_names,
)
from tessera.api.matching import nearby
from tessera.api.native_calls import NativeCalls
from tessera.api.owned import donated_leaves, give_away
from tessera.api.owned import owned as owned_inputs
from tessera.api.precision import Policy, under
from tessera.api.refs import Ref
from tessera.api.retrace import Traces, compiled_once_more
from tessera.api.running import as_python, gathered_on, run, run_with_refs
from tessera.api.sentinels import checking
from tessera.api.shapes import ShapeDtypeStruct
from tessera.api.signature import (
    Arguments,
    Entry,
    TracedCall,
    arguments_of,
    lowered_for,
    refs_of,
    tracing_on,
)
from tessera.api.stateful import State, bind_call, contents, device_of_refs
from tessera.api.static import StaticArguments
from tessera.api.traced import Refs, Traced
from tessera.api.watch import is_watching
from tessera.compile import Stages
from tessera.compile import lower as lower_graph
from tessera.config import config
from tessera.errors import OptionError, api_boundary, hide_own_frames
from tessera.graph.array import Array
from tessera.graph.device import CPU, Device, default_device, parse_device, using
from tessera.graph.fixed import with_numbers
from tessera.graph.placement import device_of_all, differ, moved
from tessera.graph.remote import Remote
from tessera.graph.trace import Tracer, is_recording, is_traced_here
from tessera.ir import assumptions, loc
from tessera.ir.effects import PURE, Effects
from tessera.ir.types import TensorType
from tessera.runtime.dispatch.native import call_natively, prepare

if TYPE_CHECKING:
    from tessera.schedule.memory_use import MemoryUse
    from tessera.target.gpu import Gpu
    from tessera.target.machine import Machine

_MOST_SHAPES = 8192
"""So many shapes of a function with annotated ones are remembered, and then forgotten."""

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


def _prepared(
    leaves: Sequence[Any], refs: Sequence[Ref], signature: list[Hashable]
) -> tuple[list[Any], Device]:
    """The elements of arguments and a device of one; types are added to the signature."""
    inputs: list[Any] = []
    device = device_of_all(contents(refs)) if refs else CPU
    for x in leaves:
        data = x.prepared
        if data is None:
            data = x.contiguous
        if type(data) is Remote:
            device = data.device
        inputs.append(data)
        signature += (data.dtype, data.shape)
        if x.weak:
            signature.append(True)
    return inputs, device


class JitFunction(Inspected, Generic[P, R]):
    """A function that is traced and compiled once per signature. Made by `jit`.

    Calls like earlier ones are run by native code (`runtime/dispatch`); `__call__` is for the
    others.
    """

    def __init__(
        self,
        fn: Callable[P, R],
        static_argnums: Sequence[int] = (),
        static_argnames: Sequence[str] = (),
        dump: Sequence[str] = (),
        max_traces: int | None = None,
        donate_argnums: Sequence[int] = (),
        donate_argnames: Sequence[str] = (),
        max_specializations: int | None = None,
        effects: Sequence[str] | None = None,
        check: Sequence[str] = (),
        memory_budget: int = 0,
        policy: Policy | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self.static_argnums = tuple(static_argnums)
        self.static_argnames = tuple(static_argnames)
        has_static = bool(static_argnums or static_argnames)
        self._statics = StaticArguments(fn, static_argnums, static_argnames) if has_static else None
        self.donate_argnums = tuple(donate_argnums)
        self.donate_argnames = tuple(donate_argnames)
        self._donated = None
        if donate_argnums or donate_argnames:
            self._donated = StaticArguments(fn, donate_argnums, donate_argnames, "donate")
            self._donated.check_apart(self._statics)
        self._dump = tuple(dump)
        self._traces = Traces(fn, max_traces)
        self._limit = max_specializations
        self.check = tuple(check)
        self.memory_budget = memory_budget
        self._near = nearby(fn)
        self.effects = None if effects is None else Declared(name_of(fn), effects)
        self.policy = policy
        self._found: Effects = PURE
        self._entries: dict[Hashable, Entry] = {}
        self._compiled: list[Stages] = []
        self._graphs: dict[Hashable, tuple[Traced, State | None]] = {}
        # Calls that native code left to Python, counted without a lock: finalizers call too, and a
        # child of fork.
        self._calls = itertools.count()
        self._misses = 0
        self._native = self._new_native()
        self._table = self._native.table
        self._lock = threading.Lock()

    def _new_native(self) -> NativeCalls:
        return NativeCalls(self._statics, self._donated, name_of(self._fn))

    @property
    def function(self) -> Callable[P, R]:
        """The Python function."""
        return self._fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the compiled function; traces and compiles it first where the signature is new."""
        try:
            pytree.pause_at_exit()
            next(self._calls)
            with checking(self.check, self.memory_budget):
                result: Any = self._call(args, kwargs)
            if self._donated is not None:
                give_away(self._donated, args, kwargs, name_of(self._fn))
            return result
        except BaseException as error:
            hide_own_frames(error)
            raise

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = None
        leaves: Any = args
        settings = config.current()
        if settings.disable_jit:
            return self._run_as_python(args, kwargs)
        signature: list[Hashable] = [settings.key()]
        if kwargs or self._statics or not all([type(x) is Array for x in args]):
            call = self._flatten(args, kwargs)
            leaves = call.leaves
            signature += call.structure
        if (call is not None and call.is_traced) or is_traced_here():
            return self._call_traced(self._flatten(args, kwargs, keep=True))
        refs = refs_of(call)
        inputs, device = _prepared(leaves, refs, signature)
        if device is not CPU or default_device() is not CPU:
            held = contents(refs)
            device, inputs = self._gather(device, leaves, inputs, held, args, kwargs)
            held = None  # as it would count as somebody who has what the refs hold
            signature += (device.platform, device.index)
        key = tuple(signature)
        entry = self._entries.get(key)
        is_known = entry is not None
        if entry is None:
            call = call or self._flatten(args, kwargs)
            entry = self._new_entry(key, call, device)
            if type(entry) is Traced:
                # The function uses a value of an outer trace, which must not be kept.
                return self._bind(entry, call, device)
            is_known = entry.sizes is not None and entry.sizes.is_called
        if is_known and not is_watching(settings) and call_natively(JitFunction):
            noted = call if self._donated is None else self._flatten(args, kwargs)
            self._native.note(entry, noted, args, kwargs, leaves, inputs)
            noted = None  # as it would count as somebody who has the arguments
        if entry.state is not None:
            return self._call_with_refs(key, entry, call, leaves, inputs, args, kwargs)
        owned = self._take(entry, leaves, inputs, args, kwargs)
        return run(entry, inputs, is_watching(settings), owned)

    def _call_with_refs(
        self,
        key: Hashable,
        entry: Entry,
        call: Arguments | None,
        leaves: Sequence[Any],
        inputs: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call of a program that uses refs."""
        assert entry.state is not None
        if is_recording():
            return self._call_traced(self._flatten(args, kwargs, keep=True))
        cells = entry.state.cells(refs_of(call))
        if cells is None:  # a ref is gone, and what was found by its name may be another one
            self._entries.pop(key, None)
            return self._call(args, kwargs)
        owned = self._take(entry, leaves, inputs, args, kwargs)
        if entry.state.device is not CPU:
            inputs = [moved(x, entry.state.device).contiguous for x in leaves]
        return run_with_refs(entry, cells, inputs, is_watching(config.current()), owned)

    def _take(
        self,
        entry: Entry,
        leaves: Sequence[Any],
        inputs: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Sequence[int]:
        """Takes the donated arguments; says which of them nobody else has."""
        if not entry.donated or self._donated is None:
            return ()
        watched = is_watching(config.current())
        watched = watched or entry.told is not None
        own = [k for k in entry.donated if k < len(leaves)]
        owned = () if watched else owned_inputs(leaves, inputs, own)
        give_away(self._donated, args, kwargs, name_of(self._fn))
        return owned

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> JitFunction[P, R]: ...
    @overload
    def __get__(
        self: JitFunction[Concatenate[Any, Q], S], instance: object, owner: type | None = None
    ) -> BoundJit[Q, S]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        bound: Any = BoundJit
        return self if instance is None else bound(self, instance)

    def _flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], **options: bool
    ) -> Arguments:
        """Takes the arguments apart; see `arguments_of`."""
        return arguments_of(self._fn, self._statics, args, kwargs, **options)

    def _gather(
        self,
        device: Device,
        leaves: Sequence[Any],
        inputs: list[Any],
        held: list[Array],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Device, list[Any]]:
        """The device of a call and its inputs on it; see `gathered_on`."""
        if all([type(x) is Remote and x.device is device for x in inputs]) and inputs and not held:
            return device, inputs
        tree: Any = (
            (args, kwargs) if self._statics is None else self._statics.split(args, kwargs)[0]
        )
        given = [x for x in pytree.leaves(tree) if not isinstance(x, Ref)]
        return gathered_on(f"jit: {name_of(self._fn)}", leaves, inputs, held, given)

    # --- compiling ---

    def _trace(self, call: Arguments, types: Sequence[TensorType] | None = None) -> Traced:
        types = types or leaf_types(self.generic, call)
        traced = under(self.policy, Traced, types)(
            self._fn,
            call.rebuild(is_traced=True),
            types,
            None,
            "jit",
            staging=True,
            input_name=lambda k: argument_name("jit", self._fn)(call.treedef, k),
            is_function=True,
            refs=Refs.INPUTS,
        )
        if self.effects is not None:
            self.effects.check(traced)
        self._found |= frozenset(traced.effects)
        if not is_watching(config.current()):
            traced.graph, traced.captured = with_numbers(traced.graph, traced.captured)
        return traced

    def _new_entry(self, key: Hashable, call: Arguments, device: Device) -> Any:
        """What runs calls of a signature; or the trace, if it has values of an outer one."""
        generic = self.generic
        if generic is not None:
            entry = self._generic_entry(generic, key, call, device)
            if entry is not None:
                return entry
        self._note(call, device)
        with using(device):
            traced = self._trace(call)
        elsewhere = device_of_refs(traced, call.leaves)
        if device is CPU and elsewhere is not CPU:
            device = elsewhere
            with using(device):
                traced = self._trace(call)
        if generic is not None:
            generic.check_result(traced, generic.check(call))
        if any([isinstance(x, Tracer) for x in traced.captured]) or (
            traced.touched and is_recording()
        ):
            return traced
        if self._limit is not None and len(self._compiled) >= self._limit:
            raise compiled_once_more(self._fn, [x.type for x in call.leaves], self._limit)
        return self._compile_entry(key, traced, device, call)

    def _generic_entry(
        self, generic: ShapeGeneric, key: Hashable, call: Arguments, device: Device
    ) -> Entry | None:
        """What runs a call by a program for all sizes, after checks; None where each size has a
        program of its own."""
        settings = config.current()
        is_watched = is_watching(settings) or (device is not CPU and bool(settings.sentinels))
        if self.memory_budget or is_watched:
            generic.check(call)
            return None
        trace = functools.partial(self._trace_generic, device)
        entry = generic.entry(call, settings.key(), trace, device)
        if entry is None:
            return None
        with self._lock:
            if len(self._entries) >= _MOST_SHAPES:
                self._entries = {k: e for k, e in self._entries.items() if not e.dims}
                self._native = self._new_native()
                self._table = self._native.table
            return self._entries.setdefault(key, entry)

    def _trace_generic(
        self, device: Device, call: Arguments, types: Sequence[TensorType]
    ) -> Traced:
        """Traces for sizes that are symbols."""
        settings = config.current().key()
        leaves = [ShapeDtypeStruct.of(t) for t in types]
        self._traces.note(leaves, call.treedef, call.statics, settings, device)
        with using(device):
            return self._trace(call, types)

    def _compile_entry(
        self, key: Hashable, traced: Traced, device: Device, call: Arguments
    ) -> Entry:
        prepare()
        lowered: Stages
        captured: list[Any] = traced.captured
        donated = donated_leaves(self._donated, call)
        state = State.of(traced, name_of(self._fn), device)
        if state is not None:
            donated += state.donated(len(call.leaves))
        inputs = [len(captured) + k for k in donated]
        if device == CPU:
            lowered = lower_graph(traced.graph, inputs)
            elsewhere = [x for x in captured if isinstance(x.storage, Remote)]
            if elsewhere:
                name = f"jit: {name_of(self._fn)} captures an array"
                differ(name, Array(np.empty(0, np.float32)), elsewhere[0])
            executable: Any = lowered.executable()
        else:
            from tessera.compile_gpu import lower_on  # loads the backend

            gpu = lowered = lower_on(traced.graph, device, inputs)
            executable = gpu.executable(device)
            captured = [moved(x, device) for x in captured]
        entry = Entry(lowered, executable, traced, captured, donated, state=state)
        self._print(lowered)
        with self._lock:
            known = self._entries.setdefault(key, entry)
            if known is entry:
                self._misses += 1
                self._compiled.append(lowered)
            return known

    def _call_traced(self, call: Arguments) -> Any:
        """Inside another trace."""
        device = device_of_all(call.leaves)
        self._note(call, device)
        types = tuple([x.type for x in call.leaves])
        settings = config.current().key()
        key = (
            *(types, call.treedef, call.statics, settings, device, default_device()),
            *(named_axes(), assumptions.current()),
        )
        traced, state = self._graphs.get(key, (None, None))
        cells = [] if state is None else state.cells(refs_of(call))
        with using(device):
            if traced is not None and cells is not None:
                return bind_call(traced, state, cells, call.leaves)
            sizes = None if self.generic is None else self.generic.check(call)
            traced = self._trace(call)
            if self.generic is not None and sizes is not None:
                self.generic.check_result(traced, sizes)
            return self._bind(traced, call, device, key)

    def _bind(self, traced: Traced, call: Arguments, device: Device, key: Hashable = None) -> Any:
        """A call as an op. Called again, what is traced under a key need not be traced again."""
        keep = traced.touched
        state = State.of(traced, name_of(self._fn), device)
        if key is not None and not any([isinstance(x, Tracer) for x in traced.captured]):
            self._graphs[key] = traced, state
        cells = [] if state is None else state.cells(refs_of(call))
        assert cells is not None, keep
        return bind_call(traced, state, cells, call.leaves)

    def _note(self, call: Arguments, device: Device) -> None:
        settings = config.current().key()
        held = call.held(self._fn)
        self._traces.note(call.leaves, call.treedef, call.statics, settings, device, held)

    def _run_as_python(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Where `jit` is disabled: the function itself, on arrays and to arrays as always."""
        call = self._flatten(args, kwargs, keep=True)
        with nullcontext() if self.effects is None else self.effects.watching():
            return under(self.policy, as_python)(self._fn, call)

    def _donated_inputs(self, traced: Traced, call: Arguments) -> list[int]:
        """Which inputs of the Graph are donated: what is captured comes first."""
        donated = donated_leaves(self._donated, call)
        state = State.of(traced, name_of(self._fn), CPU)
        donated += [] if state is None else state.donated(len(call.leaves))
        return [len(traced.captured) + k for k in donated]

    # --- inspection ---

    @api_boundary
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers for these arguments without running.

        Arguments may be `ts.ShapeDtypeStruct`. Two more, unless the function has some of these
        names, say what for, and need no such device: `machine="sm_90a"`, or a level of CPUs; or
        `device="cuda:0"`, for the GPU that is there. By default it is the device of the arguments.

        Returns:
            An object with the stages `graph`, `schedule`, `tile`, `target`, `llvm`, `asm`, and for
            a GPU `host`, `ptx`, `cubin` and `sass`, all printable, and `why()`.
        """
        own = parameter_names(self._fn)
        names = [n for n in ("machine", "device") if n in kwargs and n not in own]
        machine, device = (kwargs.pop(n) if n in names else None for n in ("machine", "device"))
        call = self._flatten(args, kwargs, types_only=True)
        where = device_of_all(call.arrays) if device is None else parse_device("lower", device)
        with checking(self.check, self.memory_budget), tracing_on(where, machine):
            if self.generic is not None and not self.memory_budget:
                found = self._lowered_generic(self.generic, call, where, machine)
                if found is not None:
                    return found.to_schedule()
            traced = self._trace(call)
            return lowered_for(traced.graph, where, machine, self._donated_inputs(traced, call))

    def _lowered_generic(
        self, generic: ShapeGeneric, call: Arguments, where: Device, machine: Any
    ) -> Stages | None:
        """The program for a class of sizes; None where there is none for many."""
        settings = config.current().key()
        device = where if machine is None else CPU
        trace = functools.partial(self._trace_generic, device)
        if machine is None:
            return generic.lowered(call, settings, trace, device)
        return generic.lowered_for(call, settings, trace, machine)

    @api_boundary
    def memory(
        self,
        *args: Any,
        machine: Machine | Gpu | str | None = None,
        device: Device | str | None = None,
        **dims: int,
    ) -> MemoryUse:
        """The most memory that a call holds at once, as it is planned before anything runs.

        Args:
            *args: arguments: arrays, or `ts.ShapeDtypeStruct` in their places. Those that are left
                out have the types of their annotations, in float32 if these have no dtype; of a
                function without annotations, it is the program that was compiled last.
            machine: what for, such as "sm_90a"; there need not be one.
            device: where; by default where the arguments are.
            **dims: sizes by the names in annotations; what is left out stays a name.

        Returns:
            The bytes of arguments, results and what is in between, each a number or a formula in
            the dims, `peak`, and the largest `buffers` with the lines that ask for them.

        Raises:
            OptionError: there is nothing to tell of, or no dim of a name.

        Example:
            >>> import tessera as ts
            >>> @ts.jit
            ... def f(x: ts.Tensor["N", 4]):
            ...     return ts.sum(x * x, axis=1)
            >>> f.memory().peak, f.memory(N=100).peak
            (<20*N>, 2000)
        """
        call = self._flatten(args, {}, types_only=True) if args else None
        arrays = call.arrays if call is not None else []
        where = device_of_all(arrays) if device is None else parse_device("memory", device)
        where = CPU if machine is not None else where
        with checking(self.check, self.memory_budget), tracing_on(where, machine):
            if call is not None:
                return self._memory(call, dims, where, machine)
            found, _ = annotated_types(self, (), {})
            if found:
                call = self._flatten((), sized(found, dims), types_only=True)
                return self._memory(call, {}, where, machine)
            if not self._compiled:
                raise OptionError(
                    f"memory: {name_of(self._fn)} has not been compiled yet",
                    loc=loc.current(),
                    rule="what a call needs depends on the types of its arguments",
                    fix="give them: `f.memory(ts.ShapeDtypeStruct((8, 128), ts.float32))`",
                )
            return self._compiled[-1].memory(**dims)

    def _memory(
        self, call: Arguments, dims: Mapping[str, int], where: Device, machine: Any
    ) -> MemoryUse:
        """What a call needs, for types of arguments whose dims may be names."""
        generic = self.generic
        if machine is not None:
            from tessera.compile_gpu import machine_named  # loads the backend

            machine = machine_named(machine)
        lowered: Stages
        if generic is not None:
            if any([not isinstance(d, int) for x in call.leaves for d in x.type.shape]):
                lowered = generic.for_all_sizes(call, self._trace, where, machine)
                return lowered.memory(**dims)
            if not self.memory_budget:
                trace = functools.partial(self._trace_generic, where)
                settings = config.current().key()
                found = generic.memory(call, settings, trace, where if machine is None else machine)
                if found is not None:
                    return found
        traced = self._trace(call)
        donated = self._donated_inputs(traced, call)
        lowered = lowered_for(traced.graph, where, machine, donated)
        return lowered.memory(**dims)

    @api_boundary
    def trace(self, *args: Any, **kwargs: Any) -> TracedCall:
        """Traces for these arguments without running.

        Args:
            *args: arrays, or `ts.ShapeDtypeStruct` in their places.
            **kwargs: likewise.

        Returns:
            An object with `graph`, `out_info` and `lower()`.
        """
        call = self._flatten(args, kwargs, types_only=True)
        where = device_of_all(call.arrays)
        with using(where):
            traced = self._trace(call)

        def lower() -> Any:
            with checking(self.check, self.memory_budget):
                donated = self._donated_inputs(traced, call)
                return lowered_for(traced.graph, where, None, donated)

        return TracedCall(name_of(self._fn), traced, lower)

    def clear_cache(self) -> None:
        """Forgets all programs and traces; the next call compiles again."""
        with self._lock:
            self._entries.clear()
            self._graphs.clear()
            self._compiled.clear()
            self.__dict__.pop("generic", None)
            self._calls, self._misses = itertools.count(), 0
            self._native = self._new_native()
            self._table = self._native.table
