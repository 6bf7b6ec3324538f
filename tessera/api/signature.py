"""What belongs to one call and to one signature of a compiled function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import optree

from tessera import pytree
from tessera.api.shapes import ShapeDtypeStruct
from tessera.api.static import Found, put_back
from tessera.api.traced import Rebuild, Traced
from tessera.compile import Stages
from tessera.compile import lower as lower_graph
from tessera.graph.array import Array
from tessera.graph.device import CPU, Device
from tessera.ir.core import Func
from tessera.ir.types import TensorType
from tessera.runtime.dispatch.signatures import NEVER, DictOf, Work, conversions
from tessera.runtime.executable import Executable
from tessera.runtime.remote import Starter


class Arguments:
    """The arguments of one call, taken apart.

    Attributes:
        leaves: arrays and tracers.
        treedef: structure of the arguments that are not static.
        statics: the others.
        structure: what of these two belongs to the cache key. Nothing where all arguments are
            leaves: then their number says it all.
        is_traced: whether any leaf is a tracer.
    """

    __slots__ = ("is_traced", "leaves", "statics", "structure", "treedef")

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

    @property
    def arrays(self) -> list[Any]:
        """The leaves that are arrays or tracers, and not types alone."""
        return [x for x in self.leaves if not isinstance(x, ShapeDtypeStruct)]

    def rebuild(self) -> Rebuild:
        """Makes the arguments of leaves."""
        treedef, statics = self.treedef, self.statics

        def rebuild(leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args, kwargs = pytree.unflatten(treedef, leaves)
            args = list(args)
            put_back(statics, args, kwargs)
            return tuple(args), kwargs

        return rebuild


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
        "start",
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
    ) -> None:
        overwrites = isinstance(executable, Executable) and executable.overwrites
        self.donated = tuple(donated) if overwrites else ()
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
        found = self.executable.array_starter(specs, self.types, self.is_leaf)
        if found is not None:
            self.start = functools.partial(found, *self.captured) if self.captured else found


    @property
    def tree(self) -> Callable[..., Any] | DictOf | None:
        """Makes the result of a tuple of arrays, as `Work` wants it."""
        if self.is_leaf:
            return None
        children, kind = self.treedef.children(), self.treedef.kind
        if children and all([child.is_leaf() for child in children]):
            if kind == optree.PyTreeKind.TUPLE:
                return tuple
            if kind == optree.PyTreeKind.LIST:
                return list
            if kind == optree.PyTreeKind.DICT:
                return _dict_of(self.treedef)
        return functools.partial(pytree.unflatten, self.treedef)

    def work(self, numbers: Sequence[type | None]) -> Work | None:
        """What native code needs to run it; None where it cannot.

        Args:
            numbers: see `signatures.key_of`.
        """
        executable = self.executable
        if not isinstance(executable, Executable) or executable.main is None or self.donated:
            return None
        dtypes = [dtype.np for _, dtype in executable.signature.inputs]
        converted = conversions(numbers, dtypes[len(self.captured) :])
        if converted is None:
            return None
        dims = dict(zip(executable.signature.dims, self.dims, strict=True))
        return Work(
            main=executable.main,
            captured=self.captured,
            outputs=executable.output_shapes(dims),
            types=self.types,
            tree=self.tree,
            scratch=executable.scratch(self.dims),
            converted=converted,
            release=1 if executable.releases else NEVER,
            keep=executable,
            tail=self.dims,
        )


def _dict_of(treedef: pytree.TreeDef) -> DictOf:
    """A dict of leaves, which come by sorted keys; its own order is what the function gave it."""
    positions: dict[Any, int] = pytree.unflatten(treedef, range(treedef.num_leaves))
    return DictOf(tuple(sorted(positions, key=positions.__getitem__)), dict.fromkeys(positions))


def lowered_for(graph: Func, where: Device, machine: Any, donated: Sequence[int] = ()) -> Any:
    """A program for a device, or for a machine of a name."""
    if machine is None and where == CPU:
        return lower_graph(graph, donated).to_schedule()
    from tessera.compile_gpu import lower_for, lower_on, machine_named

    if machine is None:
        return lower_on(graph, where).to_schedule()
    return lower_for(graph, machine_named(machine)).to_schedule()


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
    """

    def __init__(self, name: str, traced: Traced, lower: Callable[[], Any]) -> None:
        self.fun_name = name
        self.graph: Func = traced.graph
        structs = [ShapeDtypeStruct(t.shape, t.dtype, t.weak) for t in traced.types]  # pyright: ignore[reportArgumentType]
        self.out_info: Any = pytree.unflatten(traced.treedef, structs)
        self._lower = lower

    def lower(self) -> Any:
        """The program at every stage; see `JitFunction.lower`."""
        return self._lower()

    def __str__(self) -> str:
        return str(self.graph)
