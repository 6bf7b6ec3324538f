"""`ts.replay`: recording a step, running it again, and comparing bits.

    >>> import tessera as ts
    >>> @ts.jit
    ... def step(x):
    ...     return ts.sum(x * x), x + 1
    >>> recording = ts.replay.record(step, ts.ones(3))
    >>> recording.run()
    replay of step: the same bits in 2 arrays

A recording has the arguments, what refs held before and after (the step and the draws of a
deterministic function are such), the results, the program, and the settings. In a file it is a
compressed archive of NumPy, in which nothing is pickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tessera import pytree
from tessera.api.leaves import check_callable, leaf_arrays, name_of, result_name
from tessera.api.refs import Ref
from tessera.api.shapes import traced_for
from tessera.config import config
from tessera.dtypes import dtype_of
from tessera.errors import (
    CallError,
    ConcretizationError,
    DeterminismError,
    OptionError,
    ShapeError,
    api_boundary,
)
from tessera.graph.array import Array, ArrayBase
from tessera.ir import loc
from tessera.runtime.cache import write_file

__all__ = ["Difference", "Recording", "Report", "load", "record"]

_FORMAT = 1


@dataclass(frozen=True)
class Difference:
    """An array that is not the same.

    Attributes:
        name: which one.
        count: of its elements that differ.
        index: of the first of them.
        recorded: that element.
        found: the same of the run.
        ulps: the largest distance of two elements, in units in the last place of floating-point
            numbers; None for others, and where one of them is no number.
    """

    name: str
    count: int
    index: tuple[int, ...]
    recorded: str
    found: str
    ulps: int | None

    def __str__(self) -> str:
        at = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        far = "" if self.ulps is None else f", at most {self.ulps} ulp apart"
        return (
            f"{self.name}: {self.count} elements differ{far}; first {at or 'it'}: "
            f"{self.recorded} recorded, {self.found} now"
        )


@dataclass(frozen=True)
class Report:
    """What a run of a recording was, beside the recording.

    Attributes:
        name: of the function.
        count: how many arrays were compared.
        differences: those that differ.
        notes: what else is not as it was: settings, the machine, the program.
    """

    name: str
    count: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether all bits are the same."""
        return not self.differences

    def check(self) -> None:
        """Fails where a bit differs.

        Raises:
            DeterminismError: an array is not the same.
        """
        if self.differences:
            raise DeterminismError(
                f"replay of {self.name}: {self.differences[0]}",
                loc=loc.current(),
                rule="a step that runs again gives the same bits",
                fix="put `@ts.deterministic` on the step"
                if not self.notes
                else "see what has changed since it was recorded",
                notes=self.notes,
            )

    def __str__(self) -> str:
        arrays = "array" if self.count == 1 else "arrays"
        if self.same:
            head = f"replay of {self.name}: the same bits in {self.count} {arrays}"
        else:
            verb = "differs" if len(self.differences) == 1 else "differ"
            head = f"replay of {self.name}: {len(self.differences)} of {self.count} {arrays} {verb}"
        return "\n  ".join([head, *map(str, self.differences), *self.notes])

    __repr__ = __str__


@dataclass
class Recording:
    """A call of a function, with its results. Made by `record` and `load`.

    Attributes:
        name: of the function.
        result: what it returned; None for a recording from a file.
        inputs: the arrays of the arguments.
        outputs: those of the results.
        before: for each array of a ref, what it held before.
        after: and after.
        program: the text of the Graph; empty where the function cannot be traced.
        settings: what the results may depend on.
    """

    name: str
    inputs: list[np.ndarray]
    outputs: dict[str, np.ndarray]
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]
    program: str
    settings: dict[str, str]
    result: Any = None
    function: Callable[..., Any] | None = field(default=None, repr=False)
    call: pytree.TreeDef | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        size = sum(x.nbytes for x in [*self.inputs, *self.outputs.values(), *self.before.values()])
        return (
            f"Recording({self.name}: {len(self.inputs)} arguments, {len(self.outputs)} results, "
            f"{len(self.before)} arrays of refs, {size} bytes)"
        )

    @api_boundary
    def run(self, fn: Callable[..., Any] | None = None, *like: Any, **named: Any) -> Report:
        """Calls the function again, on what the recording has, and compares bits.

        What refs hold is put back to what it was before the call that was recorded.

        Args:
            fn: the function; by default the one that was recorded in this process.
            *like: for a recording from a file: arguments of the structure of those that were
                recorded, whose values do not matter.
            **named: likewise.

        Raises:
            CallError: there is no function, or the arguments have another structure.
            ShapeError: a ref is of another type.
        """
        fn = fn or self.function
        if fn is None:
            raise CallError(
                f"replay: the recording of {self.name} is from a file, and has no function",
                loc=loc.current(),
                rule="code is not recorded",
                fix="pass the function, and arguments like the recorded ones: "
                f"`recording.run({self.name}, *arguments)`",
            )
        treedef = self._structure(like, named)
        arrays = [Array(x.copy()) for x in self.inputs]
        args, kwargs = pytree.unflatten(treedef, arrays)
        program, cells = _traced(fn, args, kwargs)
        held = _contents(cells)
        self._restore(cells, held)
        outputs = _outputs(fn, fn(*args, **kwargs))
        pairs = [(self.outputs, outputs, "the result"), (self.after, _contents(cells), "")]
        found: list[Difference] = []
        count = 0
        for recorded, now, word in pairs:
            if recorded.keys() != now.keys():
                raise CallError(
                    f"replay: {name_of(fn)} gives {_listed(now)}; recorded is {_listed(recorded)}",
                    loc=loc.current(),
                    rule="a recording is replayed with the function that was recorded",
                )
            for name, array in recorded.items():
                count += 1
                difference = compare(word + name if word else name, array, now[name])
                found += [] if difference is None else [difference]
        return Report(self.name, count, tuple(found), tuple(self._notes(program)))

    def _structure(self, like: tuple[Any, ...], named: dict[str, Any]) -> pytree.TreeDef:
        if not (like or named) and self.call is not None:
            return self.call
        leaves, treedef = pytree.flatten((like, named))
        if len(leaves) != len(self.inputs):
            raise CallError(
                f"replay: the arguments have {len(leaves)} arrays, the recorded ones "
                f"{len(self.inputs)}",
                loc=loc.current(),
                rule="a recording from a file needs arguments of the recorded structure",
                fix="pass them behind the function; their values do not matter",
            )
        return treedef

    def _restore(self, cells: Sequence[Ref], held: dict[str, np.ndarray]) -> None:
        names = iter(held)
        for cell in cells:
            keys = [next(names) for _ in cell.types]
            for key, type in zip(keys, cell.types, strict=True):
                kept = self.before.get(key)
                if kept is None or (kept.shape, kept.dtype) != (type.shape, type.dtype.np):
                    is_known = "not recorded" if kept is None else f"{kept.dtype}{[*kept.shape]}"
                    raise ShapeError(
                        f"replay: {key} is {type}; in the recording it is {is_known}",
                        loc=loc.current(),
                        rule="a step uses the refs that it used when it was recorded",
                    )
            values = [Array(self.before[key].copy()) for key in keys]
            cell.set(pytree.unflatten(cell.treedef, values))

    def _notes(self, program: str) -> list[str]:
        now = _settings()
        notes = [
            f"{name} is {now.get(name, 'unknown')}; it was {value}"
            for name, value in self.settings.items()
            if now.get(name) != value
        ]
        old, new = self.program.splitlines(), program.splitlines()
        if old and new and old != new:
            at = next((k for k, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
            at = min(len(old), len(new)) if at is None else at
            shown = [lines[at].strip() if at < len(lines) else "its end" for lines in (old, new)]
            notes.append(f"the program is another: line {at + 1} is `{shown[1]}`, was `{shown[0]}`")
        return notes

    @api_boundary
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the recording to a file, at once: there is no half of it.

        Args:
            path: of the file.
        """
        meta: dict[str, Any] = {
            "format": _FORMAT,
            "name": self.name,
            "program": self.program,
            "settings": self.settings,
            "arrays": [],
        }
        arrays: dict[str, np.ndarray] = {}
        groups = {
            "inputs": {str(k): x for k, x in enumerate(self.inputs)},
            "outputs": self.outputs, "before": self.before, "after": self.after,
        }  # fmt: skip
        for group, members in groups.items():
            for name, x in members.items():
                key = f"a{len(arrays)}"
                # Formats that NumPy lacks are bytes in the file.
                arrays[key] = np.frombuffer(x.tobytes(), np.uint8)
                meta["arrays"].append([key, group, name, dtype_of(x.dtype).full_name, [*x.shape]])
        digest = _digest(arrays)
        text = json.dumps({**meta, "digest": digest})
        buffer = io.BytesIO()
        np.savez_compressed(buffer, meta=np.array(text), **cast("dict[str, Any]", arrays))
        write_file(os.fspath(path), buffer.getvalue())


def _digest(arrays: dict[str, np.ndarray]) -> str:
    found = hashlib.sha256()
    for key in sorted(arrays):
        found.update(arrays[key].tobytes())
    return found.hexdigest()


@api_boundary
def record(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Recording:
    """Calls a function, and keeps what is needed to call it again.

    Args:
        fn: a function of arrays, jitted or not. Refs that it uses are found by tracing it; those of
            a function that cannot be traced are not.
        *args: its arguments.
        **kwargs: likewise.

    Returns:
        The recording; `recording.result` is what `fn` returned.
    """
    check_callable("replay.record", fn, "pass its arguments after it")
    program, cells = _traced(fn, args, kwargs)
    leaves, treedef = leaf_arrays((args, kwargs), lambda _, k: f"replay: argument {k}")
    inputs = [_bits(x) for x in leaves]
    before = _contents(cells)
    result = fn(*args, **kwargs)
    return Recording(
        name_of(fn), inputs, _outputs(fn, result), before, _contents(cells), program, _settings(),
        result, fn, treedef,
    )  # fmt: skip


@api_boundary
def load(path: str | os.PathLike[str]) -> Recording:
    """Reads a recording that was saved.

    Args:
        path: of the file.

    Raises:
        OptionError: the file is no recording, or is damaged.
    """
    shown = os.fspath(path)
    try:
        with open(shown, "rb") as handle:
            content = io.BytesIO(handle.read())
        with np.load(content, allow_pickle=False) as file:
            meta = json.loads(str(file["meta"]))
            stored = {key: file[key] for key, *_ in meta["arrays"]}
        if meta["format"] != _FORMAT or _digest(stored) != meta["digest"]:
            raise ValueError("its content does not fit")
        groups: dict[str, dict[str, np.ndarray]] = {
            "inputs": {}, "outputs": {}, "before": {}, "after": {}
        }  # fmt: skip
        for key, group, name, dtype, shape in meta["arrays"]:
            flat = np.frombuffer(stored[key].tobytes(), dtype_of(dtype).np)
            groups[group][name] = flat.reshape(shape)
        settings, program = dict(meta["settings"]), str(meta["program"])
        inputs = [*groups["inputs"].values()]
        return Recording(
            str(meta["name"]), inputs, groups["outputs"], groups["before"], groups["after"],
            program, settings,
        )  # fmt: skip
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise OptionError(
            f"replay.load: {shown} is no recording: {error}",
            loc=loc.current(),
            rule="recordings are written by `recording.save(path)`",
        ) from None


def compare(name: str, recorded: np.ndarray, found: np.ndarray) -> Difference | None:
    """How two arrays differ in their bits; None if they do not."""
    if (recorded.shape, recorded.dtype) != (found.shape, found.dtype):
        texts = [f"{dtype_of(x.dtype)}{[*x.shape]}" for x in (recorded, found)]
        return Difference(name, max(recorded.size, found.size), (), texts[0], texts[1], None)
    if recorded.tobytes() == found.tobytes():
        return None
    size = recorded.dtype.itemsize
    a, b = [
        np.frombuffer(x.tobytes(), np.uint8).reshape(-1, size) for x in (recorded, found)
    ]
    differs = np.flatnonzero((a != b).any(axis=1))
    place: Any = np.unravel_index(int(differs[0]), recorded.shape)
    index: tuple[int, ...] = tuple(map(int, place))
    return Difference(
        name, len(differs), index, str(recorded[index]), str(found[index]), _ulps(recorded, found)
    )


def _ulps(recorded: np.ndarray, found: np.ndarray) -> int | None:
    """The largest distance of finite floating-point numbers, counted in numbers between them."""
    dtype = dtype_of(recorded.dtype)
    if not dtype.is_float:
        return None
    wide = [x.astype(np.float64) for x in (recorded, found)]
    if not all(np.isfinite(x).all() for x in wide):
        return None
    word = np.dtype(f"i{recorded.dtype.itemsize}")
    lowest = np.iinfo(word).min
    places: list[Any] = []
    for x in (recorded, found):
        number = np.frombuffer(x.tobytes(), word)
        # Negative numbers count downwards from zero.
        places.append([int(lowest) - int(n) if n < 0 else int(n) for n in number])
    return max([abs(p - q) for p, q in zip(*places, strict=True)])


def _bits(x: Any) -> np.ndarray:
    """A copy of the elements of an array."""
    return np.array(x.host if isinstance(x, Array) else x)


def _traced(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, list[Ref]]:
    """The program of a function, and the refs that it uses; none where it cannot be traced."""
    try:
        traced = traced_for("replay", fn, args, kwargs)
    except ConcretizationError:
        return "", []
    cells = [one.cell for one in traced.touched if isinstance(one.cell, Ref)]
    # The name says nothing of what it computes.
    text = re.sub(r"^func @\w+", "func @f", str(traced.graph))
    fixed = [x for x in traced.captured if isinstance(x, Array)]
    return f"{text}\nit refers to {_digest({str(k): _bits(x) for k, x in enumerate(fixed)})}", cells


def _contents(cells: Sequence[Ref]) -> dict[str, np.ndarray]:
    """What refs hold, by names."""
    found: dict[str, np.ndarray] = {}
    for number, cell in enumerate(cells):
        paths = pytree.paths(cell.treedef)
        for path, x in zip(paths, pytree.leaves(cell.get()), strict=True):
            found[f"ref {number} `{cell.name}`{path}"] = _bits(x)
    return found


def _outputs(fn: Callable[..., Any], result: Any) -> dict[str, np.ndarray]:
    """The arrays of a result, by paths."""
    leaves, treedef = leaf_arrays(
        result, result_name("replay", fn), "return arrays, numbers, or containers of them"
    )
    given: list[ArrayBase] = leaves
    return dict(zip(pytree.paths(treedef), [_bits(x) for x in given], strict=True))


def _settings() -> dict[str, str]:
    """What results may depend on."""
    from tessera.compile import current_machine

    settings = config.current()
    return {
        # The package itself is the last layer, which is loaded when this runs.
        "the version": sys.modules["tessera"].__version__,
        "the machine": str(current_machine()),
        "the precision of products": settings.matmul_precision,
        "the policy": str(settings.policy),
    }


def _listed(arrays: dict[str, np.ndarray]) -> str:
    return ", ".join([f"`{name or 'the result'}`" for name in arrays]) or "nothing"
