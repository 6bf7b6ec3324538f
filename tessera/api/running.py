"""Running what is compiled for a signature of a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tessera import pytree
from tessera.api.leaves import leaf_arrays, name_of, result_name
from tessera.api.sentinels import look_closer
from tessera.api.signature import Arguments, Entry
from tessera.api.stateful import with_refs, without_refs
from tessera.api.watch import check_outputs
from tessera.graph.array import Array
from tessera.graph.device import CPU, Device, default_device
from tessera.graph.placement import common_device, moved
from tessera.graph.state import Cell
from tessera.ir.core import Func


def run(entry: Entry, inputs: Sequence[Any], watched: bool, owned: Sequence[int] = ()) -> Any:
    """The result of a compiled signature.

    Args:
        entry: the signature.
        inputs: the elements of the arguments.
        watched: whether the results are looked at.
        owned: the arguments whose memory results may take.
    """
    given = [*entry.captured, *inputs]
    if entry.donated:
        first = len(entry.captured)
        outputs = entry.executable.run_on(given, {first + k for k in owned}, entry.dims)
    else:
        outputs = entry.run(given)
    _look_at(entry, given, outputs, watched)
    return _result(entry, outputs)


def run_with_refs(
    entry: Entry,
    cells: Sequence[Cell],
    inputs: list[Any],
    watched: bool,
    owned: Sequence[int],
) -> Any:
    """The result of a compiled signature that uses refs, which are written.

    Args:
        entry: the signature.
        cells: the refs of this call.
        inputs: the elements of the arguments; emptied, for what is in it is seen by somebody.
        watched: whether the results are looked at.
        owned: the arguments whose memory results may take.
    """
    state = entry.state
    assert state is not None
    first = len(entry.captured)
    given = [*entry.captured, *inputs]
    inputs.clear()

    def program(given: list[Any], free: Collection[int]) -> list[Any]:
        if entry.donated:
            mine = {*free, *[first + k for k in owned]}
            outputs = entry.executable.run_on(given, mine, entry.dims)
        else:
            outputs = entry.run(given)
        _look_at(entry, given, outputs, watched)
        return outputs

    # What may fail in the middle does not write to memory that is to be as it was then.
    is_fallible = watched or entry.told is not None or entry.lowered.is_checked
    is_fallible = is_fallible or entry.executable.is_interruptible
    keeps = is_fallible or not entry.donated
    outputs = state.run(cells, given, program, keeps)
    return state.with_returned(_result(entry, outputs), cells)


def _look_at(entry: Entry, given: Sequence[Any], outputs: Sequence[Any], watched: bool) -> None:
    """Fails where results are watched, or sentinels have told of something, that is wrong."""
    if entry.told is not None and entry.told(outputs):
        func: Func = entry.lowered.traced
        dims = dict(zip(func.dims, entry.dims, strict=bool(entry.dims)))
        inputs = [Array(x) for x in given]
        look_closer(func, entry.loc, inputs, [Array(x) for x in outputs], dims)
    if watched:
        inputs, found = [Array(x) for x in given], [Array(x) for x in outputs]
        check_outputs(entry.lowered.traced, entry.loc, inputs, found)


def _result(entry: Entry, outputs: Sequence[Any]) -> Any:
    results: list[Any] = [Array(x, t) for x, t in zip(outputs, entry.types, strict=True)]
    return results[0] if entry.is_leaf else pytree.unflatten(entry.treedef, results)


def as_python(fn: Callable[..., Any], call: Arguments) -> Any:
    """The result of a function that is not compiled, on arrays and as arrays."""
    args, kwargs = call.rebuild()(call.leaves)
    leaves, whole = pytree.flatten(fn(*args, **kwargs))
    rest, treedef, refs = without_refs(leaves, whole, f"jit: {name_of(fn)}")
    arrays, _ = leaf_arrays(pytree.unflatten(treedef, rest), result_name("jit", fn))
    return with_refs(arrays, whole, refs)


def gathered_on(
    name: str,
    leaves: Sequence[Any],
    inputs: list[Any],
    held: Sequence[Array],
    given: Sequence[object],
) -> tuple[Device, list[Any]]:
    """The device of a call and its inputs on it, where one of these or the default device is not
    the host.

    Args:
        name: what messages call the function.
        leaves: the arrays.
        inputs: their elements.
        held: what refs among the arguments hold.
        given: the arrays as the user gave them.
    """
    found = common_device(name, [*leaves, *held], [*given, *held])
    if found is None:
        found = CPU if any([type(x) is Array for x in given]) else default_device()
    if found is CPU:
        return CPU, inputs
    return found, [moved(x, found).contiguous for x in leaves]
