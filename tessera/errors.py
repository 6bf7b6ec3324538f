"""Every error that Tessera raises, and the boundary that keeps its own frames out of tracebacks.

One message has one shape: what happened, where in the user's program, which rule was broken, and
what to do about it. Each class is also the builtin that Python users would catch for that mistake,
so ``except ValueError`` finds a shape error.

This is the lowest layer: a location is known here only as something that renders itself.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Location(Protocol):
    """Where in the user's program something was asked for."""

    def render(self) -> str:
        """The lines that show the place, ``at file:line in function`` first; empty if unknown."""
        ...


class RenderedLocation:
    """A location that is only text: what is left of one that crossed a process boundary."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def render(self) -> str:
        """The text as it was rendered."""
        return self.text


class TesseraError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: What happened, in one line that starts with the operation: ``add: operands have ...``.
        loc: Where the user asked for it.
        rule: The rule that was broken.
        fix: What the user can do.
        notes: Further lines, such as the IR around the failing operation.
    """

    what: str
    loc: Location | None
    rule: str | None
    fix: str | None
    notes: tuple[str, ...]

    def __init__(
        self,
        what: str,
        *,
        loc: Location | None = None,
        rule: str | None = None,
        fix: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.loc = loc
        self.rule = rule
        self.fix = fix
        self.notes = tuple(notes)

    def __str__(self) -> str:
        lines = [self.what]
        place = self.loc.render() if self.loc is not None else ""
        if place:
            lines.append(_indent(place))
        if self.rule:
            lines.append(_indent(f"rule: {self.rule}"))
        lines.extend(_indent(note) for note in self.notes)
        if self.fix:
            lines.append(_indent(f"fix: {self.fix}"))
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Callable[..., TesseraError], tuple[object, ...]]:
        return _rebuild, (type(self), self.what, self._parts())

    def _parts(self) -> dict[str, object]:
        # A live location holds code objects, which do not pickle; its text does.
        place = self.loc.render() if self.loc is not None else ""
        return {**self.__dict__, "loc": RenderedLocation(place) if place else None}

    def at(self, loc: Location) -> TesseraError:
        """Give the error a place, unless it already has one; returns the error itself."""
        if self.loc is None:
            self.loc = loc
        return self


def _rebuild(cls: type[TesseraError], what: str, parts: dict[str, object]) -> TesseraError:
    # Subclasses have constructors of their own, which the stored parts make unnecessary.
    error = cls.__new__(cls, what)
    error.__dict__.update(parts)
    return error


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" if line else line for line in text.split("\n"))


class ShapeError(TesseraError, ValueError):
    """Shapes do not fit together."""


class DTypeError(TesseraError, TypeError):
    """An element type is not allowed, or two of them do not combine."""


class NumberRangeError(DTypeError, OverflowError):
    """A number does not fit into a dtype."""


class AxisError(TesseraError, ValueError, IndexError):
    """An axis is out of range or named twice."""


class IndexOutOfBoundsError(TesseraError, IndexError):
    """An index is known to lie outside its dimension."""


class TracerLeakError(TesseraError, RuntimeError):
    """A traced value was used after its trace had ended."""


class ConcretizationError(TesseraError, TypeError):
    """A traced value was used where Python needs a concrete one (``if``, ``int()``, ...)."""


class StaticArgumentError(TesseraError, TypeError):
    """A static argument cannot be hashed."""


class RetraceError(TesseraError, RuntimeError):
    """A compiled function is traced more often than its `max_traces` allows."""


class NonFiniteError(TesseraError, FloatingPointError):
    """An operation gave NaN or an infinity while somebody watched for these."""


class NumericsError(TesseraError, ArithmeticError):
    """A promise about numbers does not hold, or is not proved."""


class MemoryAccessError(TesseraError, RuntimeError):
    """Compiled code left a buffer while somebody watched for that."""


class MemoryBudgetError(TesseraError, MemoryError):
    """A compiled function needs more memory than its budget allows."""


class OptionError(TesseraError, ValueError):
    """An option has a value that it cannot have."""


class EffectError(TesseraError, TypeError):
    """A function has an effect that it does not declare, or that is forbidden where it is."""


class EffectWarning(UserWarning):
    """A function declares an effect that it does not have."""


class GradError(TesseraError, TypeError):
    """A gradient was asked for that does not exist, e.g. of a function without scalar result."""


class PytreeError(TesseraError, ValueError):
    """Trees that must have the same structure differ."""


class ImmutableError(TesseraError, TypeError):
    """An attempt to change an immutable array."""


class UnhashableError(TesseraError, TypeError):
    """An array was used where Python needs a hash: as a key, or in a set."""


class CallError(TesseraError, TypeError):
    """A function was called with arguments that it does not take."""


class LeafError(TesseraError, TypeError):
    """A leaf of an argument is neither an array nor a number."""


class MissingNameError(TesseraError, AttributeError):
    """A module or an array has no such attribute.

    Args:
        what: What happened.
        loc: Where.
        advise: Gives the remedy, when somebody reads the message: code asks for names to find out
            whether they are there.
    """

    _advise: Callable[[], str | None] | None

    def __init__(
        self, what: str, *, loc: Location | None = None, advise: Callable[[], str | None]
    ) -> None:
        super().__init__(what, loc=loc)
        self._advise = advise

    def __str__(self) -> str:
        if self._advise is not None:
            self.fix, self._advise = self._advise(), None
        return super().__str__()

    def _parts(self) -> dict[str, object]:
        str(self)  # which works the remedy out
        return super()._parts()


class VerifyError(TesseraError, ValueError):
    """A program breaks an invariant of its layer."""


class SimulationError(TesseraError, RuntimeError):
    """A simulated GPU kernel does what the device does not define: a race, a wild access, ..."""


class ParseError(TesseraError, ValueError):
    """Text is not a program."""


class NotDifferentiableError(TesseraError, TypeError):
    """An operation has no derivative with respect to the operand asked for."""


class DeterminismError(TesseraError, RuntimeError):
    """A function that promises the same bits in each run has an operation that does not."""


class DonatedError(TesseraError, RuntimeError):
    """An array was used after its memory had been given to a call."""


class StateError(TesseraError, RuntimeError):
    """A ref is used where it cannot be, or twice at once."""


class NotYetError(TesseraError, NotImplementedError):
    """Something that is meant to work and does not yet."""


class CompileError(TesseraError, RuntimeError):
    """Code generation failed on a valid program."""


class BatchingError(TesseraError, TypeError):
    """A batching rule of the user is missing, or cannot be used."""


class MissingRuleError(TesseraError, NotImplementedError):
    """An operation lacks the method that a transformation needs.

    Args:
        op_name: The name of the operation, ``graph.sort``.
        method: The method to write on its class, ``jvp``.
        loc: Where the user asked for the operation.
    """

    op_name: str
    method: str

    def __init__(self, op_name: str, method: str, *, loc: Location | None = None) -> None:
        super().__init__(
            f"{op_name}: there is no rule '{method}' for this operation",
            loc=loc,
            rule=f"whatever uses '{method}' works on operations whose class defines it",
            fix=f"write the method '{method}' on the class of {op_name}",
        )
        self.op_name = op_name
        self.method = method


PACKAGE_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Frames of these, where Tessera itself called them, say nothing about the user's program.
_GLUE_FILES = tuple(
    os.path.join(os.path.dirname(os.path.abspath(os.__file__)), name)
    for name in ("functools.py", "contextlib.py", "dataclasses.py")
)
_DEPENDENCIES = tuple(
    f"{os.sep}{name}{os.sep}"
    for name in ("numpy", "ml_dtypes", "optree", "scipy", "llvmlite", "sympy", "networkx")
)


def is_internal_file(filename: str) -> bool:
    """Whether code with this file name is Tessera's own (generated code is ``<tessera ...>``)."""
    return filename.startswith((PACKAGE_FOLDER, "<tessera"))


def is_glue_file(filename: str) -> bool:
    """Whether the file is library code that only passes calls on (functools, optree, ...)."""
    return filename in _GLUE_FILES or f"{os.sep}optree{os.sep}" in filename


def is_internal_frame(frame: FrameType) -> bool:
    """Whether a frame runs Tessera's own code."""
    filename = frame.f_code.co_filename
    if filename == "<string>":  # methods generated by dataclasses
        return str(frame.f_globals.get("__name__", "")).startswith("tessera.")
    return is_internal_file(filename)


def api_boundary(fn: Callable[P, R]) -> Callable[P, R]:
    """Mark a function of the public API: errors leave it without Tessera's own frames.

    A TesseraError, and any error raised in user code that Tessera called, shows the frames of the
    user only. Any other error is a defect of Tessera, and keeps its whole traceback.
    ``TESSERA_TRACEBACK=full`` in the environment keeps every frame.
    """

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if AROUND:
                return AROUND[-1](fn, args, kwargs)
            return fn(*args, **kwargs)
        except BaseException as error:
            wrong = _wrong_call(fn, error)
            if wrong is None:
                if isinstance(error, TesseraError) and error.loc is None and _locate:
                    error.loc = _locate[0]()
                hide_own_frames(error)
                # A bare raise adds no entry for this frame to the filtered traceback.
                raise
        try:
            raise wrong
        except CallError as error:
            hide_own_frames(error)
            raise

    return call


AROUND: list[Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]] = []
"""What calls the functions of the public API while there is something in force that changes what
they compute (`graph/precision.py`): the last one does."""


_locate: list[Callable[[], Location]] = []


def install_locator(locate: Callable[[], Location]) -> None:
    """Sets what finds out where the user is."""
    _locate[:] = [locate]


# What other libraries call parameters.
_PARAMETERS = {
    "dim": "axis",
    "dims": "axis",
    "axes": "axis",
    "axis": "axes",
    "keepdim": "keepdims",
    "keep_dims": "keepdims",
    "ddof": "correction",
    "unbiased": "correction",
    "size": "shape",
    "input": "x",
    "other": "y",
    "order": "stable",
}


def _wrong_call(fn: Callable[..., object], error: BaseException) -> CallError | None:
    """The error for a public function that is called with arguments that it does not take; None if
    it is something else that has failed."""
    if type(error) is not TypeError or not _locate:
        return None
    frame = error.__traceback__
    if AROUND and frame is not None:
        frame = frame.tb_next  # that of what calls the function
    if frame is None or frame.tb_next is not None:
        return None  # it comes from inside
    name, _, problem = str(error).partition("() ")
    if name.rpartition(".")[2] != fn.__name__ or not problem:
        return None
    import enum
    import inspect  # slow to load, and seldom needed

    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return None
    known = [
        p.replace(
            annotation=p.empty,
            default=p.default.value if isinstance(p.default, enum.Enum) else p.default,
        )
        for p in parameters.values()
    ]
    called = fn.__name__
    if called == "__init__":
        called, known = fn.__qualname__.split(".")[-2], known[1:]
    shown = str(inspect.Signature(known))
    return CallError(
        f"{called}: {problem}",
        loc=_locate[0](),
        rule=f"its parameters are {shown}",
        fix=_call_fix(called, problem, [p.name for p in known], shown),
    )


def _call_fix(name: str, problem: str, names: Sequence[str], shown: str) -> str | None:
    if "unexpected keyword argument" in problem:
        given = problem.rpartition("argument ")[2].strip("'")
        wanted = _PARAMETERS.get(given)
        if wanted not in names:
            import difflib

            wanted = next(iter(difflib.get_close_matches(given, names, 1)), None)
        return f"write `{wanted}=`" if wanted else None
    if "positional argument" in problem and "given" in problem and names:
        if names[0] == "shape":
            return f"give the shape as a tuple, `{name}((2, 3))`, and what follows by name"
        if names[0] == "arrays":
            return f"give the arrays as a list: `{name}([x, y])`"
        return "give what follows `*` by name" if "*, " in shown else None
    return None


def hide_own_frames(error: BaseException) -> None:
    """What `api_boundary` does to an error: for code that must not pay for a call more."""
    if os.environ.get("TESSERA_TRACEBACK") == "full":
        return
    if not isinstance(error, TesseraError):
        if not _is_defect(error.__traceback__):
            error.__traceback__ = _user_traceback(error.__traceback__)
        return
    error.__traceback__ = _user_traceback(error.__traceback__)
    cause = error.__cause__
    if cause is not None:
        if _is_defect(cause.__traceback__):
            error.__cause__ = None  # this also suppresses the context
        else:
            cause.__traceback__ = _user_traceback(cause.__traceback__)
        return
    context = error.__context__
    if context is not None and not error.__suppress_context__:
        if _is_defect(context.__traceback__):
            error.__suppress_context__ = True
        else:
            context.__traceback__ = _user_traceback(context.__traceback__)


def _entries(traceback: TracebackType | None) -> list[TracebackType]:
    entries: list[TracebackType] = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    return entries


def _is_defect(traceback: TracebackType | None) -> bool:
    """Whether the error came out of Tessera itself, not out of user code that it called."""
    for entry in reversed(_entries(traceback)):
        filename = entry.tb_frame.f_code.co_filename
        if filename == __file__:
            return False  # the boundary's own call failed: wrong arguments
        if is_internal_frame(entry.tb_frame):
            return True
        if not is_glue_file(filename) and not any(name in filename for name in _DEPENDENCIES):
            return False
    return False


def _user_traceback(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    inside = False
    for entry in _entries(traceback):
        frame = entry.tb_frame
        inside = is_internal_frame(frame) or (inside and is_glue_file(frame.f_code.co_filename))
        if not inside:
            kept.append(entry)
    result: TracebackType | None = None
    for entry in reversed(kept):
        frame = entry.tb_frame
        # An instruction of no line, at which an interruption may come, has None for it.
        line = entry.tb_lineno or frame.f_code.co_firstlineno
        result = TracebackType(result, frame, entry.tb_lasti, line)
    return result
