"""The form of messages, and what of a traceback the user sees."""

from __future__ import annotations

import os
import pickle
import sys
import textwrap
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest

from tessera import errors
from tessera.errors import PACKAGE_FOLDER, TesseraError, api_boundary


class Place:
    def render(self) -> str:
        return "at model.py:12 in loss\n  12 |     return x + y\n     |            ^^^^^"


MESSAGE = """\
add: operands have shapes f32[4, 8] and f32[4, 7]; dim 1 differs (8 and 7)
  at model.py:12 in loss
    12 |     return x + y
       |            ^^^^^
  rule: two dims must be equal, or one of them 1
  fix: reshape or broadcast one operand"""


def shape_error() -> errors.ShapeError:
    return errors.ShapeError(
        "add: operands have shapes f32[4, 8] and f32[4, 7]; dim 1 differs (8 and 7)",
        loc=Place(),
        rule="two dims must be equal, or one of them 1",
        fix="reshape or broadcast one operand",
    )


def test_message() -> None:
    assert str(shape_error()) == MESSAGE


def test_message_of_what_alone() -> None:
    assert str(TesseraError("add: no")) == "add: no"


def test_notes_are_indented_between_rule_and_fix() -> None:
    error = TesseraError("a", rule="r", fix="f", notes=("n1\nn2", "n3"))
    assert str(error) == "a\n  rule: r\n  n1\n  n2\n  n3\n  fix: f"


def test_at_gives_a_place_once() -> None:
    first, second = Place(), Place()
    error = TesseraError("a").at(first)
    assert error.at(second) is error
    assert error.loc is first


@pytest.mark.parametrize(
    ("cls", "builtins"),
    [
        (errors.ShapeError, (ValueError,)),
        (errors.DTypeError, (TypeError,)),
        (errors.AxisError, (ValueError, IndexError)),
        (errors.IndexOutOfBoundsError, (IndexError,)),
        (errors.TracerLeakError, (RuntimeError,)),
        (errors.ConcretizationError, (TypeError,)),
        (errors.StaticArgumentError, (TypeError,)),
        (errors.OptionError, (ValueError,)),
        (errors.GradError, (TypeError,)),
        (errors.PytreeError, (ValueError,)),
        (errors.ImmutableError, (TypeError,)),
        (errors.UnhashableError, (TypeError,)),
        (errors.CallError, (TypeError,)),
        (errors.LeafError, (TypeError,)),
        (errors.VerifyError, (ValueError,)),
        (errors.ParseError, (ValueError,)),
        (errors.NotDifferentiableError, (TypeError,)),
        (errors.NotYetError, (NotImplementedError,)),
        (errors.CompileError, (RuntimeError,)),
    ],
)
def test_each_is_the_builtin_that_users_expect(
    cls: type[TesseraError], builtins: tuple[type[Exception], ...]
) -> None:
    error = cls("x", rule="r")
    assert isinstance(error, TesseraError)
    assert all(isinstance(error, b) for b in builtins)
    assert str(error) == "x\n  rule: r"


def test_missing_rule_names_the_method() -> None:
    error = errors.MissingRuleError("graph.sort", "jvp")
    assert isinstance(error, NotImplementedError)
    assert "graph.sort: there is no rule 'jvp'" in str(error)
    assert "fix: write the method 'jvp' on the class of graph.sort" in str(error)


@pytest.mark.parametrize("error", [shape_error(), errors.MissingRuleError("a", "b", loc=Place())])
def test_pickle_keeps_the_message(error: TesseraError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


# --- tracebacks -------------------------------------------------------------------------------


def inside(source: str, **names: Any) -> dict[str, Any]:
    """Run code as if it stood in a file of the package."""
    names.update(api_boundary=api_boundary, errors=errors, __name__="tessera.made_up")
    code = compile(
        textwrap.dedent(source), PACKAGE_FOLDER + "made_up.py", "exec", dont_inherit=True
    )
    exec(code, names)
    return names


def shown(fn: Callable[[], object]) -> tuple[str, list[str]]:
    """The formatted traceback of what ``fn`` raises, and the functions of its frames."""
    try:
        fn()
    except Exception as error:
        return traceback.format_exc(), [f.name for f in traceback.extract_tb(error.__traceback__)]
    raise AssertionError("nothing was raised")


LIBRARY = inside("""
    import functools

    def check(x):
        if x < 0:
            raise errors.ShapeError("add: negative", fix="make it positive")
        return x

    @api_boundary
    def add(x):
        return check(x)

    @api_boundary
    def apply(fn, *args):
        return functools.reduce(lambda _, x: fn(x), args, None)

    @api_boundary
    def jit(fn):
        @api_boundary
        def call(*args):
            return deep(fn, args, 3)
        return call

    def deep(fn, args, n):
        return fn(*args) if n == 0 else deep(fn, args, n - 1)

    @api_boundary
    def broken(x):
        return {}[x]

    @api_boundary
    def chained(x):
        try:
            return {}[x]
        except KeyError:
            raise errors.DTypeError("cast: unknown")

    @api_boundary
    def caused(x):
        try:
            return {}[x]
        except KeyError as error:
            raise errors.DTypeError("cast: unknown") from error

    @api_boundary
    def wrapping(fn):
        try:
            fn()
        except Exception as error:
            raise errors.CompileError("compile: the callback failed") from error
""")


def without_own_frames(text: str) -> bool:
    return PACKAGE_FOLDER not in text


def test_result_and_name_pass_through() -> None:
    assert LIBRARY["add"](3) == 3
    assert LIBRARY["add"].__name__ == "add"


def test_an_error_shows_only_the_caller() -> None:
    def user() -> None:
        LIBRARY["add"](-1)

    text, frames = shown(user)
    assert frames == ["shown", "user"]
    assert without_own_frames(text)
    # The error did not say where: the boundary does.
    head, *_, last = text[text.index("ShapeError: ") :].rstrip().splitlines()
    assert head == "ShapeError: add: negative"
    assert 'LIBRARY["add"](-1)' in text
    assert last == "  fix: make it positive"


def test_user_function_called_by_the_library() -> None:
    def inner(x: int) -> int:
        return LIBRARY["add"](x)

    def outer() -> None:
        LIBRARY["jit"](inner)(-1)

    text, frames = shown(outer)
    assert frames == ["shown", "outer", "inner"]
    assert without_own_frames(text)


def test_several_levels() -> None:
    jit, add = LIBRARY["jit"], LIBRARY["add"]
    level0 = jit(lambda x: add(x))
    level1 = jit(lambda x: level0(x))
    level2 = jit(lambda x: level1(x))
    text, frames = shown(lambda: level2(-5))
    assert frames == ["shown", *["<lambda>"] * 4]
    assert without_own_frames(text)


def test_an_error_of_the_user_is_filtered_too() -> None:
    def inner(x: int) -> float:
        return x / 0

    text, frames = shown(lambda: LIBRARY["jit"](inner)(1))
    assert frames == ["shown", "<lambda>", "inner"]
    assert without_own_frames(text)


def test_instructions_of_no_line_are_shown_at_their_function() -> None:
    """As those at which an interruption may come."""

    def inner(x: int) -> float:
        return x / 0

    code = inner.__code__
    nowhere = bytes([0xFF]) * -(-len(code.co_code) // 16)  # eight code units each
    inner.__code__ = code.replace(co_linetable=nowhere)
    with pytest.raises(ZeroDivisionError) as caught:
        LIBRARY["jit"](inner)(1)
    *_, (frame, line) = traceback.walk_tb(caught.value.__traceback__)
    assert (frame.f_code.co_name, line) == ("inner", code.co_firstlineno)


def test_glue_between_library_and_user_is_hidden() -> None:
    text, frames = shown(lambda: LIBRARY["apply"](lambda x: LIBRARY["add"](x), -1))
    assert frames == ["shown", "<lambda>", "<lambda>"]
    assert without_own_frames(text)


def test_wrong_arguments_show_the_call() -> None:
    text, frames = shown(lambda: LIBRARY["add"]())
    assert frames == ["shown", "<lambda>"]
    assert "missing 1 required positional argument" in text
    assert without_own_frames(text)


def test_a_defect_keeps_its_frames() -> None:
    _, frames = shown(lambda: LIBRARY["broken"](1))
    assert frames[-1] == "broken"


@pytest.mark.parametrize("name", ["chained", "caused"])
def test_internal_causes_are_cut(name: str) -> None:
    text, frames = shown(lambda: LIBRARY[name](1))
    assert frames == ["shown", "<lambda>"]
    assert "KeyError" not in text
    assert without_own_frames(text)


def test_a_cause_in_user_code_stays() -> None:
    def callback() -> None:
        raise ValueError("mine")

    text, _ = shown(lambda: LIBRARY["wrapping"](callback))
    assert "ValueError: mine" in text
    assert "CompileError: compile: the callback failed" in text
    assert without_own_frames(text)


def test_an_error_while_the_user_handles_his_own_shows_both() -> None:
    def user() -> None:
        try:
            raise ValueError("mine")
        except ValueError:
            LIBRARY["add"](-1)

    text, _ = shown(user)
    assert "ValueError: mine" in text
    assert "ShapeError" in text
    assert without_own_frames(text)


def test_errors_of_generated_methods_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    # dataclasses run the methods that they generate in the namespace of the class's module.
    module = types.ModuleType("tessera.made_up")
    monkeypatch.setitem(sys.modules, "tessera.made_up", module)
    library = inside("""
        import dataclasses

        @dataclasses.dataclass
        class Block:
            size: int

            def __post_init__(self):
                if self.size < 1:
                    raise errors.ShapeError("block: too small")

        @api_boundary
        def make(size):
            return Block(size)
    """)
    _, frames = shown(lambda: library["make"](0))
    assert frames == ["shown", "<lambda>"]


def test_full_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_TRACEBACK", "full")
    text, frames = shown(lambda: LIBRARY["add"](-1))
    assert frames == ["shown", "<lambda>", "call", "add", "check"]
    assert os.path.join(PACKAGE_FOLDER, "made_up.py") in text


def test_keyboard_interrupt_passes() -> None:
    def inner() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LIBRARY["jit"](inner)()
