"""`jit` and `compile`: signatures, static arguments, stages, results."""

from __future__ import annotations

import functools
import threading
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import StaticArgumentError
from tessera.ir.parser import parse_func, parse_module


def same(found: Any, wanted: Any) -> None:
    found = np.asarray(found)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.asarray(wanted).dtype


@pytest.fixture
def x() -> ts.Array:
    return ts.asarray(np.arange(4, dtype=np.float32))


# --- signatures -------------------------------------------------------------------------------


def counted(fn: Callable[..., Any]) -> tuple[Any, list[int]]:
    """The compiled function, and a list that grows when it is traced."""
    traces: list[int] = []

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        traces.append(1)
        return fn(*args, **kwargs)

    return ts.jit(run), traces


def test_traced_once_per_signature(x: ts.Array) -> None:
    f, traces = counted(lambda x: x + 1)
    for _ in range(3):
        same(f(x), np.arange(1, 5, dtype=np.float32))
    assert len(traces) == f.cache_size() == 1


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(5, np.float32),
        np.zeros((4, 1), np.float32),
        np.zeros(4, np.float64),
        np.zeros(4, np.int32),
    ],
    ids=["size", "rank", "dtype", "kind"],
)
def test_new_signatures(x: ts.Array, other: np.ndarray) -> None:
    f, traces = counted(lambda x: x + 1)
    f(x)
    same(f(other), other + 1)
    same(f(x), np.arange(1, 5, dtype=np.float32))
    assert len(traces) == 2


def test_structure_belongs_to_the_signature(x: ts.Array) -> None:
    f, traces = counted(lambda tree: ts.sum(tree["a"][0]))
    f({"a": [x, x]})
    f({"a": (x, x)})
    f({"a": [x, x], "b": x})
    f({"a": [x, None]})
    assert len(traces) == 4
    f({"b": x, "a": [x, x]})
    assert len(traces) == 4


def test_numpy_arrays_and_arrays_share_a_signature(x: ts.Array) -> None:
    f, traces = counted(lambda x: 2 * x)
    for given in (x, np.asarray(x), np.arange(8, dtype=np.float32)[::2]):
        same(f(given), 2 * np.asarray(given))
    assert len(traces) == 1


def test_keyword_arguments_are_a_signature_of_their_own(x: ts.Array) -> None:
    f, traces = counted(lambda x, y: x - y)
    for found in (f(x, 2 * x), f(x, y=2 * x), f(y=2 * x, x=x), f(x=x, y=2 * x)):
        same(found, -np.arange(4, dtype=np.float32))
    assert len(traces) == 3


def test_weak_arguments(x: ts.Array) -> None:
    f, traces = counted(lambda x, n: x * n)
    half = x.astype(ts.float16)
    assert f(half, 3.0).dtype is ts.float16
    assert f(half, np.float32(3)).dtype is ts.float32
    assert f(half, ts.asarray(3.0, dtype=ts.float32)).dtype is ts.float32
    assert len(traces) == 2
    assert f(half, True).dtype is ts.float16
    assert f(half, 2).dtype is ts.float16
    assert f(half, 2j).dtype is ts.complex64
    assert len(traces) == 5


def test_a_weak_result_stays_weak(x: ts.Array) -> None:
    half = x.astype(ts.float16)
    f, traces = counted(lambda n: n * 2)
    weak = f(1.5)
    assert weak.type.weak
    assert (half * weak).dtype is ts.float16
    f(ts.asarray(1.5, dtype=ts.float32))
    assert len(traces) == 2
    f(weak)
    assert len(traces) == 2


def test_settings_belong_to_the_signature(x: ts.Array) -> None:
    f, traces = counted(lambda x: x + 1)
    f(x)
    with ts.config.update(threads=1 if ts.config.threads > 1 else 2):
        f(x)
        f(x)
    assert len(traces) == 2
    f(x)
    assert len(traces) == 2


def test_defaults_and_any_number_of_arguments(x: ts.Array) -> None:
    @ts.jit
    def f(x: Any, scale: float = 3.0, *more: Any, shift: float = 1.0, **rest: Any) -> Any:
        return x * scale + shift + sum(more) + sum(rest.values())

    base = np.arange(4, dtype=np.float32)
    same(f(x), base * 3 + 1)
    same(f(x, 2.0), base * 2 + 1)
    same(f(x, 2.0, x, x), base * 4 + 1)
    same(f(x, shift=0.0, a=x, b=x), base * 5)


def test_partial_functions(x: ts.Array) -> None:
    def scale(factor: float, x: Any, *, shift: float) -> Any:
        return factor * x + shift

    f = ts.jit(functools.partial(scale, 2.0, shift=1.0))
    same(f(x), 2 * np.arange(4, dtype=np.float32) + 1)
    assert "scale" in repr(f)


def test_threads_share_the_program(x: ts.Array) -> None:
    f = ts.jit(lambda x: ts.sum(x * x))
    found: list[float] = []
    threads = [threading.Thread(target=lambda: found.append(float(f(x)))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [14.0] * 4
    assert f.cache_size() == 1


# --- static arguments -------------------------------------------------------------------------


def power(x: Any, n: int, reverse: bool = False) -> Any:
    result = x
    for _ in range(n - 1):
        result = result * x
    return ts.flip(result) if reverse else result


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": (1, 2)},
        {"static_argnums": (-2, -1)},
        {"static_argnames": ("n", "reverse")},
        {"static_argnums": 1, "static_argnames": "reverse"},
    ],
)
def test_static_arguments(x: ts.Array, options: dict[str, Any]) -> None:
    f = ts.jit(power, **options)
    cube = np.arange(4, dtype=np.float32) ** 3
    same(f(x, 3), cube)
    same(f(x, n=3), cube)
    same(f(x, 3, True), cube[::-1])
    same(f(x, 3, reverse=True), cube[::-1])
    same(f(n=2, x=x), np.asarray(x) ** 2)
    same(f(x, 3), cube)


def test_static_values_are_told_apart_by_type(x: ts.Array) -> None:
    f, traces = counted(lambda x, n: x)
    f = ts.jit(f.function, static_argnums=1)
    f(x, 1)
    f(x, True)
    f(x, 1.0)
    f(x, 1)
    assert len(traces) == 3
    f(x, 0.0)
    f(x, -0.0)
    assert len(traces) == 5


def test_static_arguments_may_be_anything_that_hashes(x: ts.Array) -> None:
    @functools.partial(ts.jit, static_argnames=("fn", "axes", "mode"))
    def f(fn: Any, x: Any, axes: tuple[int, ...], mode: str | None = None) -> Any:
        return fn(x, axis=axes) if mode is None else x

    same(f(ts.sum, x, (0,)), np.float32(6))
    same(f(ts.max, x, axes=(0,)), np.float32(3))
    same(f(ts.max, x, (0,), mode="none"), np.asarray(x))


def test_a_static_argument_must_hash(x: ts.Array) -> None:
    f = ts.jit(power, static_argnums=1)
    with pytest.raises(StaticArgumentError, match="argument `n` of power is of type list"):
        f(x, [3])


# --- methods ----------------------------------------------------------------------------------


class Scaled:
    """Its instances are static: they hash by identity."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @functools.partial(ts.jit, static_argnums=0)
    def apply(self, x: Any, shift: Any = 0.0) -> Any:
        return self.factor * x + shift


def test_methods(x: ts.Array) -> None:
    two, three = Scaled(2.0), Scaled(3.0)
    same(two.apply(x), 2 * np.asarray(x))
    same(three.apply(x, shift=1.0), 3 * np.asarray(x) + 1)
    same(Scaled.apply(two, x), 2 * np.asarray(x))
    assert "graph." in str(two.apply.lower(x).graph)
    assert isinstance(Scaled.__dict__["apply"], ts.JitFunction)
    assert Scaled.apply is Scaled.__dict__["apply"]


def test_methods_of_pytrees(x: ts.Array) -> None:
    class Layer:
        def __init__(self, w: Any) -> None:
            self.w = w

        @ts.jit
        def __call__(self, x: Any) -> Any:
            return self.w * x

    ts.pytree.register_pytree_node(
        Layer, lambda m: ((m.w,), None), lambda _, leaves: Layer(*leaves)
    )
    same(Layer(x)(x), np.asarray(x) ** 2)


def test_the_function_keeps_its_name_and_text() -> None:
    @ts.jit
    def f(x: Any) -> Any:
        """What it does."""
        return x

    assert (f.__name__, f.__doc__) == ("f", "What it does.")
    assert f.__wrapped__ is f.function  # type: ignore[attr-defined]
    assert repr(f) == "jit(f), 0 compiled"


# --- results ----------------------------------------------------------------------------------

Point = namedtuple("Point", ["x", "y"])


def test_results_of_any_structure(x: ts.Array) -> None:
    @ts.jit
    def f(p: Point) -> Any:
        return {"sum": p.x + p.y, "parts": [p.x, (p.y, None)], "p": p, "n": 3, "f": 0.5}

    found = f(Point(x, 2 * x))
    assert set(found) == {"sum", "parts", "p", "n", "f"}
    same(found["sum"], 3 * np.asarray(x))
    assert isinstance(found["parts"], list)
    assert found["parts"][1][1] is None
    assert isinstance(found["p"], Point)
    same(found["p"].y, 2 * np.asarray(x))
    assert int(found["n"]) == 3
    assert float(found["f"]) == 0.5


def test_no_arrays_at_all() -> None:
    assert ts.jit(lambda: ())() == ()
    assert ts.jit(lambda: None)() is None
    assert float(ts.jit(lambda: 3.0)()) == 3.0
    assert ts.jit(lambda x: {})(1.0) == {}


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1, 1)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    data = np.ones(shape, np.float32)
    f = ts.jit(lambda x: (x + 1, ts.sum(x), x))
    added, total, own = f(data)
    same(added, data + 1)
    same(total, np.float32(data.size))
    same(own, data)


def test_results_share_no_memory(x: ts.Array) -> None:
    f = ts.jit(lambda a, b: (a, a, b, ts.reshape(a, (2, 2))))
    given = np.arange(4, dtype=np.float32)
    results = [np.asarray(r) for r in f(given, given)]
    for k, r in enumerate(results):
        assert not np.shares_memory(r, given)
        assert not r.flags.writeable
        assert not any(np.shares_memory(r, other) for other in results[:k])
    given[:] = 9
    same(results[0], np.arange(4, dtype=np.float32))


def test_the_same_array_twice(x: ts.Array) -> None:
    f = ts.jit(lambda a, b: a - 2 * b)
    same(f(x, x), -np.asarray(x))


def test_numpy_arguments_are_left_alone() -> None:
    given = np.arange(4, dtype=np.float32)
    ts.jit(lambda x: x + 1)(given)
    assert given.flags.writeable
    given[0] = 1


def test_values_used_from_outside_are_those_of_the_trace() -> None:
    given = np.arange(4, dtype=np.float32)
    scale = ts.asarray([2.0, 2.0, 2.0, 2.0])
    f = ts.jit(lambda x: x * scale + given)
    same(f(given), np.arange(4, dtype=np.float32) * 3)
    given[:] = 0
    same(f(np.arange(4, dtype=np.float32)), np.arange(4, dtype=np.float32) * 3)


@pytest.mark.parametrize("layout", ["strided", "transposed", "unaligned", "swapped", "read-only"])
def test_layouts_of_arguments(layout: str) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    given = {
        "strided": base[::2, ::-3],
        "transposed": base.T,
        "unaligned": np.frombuffer(b"\0" + base.tobytes(), np.uint8)[1:].view("f4").reshape(4, 6),
        "swapped": base.astype(">f4"),
        "read-only": base.copy(),
    }[layout]
    if layout == "read-only":
        given.flags.writeable = False
    same(ts.jit(lambda x: x * 2)(given), given.astype("f4") * 2)


def test_subclasses_of_numpy_arrays(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "data", np.float32, "w+", shape=(4,))
    mapped[:] = 3
    same(ts.jit(lambda x: x * 2)(mapped), np.full(4, 6, np.float32))


def test_numpy_scalars_are_not_weak() -> None:
    f = ts.jit(lambda x, y: x + y)
    assert f(ts.ones(2, dtype=ts.float16), np.float64(1.0)).dtype is ts.float64


# --- nesting ----------------------------------------------------------------------------------


def test_nested(x: ts.Array) -> None:
    inner = ts.jit(lambda x, n=2: {"out": x * n})
    outer = ts.jit(lambda x: inner(x)["out"] + inner(x, n=3)["out"])
    same(outer(x), 5 * np.asarray(x))
    assert inner.cache_size() == 0
    graph = str(ts.make_graph(outer.function)(x))
    assert graph.count("graph.call") == 2


def test_nested_on_values_that_are_not_traced(x: ts.Array) -> None:
    inner = ts.jit(lambda x: x * 2)
    outer = ts.jit(lambda y: y + inner(x))
    same(outer(x), 3 * np.asarray(x))


def test_nested_under_transforms(x: ts.Array) -> None:
    f = ts.jit(lambda x: ts.sum(x * x * x))
    same(ts.grad(f)(x), 3 * np.asarray(x) ** 2)
    same(ts.jit(ts.grad(f))(x), 3 * np.asarray(x) ** 2)
    same(ts.vmap(f)(ts.reshape(x, (2, 2))), np.asarray([1.0, 35.0], np.float32))


def test_functions_that_keep_python_control_flow(x: ts.Array) -> None:
    @ts.jit
    def f(x: Any, ys: list[Any]) -> Any:
        for y in ys:
            x = x + y if x.ndim else y
        return x

    same(f(x, [x, x, x]), 4 * np.asarray(x))


# --- stages -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lowered() -> Any:
    f = ts.jit(lambda x, y: ts.sum(ts.exp(x) * y, axis=1) + 1)
    return f.lower(ts.ones((4, 8)), ts.ones((4, 8)))


@pytest.mark.parametrize("stage", ["graph", "schedule"])
def test_function_stages_can_be_read_back(lowered: Any, stage: str) -> None:
    text = str(getattr(lowered, stage))
    assert f"{stage}." in text
    assert str(parse_func(text)) == text


@pytest.mark.parametrize("stage", ["tile", "target"])
def test_module_stages_can_be_read_back(lowered: Any, stage: str) -> None:
    text = str(getattr(lowered, stage))
    assert f"{stage}." in text
    assert str(parse_module(text)) == text


def test_machine_stages(lowered: Any) -> None:
    assert "define" in lowered.llvm
    assert "tessera_run" in lowered.asm
    assert lowered.why()


def test_lowering_does_not_run_or_fill_the_cache(x: ts.Array) -> None:
    f = ts.jit(lambda x: x + 1)
    f.lower(x)
    assert f.cache_size() == 0


def test_why_and_the_compiled_programs(x: ts.Array) -> None:
    f = ts.jit(lambda x: ts.exp(x) + 1)
    f(x)
    f(2 * x[:2])
    assert len(f.compiled()) == 2
    assert f.why() == "\n\n".join(lowered.why() for lowered in f.compiled())


def test_compile_prints_stages(x: ts.Array, capsys: pytest.CaptureFixture[str]) -> None:
    f = ts.compile(ts.jit(power, static_argnums=1), dump=["graph", "sched", "tirh", "tirt", "llvm"])
    same(f(x, 2), np.asarray(x) ** 2)
    text = capsys.readouterr().out
    heads = [line for line in text.splitlines() if line.startswith("// ") and " of power" in line]
    assert heads == [f"// {s} of power" for s in ("graph", "sched", "tirh", "tirt", "llvm")]
    for part in ("graph.mul", "schedule.", "tile.", "target.", "define"):
        assert part in text
    f(x, 2)
    assert capsys.readouterr().out == ""


def test_compile_as_a_decorator_of_one_stage(
    x: ts.Array, capsys: pytest.CaptureFixture[str]
) -> None:
    ts.compile(lambda x: x + 1, dump="graph")(x)
    assert "graph.add" in capsys.readouterr().out


def test_dump_to_files(x: ts.Array, tmp_path: Any) -> None:
    with ts.config.update(dump="all", dump_dir=str(tmp_path)):
        ts.jit(lambda x: ts.sin(x) + 2)(x)
    assert any("graph.sin" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_each_program_is_dumped_to_a_folder_of_its_own(x: ts.Array, tmp_path: Any) -> None:
    with ts.config.update(dump="sched,tile,llvm", dump_dir=str(tmp_path)):
        ts.jit(lambda x: ts.cos(x) * 5)(x)
        ts.jit(lambda x: ts.cos(x) * 6)(x)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2
    for folder in folders:
        names = sorted(path.name.partition("-")[2] for path in folder.iterdir())
        assert names == ["llvm.ll", "schedule.ir", "tile.ir"]


def test_dump_of_no_stage(x: ts.Array, tmp_path: Any) -> None:
    with (
        ts.config.update(dump="bogus", dump_dir=str(tmp_path)),
        pytest.raises(ValueError, match="config: dump names 'bogus', which is no stage"),
    ):
        ts.jit(lambda x: ts.cos(x) * 7)(x)


def test_static_values_inside_tuples_are_told_apart(x: ts.Array) -> None:
    scale = ts.jit(lambda a, n: a * n[0], static_argnums=1)
    whole = ts.asarray([3])
    assert scale(whole, (2,)).dtype == ts.int64
    assert scale(whole, (2.0,)).dtype == ts.float32
    sign = ts.jit(lambda a, n: ts.copysign(a, n[0]), static_argnums=1)
    assert np.asarray(sign(ts.ones((1,)), (0.0,)))[0] == 1
    assert np.asarray(sign(ts.ones((1,)), (-0.0,)))[0] == -1


# --- errors of the user's own code ------------------------------------------------------------


def test_errors_of_the_function_come_through(x: ts.Array) -> None:
    def f(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ts.jit(f)(x)
    same(ts.jit(lambda x: x + 1)(x), np.asarray(x) + 1)


def test_a_type_error_inside_the_function_is_not_about_the_call(x: ts.Array) -> None:
    def f(x: Any) -> Any:
        return len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="object of type 'int' has no len") as found:
        ts.jit(f)(x)
    assert not isinstance(found.value, ts.TesseraError)


NUMBERS = [
    (3, ts.int32), (2.5, ts.float32), (True, ts.bool), (-0.0, ts.float64), (1.5, ts.bfloat16),
    (float("nan"), ts.float16), (2**63, ts.uint64), (1 + 2j, ts.complex64),
]  # fmt: skip


@pytest.mark.parametrize(("number", "dtype"), NUMBERS)
def test_captured_numbers_are_constants(number: Any, dtype: ts.DType) -> None:
    x, y = ts.asarray(number, dtype=dtype), ts.asarray([number], dtype=dtype)
    f = ts.jit(lambda z: (ts.where(z > 0, x, x), x, y))
    (graph,) = [f.lower(ts.arange(3.0)).graph]
    assert len(graph.args) == 2  # y, which has an axis, and z
    for found, shape in zip(f(ts.arange(3.0)), ((3,), (), (1,)), strict=True):
        assert found.dtype == dtype
        expected = np.broadcast_to(np.asarray(x), shape)
        assert np.asarray(found).tobytes() == expected.tobytes()


def test_captured_numbers_where_arguments_are_counted() -> None:
    number, big = ts.asarray(2.0), ts.arange(3.0)
    donating = ts.jit(lambda x, y: (x * number + big, y), donate_argnums=0)
    x, y = ts.ones(3), ts.zeros(3)
    np.testing.assert_array_equal(donating(x, y)[0], [2, 3, 4])
    inner = ts.jit(lambda x: ts.sum(x * number))
    np.testing.assert_array_equal(ts.grad(inner)(big), [2, 2, 2])
    np.testing.assert_array_equal(ts.vmap(ts.jit(lambda x: x * number))(big), [0, 2, 4])
    np.testing.assert_array_equal(ts.jit(ts.grad(lambda x: inner(x) * number))(big), [4, 4, 4])
    state = ts.Ref(ts.zeros(()))

    @ts.jit
    def counts(x: Any) -> Any:
        state[...] = state[...] + number
        return x * state[...]

    assert [float(counts(ts.asarray(1.0))) for _ in range(3)] == [2.0, 4.0, 6.0]
    with ts.config.update(debug_nans=True), pytest.raises(ts.TesseraError, match="NaN"):
        ts.jit(lambda x: ts.log(x - number))(big)
