"""What belongs to one call and to one signature of a compiled function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import optree

from tessera import pytree
from tessera.api.leaves import argument_name, leaf_error, name_of, owned, to_array
from tessera.api.refs import Ref
from tessera.api.shapes import ShapeDtypeStruct
from tessera.api.stateful import State, with_refs, without_refs
from tessera.api.static import Found, StaticArguments, put_back
from tessera.api.traced import Rebuild, Traced
from tessera.compile import Stages
from tessera.compile import lower as lower_graph
from tessera.config import config
from tessera.graph.array import Array
from tessera.graph.determinism import OnGpu
from tessera.graph.device import CPU, Device, using
from tessera.graph.promise import with_promise
from tessera.graph.trace import Tracer
from tessera.ir.core import Func
from tessera.ir.effects import show
from tessera.ir.types import TensorType
from tessera.runtime.dispatch.conversions import conversions
from tessera.runtime.dispatch.signatures import NEVER, NOTHING, DictOf, Work
from tessera.runtime.executable import Executable
from tessera.runtime.remote import Starter

if TYPE_CHECKING:
    from tessera.api.native_sizes import NativeSizes


class Arguments:
    """The arguments of one call, taken apart.

    Attributes:
        leaves: arrays and tracers.
        treedef: structure of the arguments that are not static.
        statics: the others.
        structure: what of these two belongs to the cache key. Nothing where all arguments are
            leaves: then their number says it all.
        is_traced: whether any leaf is a tracer.
        refs: the refs among the arguments, by their positions among all leaves.
    """

    __slots__ = ("is_traced", "leaves", "refs", "statics", "structure", "treedef", "whole")

    def __init__(
        self,
        leaves: list[Any],
        treedef: pytree.TreeDef,
        statics: Found,
        is_flat: bool,
        is_traced: bool,
    ) -> None:
        self.is_traced = is_traced
        self.leaves = leaves
        self.treedef = treedef
        self.statics = statics
        self.structure: tuple[Hashable, ...] = () if is_flat else (treedef, statics)
        self.refs: dict[int, Ref] = {}
        self.whole = treedef

    def add_refs(self, refs: dict[int, Ref], whole: pytree.TreeDef) -> None:
        """Notes refs, and the structure of all arguments with them."""
        self.refs, self.whole = refs, whole
        kinds = tuple([(k, ref.treedef, ref.types) for k, ref in refs.items()])
        self.structure = (self.treedef, self.statics, whole, kinds)

    def held(self, fn: Callable[..., Any]) -> tuple[tuple[str, str], ...]:
        """What the refs hold, by the names of the arguments of a function."""
        name = argument_name("jit", fn)
        found: list[tuple[str, str]] = []
        for k, ref in self.refs.items():
            text = name(self.whole, k).removeprefix("jit: argument `").partition("`")[0]
            found.append((text, ref.contents_text()))
        return tuple(found)

    @property
    def arrays(self) -> list[Any]:
        """The leaves that are arrays or tracers, and not types alone."""
        return [x for x in self.leaves if not isinstance(x, ShapeDtypeStruct)]

    def rebuild(self, is_traced: bool = False) -> Rebuild:
        """Makes the arguments of leaves.

        Args:
            is_traced: whether that is done while the function is traced.
        """
        whole, statics, refs = self.whole, self.statics, self.refs

        def rebuild(leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args, kwargs = (
                with_refs(leaves, whole, refs, is_traced)
                if refs
                else pytree.unflatten(whole, leaves)
            )
            args = list(args)
            put_back(statics, args, kwargs)
            return tuple(args), kwargs

        return rebuild


def arguments_of(
    fn: Callable[..., Any],
    static_arguments: StaticArguments | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    keep: bool = False,
    types_only: bool = False,
) -> Arguments:
    """Takes the arguments of a call of a compiled function apart.

    Args:
        fn: the function.
        static_arguments: which of them are static.
        args: what the user gave.
        kwargs: what the user gave.
        keep: whether NumPy arrays are copied.
        types_only: whether leaves may be types.
    """
    tree, statics = (args, kwargs), ()
    if static_arguments is not None:
        tree, statics = static_arguments.split(args, kwargs)
    leaves, treedef = pytree.flatten(tree)
    whole, refs = treedef, {}
    if any([isinstance(x, Ref) for x in leaves]):
        leaves, treedef, refs = without_refs(leaves, treedef, f"jit: {name_of(fn)}")
    is_traced = False
    for k, x in enumerate(leaves):
        if type(x) is not Array:
            if types_only and isinstance(x, ShapeDtypeStruct):
                continue
            found = to_array(x)
            if found is None:
                raise leaf_error(
                    x,
                    argument_name("jit", fn)(treedef, k),
                    "name it in `static_argnames`, or register its class as a pytree",
                )
            is_traced = is_traced or isinstance(found, Tracer)
            leaves[k] = owned(found, x) if keep else found
    # The nodes besides the leaves: the pair, the tuple of arguments and the empty dict.
    is_flat = not statics and treedef.num_nodes == 3 + len(leaves) == 3 + len(args)
    call = Arguments(leaves, treedef, statics, is_flat, is_traced)
    if refs:
        call.add_refs(refs, whole)
    return call


def refs_of(call: Arguments | None) -> list[Ref]:
    """The refs among the arguments of a call."""
    return [] if call is None else [*call.refs.values()]


class Entry:
    """One compiled signature.

    Attributes:
        executable: the program.
        loc: the call that it was traced for.
        start: what calls it with arrays of a GPU by one native call; see `Starter`.
        is_settled: whether it was tried to make that.
        noted: for how many kinds of calls it was tried to let native code run it.
        donated: the arguments whose memory results may take, if some do.
        dims: values of the run-time dims of the program.
        state: the refs that it uses; None without any.
        sizes: of a program for many sizes, what native code is told of it; else None.
        told: whether sentinels have found something, see `Executable`.
    """

    __slots__ = (
        "captured",
        "dims",
        "donated",
        "executable",
        "is_leaf",
        "is_settled",
        "loc",
        "lowered",
        "noted",
        "run",
        "sizes",
        "start",
        "state",
        "told",
        "treedef",
        "types",
    )

    def __init__(
        self,
        lowered: Stages,
        executable: Any,
        traced: Traced,
        captured: Sequence[Any],
        donated: Sequence[int] = (),
        dims: Sequence[int] = (),
        types: Sequence[TensorType] | None = None,
        state: State | None = None,
        sizes: NativeSizes | None = None,
    ) -> None:
        self.state = state
        self.sizes = sizes
        self.told: Callable[..., bool] | None = executable.told
        self.donated = tuple(donated) if executable.overwrites else ()
        self.lowered = lowered
        self.executable: Any = executable
        self.dims = tuple(dims)
        self.run: Callable[..., Any] = executable.run
        if dims:
            self.run = functools.partial(executable.run, dims=self.dims)
        self.start: Starter | None = None
        self.is_settled = False
        self.noted = 0
        self.loc = traced.trace.loc
        self.captured = [x.contiguous for x in captured]
        self.treedef = traced.treedef
        self.types = traced.types if types is None else types
        self.is_leaf = traced.treedef.is_leaf()

    def settle(self, leaves: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Makes `start`, if the arguments are what it takes."""
        if not inputs or any([type(x) is not Array or x.weak for x in leaves]):
            return
        if any([x.storage is not data for x, data in zip(leaves, inputs, strict=True)]):
            return  # some come from elsewhere
        self.is_settled = True
        specs = [*[None] * len(self.captured), *[(x.shape, x.dtype) for x in inputs]]
        found = self.executable.array_starter(specs, self.types, self.is_leaf, self.dims)
        if found is not None:
            self.start = functools.partial(found, *self.captured) if self.captured else found


    @property
    def tree(self) -> Callable[..., Any] | DictOf | None:
        """Makes the result of a tuple of arrays, as `Work` wants it."""
        if self.state is not None and (tree := self.state.tree) is not None:
            return tree
        if self.is_leaf:
            return None
        treedef = self.treedef
        children, kind = treedef.children(), treedef.kind
        if kind == optree.PyTreeKind.NONE:
            return NOTHING
        if children and all([child.is_leaf() for child in children]):
            if kind == optree.PyTreeKind.TUPLE:
                return tuple
            if kind == optree.PyTreeKind.LIST:
                return list
            if kind == optree.PyTreeKind.DICT:
                return _dict_of(treedef)
            if kind == optree.PyTreeKind.NAMEDTUPLE:
                make = pytree.maker_of(treedef.type or tuple)
                return make or functools.partial(pytree.unflatten, treedef)
        return functools.partial(pytree.unflatten, treedef)

    def work(
        self,
        numbers: Sequence[type | None],
        donated: Sequence[int] = (),
        mark: Callable[..., None] | None = None,
    ) -> Work | None:
        """What native code needs to run it; None where it cannot.

        Args:
            numbers: see `signatures.key_of`.
            donated: which leaves are.
            mark: see `Work`.
        """
        executable = self.executable
        if not isinstance(executable, Executable) or executable.main is None:
            return None
        first = len(self.captured)
        end = first + len(numbers)
        dtypes = [dtype.np for _, dtype in executable.signature.inputs[first:end]]
        converted = conversions(numbers, dtypes)
        refs = () if self.state is None else self.state.held()
        dims = dict(zip(executable.signature.dims, self.dims, strict=True))
        outputs = executable.output_shapes(dims)
        on = [None if k is None else k - first for k in executable.signature.overwritten]
        if converted is None or refs is None or not executable.keeps_shapes(dims):
            return None
        if any([k is not None and k < 0 for k in on]):
            return None
        return Work(
            main=executable.main,
            captured=self.captured,
            outputs=outputs,
            types=[*self.types, *[None] * (len(outputs) - len(self.types))],
            tree=self.tree,
            scratch=executable.scratch(self.dims),
            converted=converted,
            release=1 if executable.releases else NEVER,
            keep=executable,
            tail=self.dims,
            refs=refs,
            on=on,
            donated=donated,
            mark=mark,
            returned=() if self.state is None else self.state.returned,
        )


def _dict_of(treedef: pytree.TreeDef) -> DictOf:
    """A dict of leaves, which come by sorted keys; its own order is what the function gave it."""
    positions: dict[Any, int] = pytree.unflatten(treedef, range(treedef.num_leaves))
    return DictOf(tuple(sorted(positions, key=positions.__getitem__)), dict.fromkeys(positions))


@contextmanager
def tracing_on(where: Device, machine: Any) -> Generator[None]:
    """Traces in a block for a device, or for a machine of a name, which need not be there."""
    name = machine if isinstance(machine, str) else getattr(machine, "name", "")
    outer = config.current()
    is_elsewhere = machine is not None and name.startswith("sm_")
    promises = with_promise(outer.promises, OnGpu()) if is_elsewhere else outer.promises
    with using(where if machine is None else CPU), config.using(replace(outer, promises=promises)):
        yield


def lowered_for(graph: Func, where: Device, machine: Any, donated: Sequence[int] = ()) -> Any:
    """A program for a device, or for a machine of a name."""
    if machine is None and where == CPU:
        return lower_graph(graph, donated).to_schedule()
    from tessera.compile_gpu import lower_for, lower_on, machine_named

    if machine is None:
        return lower_on(graph, where, donated).to_schedule()
    return lower_for(graph, machine_named(machine), donated).to_schedule()


class CacheInfo(NamedTuple):
    """How often a compiled function was called, as `functools.lru_cache` says it.

    Attributes:
        hits: calls whose signature was compiled already.
        misses: signatures that were compiled.
        maxsize: None, for there is no limit.
        currsize: signatures that are compiled now.
    """

    hits: int
    misses: int
    maxsize: int | None
    currsize: int


class TracedCall:
    """A function traced for some arguments, which `f.trace(*args)` returns.

    Attributes:
        fun_name: the name of the function.
        graph: the Graph, printable. Its first arguments are arrays that the function takes from
            outside.
        out_info: what the function returns, with a `ShapeDtypeStruct` for each array.
        effects: what it does besides, by the names of `ts.effects`.
    """

    def __init__(self, name: str, traced: Traced, lower: Callable[[], Any]) -> None:
        self.fun_name = name
        self.graph: Func = traced.graph
        self.effects = tuple(show(frozenset(traced.effects)))
        structs = [ShapeDtypeStruct(t.shape, t.dtype, t.weak) for t in traced.types]  # pyright: ignore[reportArgumentType]
        self.out_info: Any = pytree.unflatten(traced.treedef, structs)
        self._lower = lower

    def lower(self) -> Any:
        """The program at every stage; see `JitFunction.lower`."""
        return self._lower()

    def __str__(self) -> str:
        return str(self.graph)
