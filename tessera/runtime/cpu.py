"""Native modules: LLVM text made callable in this process.

``compile_text`` takes the text of one module and gives a ``NativeModule``, which has the addresses
of its functions and makes Python callables out of those that are entries. ``compile_sources`` makes
one of several texts.

>>> from tessera.target.machine import machine
>>> text = "define void @nothing(ptr %words) { ret void }"
>>> compile_text(text, machine("host"), name="example").caller("nothing")(1, 2, 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.errors import CompileError
from tessera.runtime import codegen, engine
from tessera.runtime.cache import ObjectCache, default_cache
from tessera.runtime.call import Caller, make_builtin, make_caller
from tessera.runtime.codegen import Source
from tessera.runtime.engine import Loading
from tessera.target.machine import Machine

__all__ = [
    "Caller",
    "Loading",
    "NativeModule",
    "Source",
    "assembly",
    "compile_sources",
    "compile_text",
    "finish",
    "make_builtin",
    "make_caller",
]


class NativeModule:
    """Machine code of one program, loaded into this process for as long as this object lives."""

    __slots__ = ("__weakref__", "_loaded", "_sources")

    def __init__(self, sources: Sequence[Source], loaded: engine.Loaded) -> None:
        self._sources = tuple(sources)
        self._loaded = loaded

    @property
    def name(self) -> str:
        """The name it was compiled under."""
        return self._sources[0].name

    @property
    def machine(self) -> Machine:
        """The machine that it was compiled for."""
        return self._sources[0].machine

    @property
    def text(self) -> str:
        """The LLVM text that it was made from, its modules one after the other."""
        return "\n".join([source.text for source in self._sources])

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its object files in the cache, one a module."""
        return tuple([source.key() for source in self._sources])

    @property
    def cached(self) -> bool:
        """Whether the code came from the cache."""
        return self._loaded.cached

    @property
    def symbols(self) -> tuple[str, ...]:
        """The functions that it exports, in the order of the text."""
        return tuple(self._loaded.addresses)

    def address(self, symbol: str) -> int:
        """The address of an exported function, valid as long as this module is referenced.

        Raises:
            CompileError: The module exports no such function.
        """
        address = self._loaded.addresses.get(symbol)
        if address is None:
            raise CompileError(
                f"{self.name}: the module has no function {symbol!r}",
                rule="functions that are internal or private have no address",
                fix=f"use one of {', '.join(self.symbols) or '(none)'}",
            )
        return address

    def caller(self, symbol: str, *, release_gil: bool = True) -> Caller:
        """A function ``void symbol(ptr words)`` as a Python callable, which keeps the module alive.

        See ``make_caller``.
        """
        return make_caller(self.address(symbol), owner=self, release_gil=release_gil)

    def llvm(self) -> str:
        """The LLVM text after optimisation."""
        return "\n".join([codegen.optimized_text(source) for source in self._sources])

    def assembly(self) -> str:
        """The assembly text."""
        return assembly(self._sources)

    def __repr__(self) -> str:
        return f"NativeModule({self.name!r}, {self.machine}, {', '.join(self.symbols)})"


def assembly(sources: Sequence[Source]) -> str:
    """The assembly text of LLVM modules, for any machine of the table."""
    return "\n".join([codegen.assembly_text(source) for source in sources])


def compile_text(
    text: str,
    machine: Machine,
    *,
    optimize: bool = True,
    unroll: bool = True,
    name: str,
    cache: ObjectCache | None = None,
    imports: Mapping[str, int] | None = None,
) -> NativeModule:
    """Compile one LLVM module and load it.

    Vectors are taken as they stand in the text: LLVM's vectorisers are off. Symbols that the text
    declares are looked up in this process, which has the C library, libm, libgcc and CPython.

    Args:
        text: The module. Its data layout and triple are filled in where it states none.
        machine: The machine to compile for, which the host must be able to run.
        optimize: Whether to optimise; glue code is compiled faster without.
        unroll: Whether LLVM may unroll loops beyond what the text did.
        name: What messages call it.
        cache: Where objects are kept; by default the cache of this user.
        imports: Addresses of functions that the text declares and no library has.

    Raises:
        CompileError: LLVM rejects the text, the machine lacks something that the text uses, or a
            declared function does not exist.
    """
    source = Source(text, machine, name, optimize, unroll, "all" if optimize else "none")
    return compile_sources([source], cache=cache, imports=imports)


def compile_sources(
    sources: Sequence[Source],
    *,
    cache: ObjectCache | None = None,
    imports: Mapping[str, int] | None = None,
    threads: int = 1,
) -> NativeModule:
    """Compile LLVM modules that use each other's functions, and load them together.

    Args:
        sources: The modules, all for one machine and of one name.
        cache: Where objects are kept; by default the cache of this user.
        imports: Addresses of functions that the texts declare and no library has.
        threads: How many threads may compile; what they make is the same for any number.

    Raises:
        CompileError: As `compile_text`.
    """
    with Loading(cache or default_cache(), threads) as loading:
        for source in sources:
            loading.add(source, source is sources[-1])
        return finish(loading, imports)


def finish(loading: Loading, imports: Mapping[str, int] | None = None) -> NativeModule:
    """The module of the texts that were added.

    Args:
        loading: What compiles them.
        imports: Addresses of functions that the texts declare and no library has.

    Raises:
        CompileError: As `compile_text`.
    """
    loaded = loading.finish(imports)
    return NativeModule(loading.sources, loaded)
