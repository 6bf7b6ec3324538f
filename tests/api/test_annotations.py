"""Annotated shapes: what they mean, and that one program serves all sizes."""

# ruff: noqa: F821 -- dims are strings, which ruff takes for names of classes

import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import pytree
from tessera.errors import (
    ConcretizationError,
    DonatedError,
    DTypeError,
    LeafError,
    NotYetError,
    OptionError,
    RetraceError,
    ShapeError,
)
from tests.fake_gpu import fake_gpu
from tests.tolerance import assert_close

jit_module = importlib.import_module("tessera.api.jit")


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(dtype)


# --- the annotations themselves ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (ts.Tensor["B", "S", 128, ts.float32], 'Tensor["B", "S", 128, f32]'),
        (ts.Tensor["B*H", "S//2", "D - 1"], 'Tensor["B*H", "S // 2", "D - 1"]'),
        (ts.Tensor[ts.Array, "B", ...], 'Tensor["B", ...]'),
        (ts.Tensor["...", "D", np.float16], 'Tensor[..., "D", f16]'),
        (ts.Tensor["B", float], 'Tensor["B", f32]'),
        (
            ts.Tensor["B", "D", ts.bfloat16 @ ts.accum(ts.float32)],
            'Tensor["B", "D", bf16 @ accum(f32)]',
        ),
        (ts.Tensor["N", ts.dtype_var("T")], 'Tensor["N", T]'),
        (ts.Tensor[ts.dim("B", 1, 9) * 2 + 1, 3], 'Tensor["2*B + 1", 3]'),
        (ts.Tensor[()], "Tensor[]"),
    ],
)
def test_the_text_of_an_annotation(spec: Any, text: str) -> None:
    assert str(spec) == repr(spec) == text


@pytest.mark.parametrize(
    "items",
    ["S +", "$x", ("B", "f32"), -1, True, 2.5, (ts.float32, "B"), (..., "B", ...), ("4//0",)],
)
def test_what_is_no_annotation(items: Any) -> None:
    with pytest.raises(OptionError, match=r"^Tensor: "):
        ts.Tensor[items]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ts.dim("2"),
        lambda: ts.dim("B", 4, 3),
        lambda: ts.dim("B", -1),
        lambda: ts.dim("B", multiple_of=0),
        lambda: ts.dim("B", 1, 9, anchors=[10]),
        lambda: ts.dim("B", multiple_of=8, anchors=[10]),
        lambda: ts.constrain("B != 2"),
        lambda: ts.constrain("B"),
        lambda: ts.Tensor(3),
    ],
)
def test_what_is_no_condition(wrong: Callable[[], Any]) -> None:
    with pytest.raises(OptionError):
        wrong()


def test_an_accumulator_that_is_not_the_one() -> None:
    with pytest.raises(NotYetError, match="are formed in float32"):
        ts.bfloat16 @ ts.accum(ts.bfloat16)
    with pytest.raises(NotYetError, match="are formed in float64"):
        ts.float64 @ ts.accum(ts.float32)
    with pytest.raises(OptionError, match="saturate: behind int8"):
        ts.int8 @ ts.saturate
    with pytest.raises(OptionError, match="saturate: it decorates a value of type int"):
        ts.saturate(3)  # pyright: ignore[reportArgumentType]


def test_modifiers_of_arguments_are_obeyed() -> None:
    big = ts.asarray([1e8, 1.0, -1e8])

    @ts.jit
    def total(x: ts.Tensor["N", ts.float32 @ ts.accum(ts.float64)]) -> Any:
        return ts.sum(x)

    @ts.jit
    def product(x: ts.Tensor[3, ts.float32 @ ts.accum(ts.float64)], y: Any) -> Any:
        return x @ y, y * 2

    assert float(total(big)) == 1.0
    assert total(big).type == ts.ones(()).type
    assert float(product(big, ts.ones(3))[0]) == 1.0
    assert "%0: f32[N] @ accum(f64)" in str(total.lower(big).stage("graph"))
    graph = str(product.lower(big, ts.ones(3)).stage("graph"))
    assert "graph.dot_general(%2, %3) {contract=[[0], [0]]} : f64[] @ accum(f64)" in graph
    assert "%1: f32[3])" in graph  # nothing is said of the other one
    assert ts.jit(lambda x: total(x) + 1)(big) == 2.0
    assert repr(total).startswith('jit(total(x: Tensor["N", f32 @ accum(f64)]))')

    @ts.jit
    def usual(x: ts.Tensor["N", ts.bfloat16 @ ts.accum(ts.float32)]) -> Any:
        return ts.sum(x)

    assert "@" not in str(usual.lower(ts.ones(3, dtype=ts.bfloat16)).stage("graph"))[7:]

    @ts.jit
    def random(x: ts.Tensor["N", ts.bfloat16 @ ts.stochastic_round], key: Any) -> Any:
        with ts.policy(ts.Policy(), key=key):
            return x * 1.004

    drawn = np.asarray(random(ts.ones(1000, dtype=ts.bfloat16), ts.random.key(0)))
    assert sorted(set(drawn.astype(np.float64).tolist())) == [1.0, 1.0078125]


def test_modifiers_print_as_they_are_written() -> None:
    found = ts.bfloat16 @ ts.accum(ts.float32) @ ts.stochastic_round @ ts.saturate @ ts.fp32_master
    assert str(found) == "bf16 @ accum(f32) @ stochastic_round @ saturate @ fp32_master"
    assert str(ts.bfloat16 @ ts.loss_scale(8)) == "bf16 @ loss_scale(8.0)"
    assert repr(ts.accum(ts.float64)) == "accum(f64)"


def test_modifiers_decorate_functions() -> None:
    @ts.accum(ts.float64)
    @ts.saturate
    def f(x: Any) -> Any:
        return ts.sum(x) * 1e38

    x = ts.asarray([1e8, 1.0, -1e8])
    assert float(f(x)) == float(np.float32(1e38))
    assert float(ts.jit(f)(x * 100)) == np.finfo(np.float32).max
    with ts.policy(ts.policies.Training()):
        assert f(x).dtype is ts.bfloat16


def test_loss_scale_is_taken_away_again() -> None:
    """A gradient that vanishes in float16 does not, where cotangents are scaled."""
    x = ts.full((4,), 1e-4, dtype=ts.float16)

    def loss(w: Any) -> Any:
        return ts.sum((w.astype(ts.float16) * x) * ts.full((4,), 1e-4, dtype=ts.float16))

    w = ts.ones(4)
    assert np.asarray(ts.grad(loss)(w)).max() < 6.1e-8
    scaled = ts.grad(ts.loss_scale(2.0**12)(loss))
    for found in (scaled(w), ts.jit(scaled)(w)):
        assert found.dtype is ts.float32
        assert abs(np.asarray(found) - 1e-8).max() < 1e-10
    assert ts.loss_scale(8)(loss)(w) == loss(w)


@pytest.mark.unchecked
def test_type_checkers_see_arrays(tmp_path: Path) -> None:
    checker = Path(sys.executable).with_name("pyright")
    if not checker.exists():
        pytest.skip("pyright is not installed")
    file = tmp_path / "user.py"
    file.write_text(
        "import tessera as ts\n"
        "B = ts.dim('B', 1, 64)\n"
        "@ts.jit\n"
        "@ts.constrain('S <= 8')\n"
        "def f(\n"
        "    x: ts.Tensor[ts.Array, B, 'S', ts.bfloat16 @ ts.accum(ts.float32)],\n"
        "    y: ts.Tensor[ts.Array, 'S//2', ...] | None = None,\n"
        ") -> ts.Tensor[ts.Array, B, 'S']:\n"
        "    return x\n"
        "reveal_type(f)\n"
    )
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [str(checker), "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "0 errors" in done.stdout, done.stdout
    assert "JitFunction[(x: Array, y: Array | None = None), Array]" in done.stdout


# --- one program for all sizes ----------------------------------------------------------------


def test_sizes_share_a_program() -> None:
    @ts.jit
    def scores(q: ts.Tensor["S", "D"], k: ts.Tensor["T", "D"]) -> ts.Tensor["S", "T"]:
        return ts.softmax(q @ k.T, axis=1)

    for s, t, d in ((2, 3, 4), (1, 1, 1), (70, 33, 17), (5, 64, 1), (70, 33, 17), (70, 33, 17)):
        q, k = array(s, d), array(t, d)
        e = np.exp(q @ k.T)
        assert_close(np.asarray(scores(q, k)), e / e.sum(1, keepdims=True), length=d, factor=8)
    assert scores.cache_info() == (5, 1, None, 1)
    assert scores.lower(ts.ones((2, 3)), ts.ones((4, 3))).graph.dims == ("S", "D", "T")


def test_specialization_cache_hit() -> None:
    """Sizes of one class find the executable of that class, whatever else they are."""
    s = ts.dim("S", 1, 4096, anchors=[128], tile=16)

    @ts.jit
    def f(x: ts.Tensor[s, "D"]) -> ts.Tensor[s]:
        return ts.sum(x, axis=1)

    for rows in (128, 16, 3, 48, 128, 5, 4096):
        for columns in (7, 9):
            x = array(rows, columns)
            assert_close(np.asarray(f(x)), x.sum(1), length=columns)
    assert f.cache_size() == 3 == len(f.specializations())
    assert str(f.specializations()) == (
        "S == 128: compiled\nS % 16 == 0: compiled\nall other sizes: compiled"
    )
    assert [stages.graph.dims for stages in f.compiled()] == [("D",), ("S_16", "D"), ("S", "D")]


def test_the_number_of_executables_is_known_before() -> None:
    m, n = ts.dim("M", 1, 64, anchors=[8, 64]), ts.dim("N", 1, 64, tile=8)

    @ts.jit
    @ts.constrain("M == 2*N")
    def f(x: ts.Tensor[m, n]) -> ts.Tensor[n]:
        return ts.sum(x, axis=0)

    before = [each.conditions for each in f.specializations()]
    # M == 8 says that N is 4, which is no multiple of 8; M == 64 that it is.
    assert before == [("M == 8",), ("M == 64", "N % 8 == 0"), ("N % 8 == 0",), ()]
    for rows in range(2, 65, 2):
        assert f(array(rows, rows // 2)).shape == (rows // 2,)
    assert f.cache_size() == len(before)


def test_max_specializations() -> None:
    s = ts.dim("S", tile=4)

    @ts.jit(max_specializations=1)
    def f(x: ts.Tensor[s]) -> ts.Array:
        return x + 1

    assert f(ts.ones(8)).shape == (8,)
    assert f(ts.ones(12)).shape == (12,)
    with pytest.raises(RetraceError, match="all other sizes, by a call with f32\\[5\\]"):
        f(ts.ones(5))
    with pytest.raises(OptionError, match="max_specializations"):
        ts.jit(f.function, max_specializations=0)


def test_max_specializations_without_annotations() -> None:
    f = ts.jit(lambda x: x + 1, max_specializations=1)
    assert f(ts.ones(8)).shape == (8,)
    with pytest.raises(RetraceError, match="max_specializations=1"):
        f(ts.ones(5))


def test_dtypes_and_unannotated_arguments_are_static() -> None:
    @ts.jit
    def f(x: ts.Tensor["N"], y: Any, scale: float = 2.0) -> Any:
        return x * scale + ts.sum(y)

    for n in (3, 4):
        assert f(ts.ones(n), ts.ones(2)).shape == (n,)
    assert f.cache_size() == 1
    f(ts.ones(5), ts.ones(3))
    f(ts.ones(5, dtype=ts.float64), ts.ones(3))
    assert f.cache_size() == 3


def test_static_arguments() -> None:
    @ts.jit(static_argnames="n")
    def f(x: ts.Tensor["N"], n: int) -> ts.Tensor["N", "K"]:
        return x[:, None] * ts.arange(n)

    assert [f(ts.ones(m), n=n).shape for m, n in ((2, 3), (4, 3), (4, 2))] == [
        (2, 3),
        (4, 3),
        (4, 2),
    ]
    assert f.cache_size() == 2


def test_dims_at_dots_are_as_they_are() -> None:
    @ts.jit
    def f(x: ts.Tensor[..., "D"], w: ts.Tensor["D", "E"]) -> ts.Tensor[..., "E"]:
        return x @ w

    for lead in ((), (2,), (2, 3), (2,)):
        for d in (3, 4):
            assert f(ts.ones((*lead, d)), ts.ones((d, 5))).shape == (*lead, 5)
    assert f.cache_size() == 3


def test_the_body_is_traced_once_and_without_sizes() -> None:
    seen: list[Any] = []

    @ts.function
    def f(x: ts.Tensor["B", "D"]) -> ts.Tensor["B", "2*D"]:
        seen.append(x.shape)
        return ts.concat([x, x], axis=1)

    for b in range(1, 6):
        assert f(ts.ones((b, b + 1))).shape == (b, 2 * b + 2)
    assert [str(d) for d in seen[0]] == ["B", "D"]
    assert len(seen) == 1


# --- trees ------------------------------------------------------------------------------------


class Attention(NamedTuple):
    q: ts.Tensor["D", "D"]
    k: Annotated[Any, ts.Tensor["D", "D"]]
    name: Any = None


@pytree.register_dataclass
@dataclass
class Block:
    attn: Attention
    w: ts.Tensor["D", "F"]
    more: dict[str, list[ts.Tensor["F"]]]


def test_trees() -> None:
    @ts.jit
    def f(
        block: Block, x: ts.Tensor["B", "D"], mask: ts.Tensor["B"] | None = None
    ) -> tuple[ts.Tensor["B", "F"], dict[str, ts.Tensor["B"]]]:
        y = (x @ block.attn.q + x @ block.attn.k) @ block.w + block.more["b"][0]
        return (y if mask is None else y * mask[:, None]), {"sum": ts.sum(y, axis=1)}

    def block(d: int, k: int, f: int) -> Block:
        attn = Attention(ts.ones((d, d)), ts.ones((d, k)))
        return Block(attn, ts.ones((d, f)), {"b": [ts.ones(f)]})

    for d in (2, 3):
        y, aux = f(block(d, d, 4), ts.ones((5, d)))
        assert (y.shape, aux["sum"].shape) == ((5, 4), (5,))
        assert float(y[0, 0]) == 2 * d * d + 1
    assert f.cache_size() == 1
    f(block(2, 2, 4), ts.ones((5, 2)), ts.ones(5))
    assert f.cache_size() == 2
    with pytest.raises(
        ShapeError, match=r'`block.attn.k: dim 1 "D"` is 3, but `block.attn.q: dim 0'
    ):
        f(block(2, 3, 4), ts.ones((5, 2)))
    attn = Attention(*[ts.ones((2, 2))] * 2)
    with pytest.raises(ShapeError, match=r"`block.more\['b'\]\[0\]: dim 0"):
        f(Block(attn, ts.ones((2, 4)), {"b": [ts.ones(3)]}), ts.ones((5, 2)))
    with pytest.raises(LeafError, match="`mask` is of type list, and no array"):
        f(block(2, 2, 4), ts.ones((5, 2)), [ts.ones(5)])


def test_more_arguments() -> None:
    @ts.jit
    def f(*xs: ts.Tensor["N"], **named: ts.Tensor["N"]) -> ts.Tensor["N"]:
        return sum(xs) + named["y"]  # pyright: ignore[reportReturnType]

    assert f(ts.ones(3), ts.ones(3), y=ts.ones(3)).shape == (3,)
    with pytest.raises(ShapeError, match=r'`xs\[1\]: dim 0 "N"` is 4, but `xs\[0\]'):
        f(ts.ones(3), ts.ones(4), y=ts.ones(3))
    with pytest.raises(ShapeError, match='`y: dim 0 "N"` is 4'):
        f(ts.ones(3), ts.ones(3), y=ts.ones(4))


# --- names, expressions, conditions -----------------------------------------------------------


def test_expressions_give_names() -> None:
    @ts.jit
    def f(x: ts.Tensor["2*B"], y: ts.Tensor["B + C"], z: ts.Tensor["C"]) -> ts.Tensor["B"]:
        return x[: z.shape[0] * 0 + x.shape[0] // 2] + y[: x.shape[0] // 2]

    assert f(ts.ones(6), ts.ones(5), ts.ones(2)).shape == (3,)
    for sizes, text in (
        ((7, 5, 2), '`x: dim 0 "2\\*B"` is 7'),
        ((6, 6, 2), "is 6, but B \\+ C is 5: B is 3 "),
    ):
        with pytest.raises(ShapeError, match=text):
            f(*[ts.ones(n) for n in sizes])


def test_a_name_that_no_argument_gives() -> None:
    @ts.jit
    def f(x: ts.Tensor["B*C"]) -> ts.Array:
        return x

    with pytest.raises(ShapeError, match="do not say what B is"):
        f(ts.ones(4))


def test_constraints_are_used_in_proofs() -> None:
    @ts.jit
    @ts.constrain("D % 64 == 0", "H == D // 64", "S <= 8192", "B in 1..=4096")
    def split_heads(
        x: ts.Tensor["B", "S", "D"], slopes: ts.Tensor["H"]
    ) -> ts.Tensor["B", "H", "S", 64]:
        b, s, d = x.shape
        heads = ts.permute_dims(ts.reshape(x, (b, s, d // 64, 64)), (0, 2, 1, 3))
        back = ts.reshape(ts.permute_dims(heads, (0, 2, 1, 3)), (b, s, 64 * (d // 64))) + x
        return heads * slopes[:, None, None] + 0 * ts.sum(back)

    x = array(2, 3, 128)
    found = split_heads(x, np.float32([1, 2]))
    wanted = x.reshape(2, 3, 2, 64).transpose(0, 2, 1, 3) * np.float32([1, 2])[:, None, None]
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)
    for sizes in ((2, 3, 100), (2, 8193, 64), (2, 3, 192)):
        with pytest.raises(ShapeError, match="asked for at"):
            split_heads(ts.ones(sizes), ts.ones(2))


def test_equal_names() -> None:
    @ts.jit
    @ts.constrain("S == T")
    def f(x: ts.Tensor["B", "S"], y: ts.Tensor["B", "T"]) -> ts.Tensor["B", "T"]:
        return x + y

    assert f(ts.ones((2, 3)), ts.ones((2, 3))).shape == (2, 3)
    assert f.compiled()[0].graph.dims == ("B", "S")
    with pytest.raises(ShapeError, match=r"S is 3 .* and T is 4"):
        f(ts.ones((2, 3)), ts.ones((2, 4)))


def test_constrain_above_jit() -> None:
    @ts.constrain("N >= 2")
    @ts.jit
    def f(x: ts.Tensor["N"]) -> ts.Array:
        return x

    with pytest.raises(ShapeError, match="N is 1"):
        f(ts.ones(1))


def test_dtype_variables() -> None:
    kind = ts.dtype_var("T", ts.float32, ts.bfloat16)

    @ts.jit
    def f(x: ts.Tensor["N", kind], y: ts.Tensor["N", kind]) -> ts.Tensor["N", kind]:
        return x + y

    assert f(ts.ones(3), ts.ones(3)).dtype is ts.float32
    assert f(*[ts.ones(3, dtype=ts.bfloat16)] * 2).dtype is ts.bfloat16
    with pytest.raises(DTypeError, match="`y` has dtype bfloat16"):
        f(ts.ones(3), ts.ones(3, dtype=ts.bfloat16))
    with pytest.raises(DTypeError, match="`x` has dtype int32"):
        f(*[ts.ones(3, dtype=ts.int32)] * 2)


def test_invalid_broadcast() -> None:
    """Two names never broadcast: nobody knows that one of them is 1."""

    @ts.jit
    def f(x: ts.Tensor["B", "S"], y: ts.Tensor["B", "T"]) -> ts.Array:
        return x + y

    with pytest.raises(ShapeError, match="differ in dim -1: S and T"):
        f(ts.ones((2, 3)), ts.ones((2, 3)))

    @ts.jit
    def g(x: ts.Tensor["B", "S"], y: ts.Tensor["B", 1]) -> ts.Tensor["B", "S"]:
        return x + y

    assert g(ts.ones((2, 3)), ts.ones((2, 1))).shape == (2, 3)


def test_invalid_constraints() -> None:
    @ts.jit
    @ts.constrain("S % 8 == 0", "S < 8")
    def f(x: ts.Tensor["S"]) -> ts.Array:
        return x

    with pytest.raises(OptionError, match="no sizes satisfy"):
        f(ts.ones(8))

    @ts.jit
    @ts.constrain("S < 8")
    def g(x: Any) -> Any:
        return x

    with pytest.raises(OptionError, match="is about no dim of g"):
        g(ts.ones(8))


def test_a_result_that_is_not_what_it_says() -> None:
    @ts.jit
    def f(x: ts.Tensor["B", "D"]) -> ts.Tensor["D", "B"]:
        return x * 2

    with pytest.raises(ShapeError, match='`result: dim 0 "D"` is B, but `x: dim 1 "D"` is D'):
        f(ts.ones((2, 2)))


# --- what the body asks for -------------------------------------------------------------------


def test_guards() -> None:
    @ts.jit
    def f(x: ts.Tensor["B", "S"]) -> ts.Array:
        return ts.max(x, axis=1)[3] + x[-2, 0]

    assert f(ts.ones((4, 1))).shape == ()
    with pytest.raises(ShapeError, match="B is 3") as caught:
        f(ts.ones((3, 1)))
    assert "rule: B >= 4, asked for at" in str(caught.value)

    @ts.jit
    @ts.constrain("B >= 4")
    def g(x: ts.Tensor["B", "S"]) -> ts.Array:
        return x[3]

    assert g.generic is not None
    g(ts.ones((4, 1)))
    (program,) = g.generic.programs()
    assert not program.guards
    assert [str(c) for c in program.facts.proofs] != []


def test_empty_arrays_if_they_are_allowed() -> None:
    @ts.jit
    @ts.constrain("B >= 0")
    def f(x: ts.Tensor["B", "S"]) -> ts.Tensor["B"]:
        return ts.max(x, axis=1)

    assert f(ts.ones((0, 2))).shape == (0,)

    @ts.jit
    @ts.constrain("S >= 0")
    def g(x: ts.Tensor["B", "S"]) -> ts.Tensor["B"]:
        return ts.max(x, axis=1)

    assert g(ts.ones((2, 1))).shape == (2,)
    with pytest.raises(ShapeError, match="S is 0"):
        g(ts.ones((2, 0)))
    with pytest.raises(ShapeError, match="B is 0"):
        g(ts.ones((0, 1)))


def test_python_decisions_are_proved_or_refused() -> None:
    @ts.jit
    @ts.constrain("4 <= B <= 8")
    def f(x: ts.Tensor["B"]) -> ts.Array:
        return x * 2 if x.shape[0] > 3 and not x.shape[0] >= 9 else x

    assert float(f(ts.ones(5))[0]) == 2

    @ts.jit
    def g(x: ts.Tensor["B"]) -> ts.Array:
        return x if x.shape[0] < 4 else x * 2

    with pytest.raises(ConcretizationError, match="whether B < 4 is not known"):
        g(ts.ones(5))


@pytest.mark.parametrize(
    "use",
    [
        lambda x: range(x.shape[0]),
        lambda x: float(x.shape[0]),
        lambda x: 1 / x.shape[0],
        lambda x: x.shape[0] / 2,
        lambda x: x.shape[0] ** 0.5,
    ],
)
def test_a_dim_has_no_number(use: Callable[[Any], Any]) -> None:
    def f(x: ts.Tensor["B"]) -> Any:
        return use(x)

    with pytest.raises(ConcretizationError, match="use an array"):
        ts.jit(f)(ts.ones(5))


def test_a_dim_as_an_array() -> None:
    @ts.jit
    def f(x: ts.Tensor["B", "D"]) -> Any:
        d = x.shape[1]
        return x / ts.sqrt(ts.asarray(d, dtype=ts.float32)), x * d, ts.asarray(d), d * x - d

    for d in (1, 4, 9):
        x = array(2, d)
        a, b, c, e = map(np.asarray, f(x))
        np.testing.assert_allclose(a, x / np.sqrt(np.float32(d)), rtol=1e-6)
        np.testing.assert_allclose(b, x * d)
        assert b.dtype == np.float32
        assert (c, c.dtype) == (d, np.int64)
        np.testing.assert_allclose(e, x * d - d, rtol=1e-6)


# --- transforms -------------------------------------------------------------------------------


def loss(x: ts.Tensor["B", "D"], w: ts.Tensor["D", "E"]) -> ts.Tensor[()]:
    return ts.sum(ts.tanh(x @ w) ** 2)


def test_transforms_inside() -> None:
    @ts.jit
    def step(x: ts.Tensor["B", "D"], w: ts.Tensor["D", "E"]) -> ts.Tensor["D", "E"]:
        slopes = ts.grad(loss, argnums=1)(x, w)
        return w - slopes + ts.jacfwd(lambda v: loss(x, v))(w) * 0

    for b, d, e in ((2, 3, 4), (5, 6, 1)):
        x, w = array(b, d), array(d, e)
        h = np.tanh(x @ w)
        wanted = w - x.T @ (2 * h * (1 - h * h))
        assert_close(np.asarray(step(x, w)), wanted, length=b * d, factor=8)
    assert step.cache_size() == 1


def test_transforms_outside() -> None:
    f = ts.jit(loss)
    x, w = ts.ones((2, 3)), ts.ones((3, 4))
    assert ts.grad(f, argnums=1)(x, w).shape == (3, 4)
    assert ts.vmap(f, in_axes=(0, None))(ts.ones((5, 2, 3)), w).shape == (5,)
    with pytest.raises(ShapeError, match='`w: dim 0 "D"` is 4'):
        ts.grad(f)(x, ts.ones((4, 4)))

    @ts.jit
    def outer(x: ts.Tensor["N", "M"]) -> ts.Array:
        return f(x, x.T) + f(x, ts.ones((x.shape[1], 2)))

    assert outer(x).shape == ()

    @ts.jit
    def wrong(x: ts.Tensor["N", "M"]) -> ts.Array:
        return f(x, x)

    with pytest.raises(ShapeError, match='loss: `w: dim 0 "D"` is N, but `x: dim 1 "D"` is M'):
        wrong(ts.ones((3, 3)))


def test_control_flow() -> None:
    @ts.jit
    def f(x: ts.Tensor["T", "D"]) -> tuple[ts.Tensor["D"], ts.Tensor["T", "D"]]:
        def step(c: Any, row: Any) -> Any:
            return c + row, ts.cond(ts.sum(c) > 0, lambda: c * row, lambda: row)

        return ts.scan(step, ts.zeros(x.shape[1]), x)

    for t, d in ((5, 3), (1, 7)):
        x = np.abs(array(t, d))
        c, ys = f(x)
        np.testing.assert_allclose(np.asarray(c), x.sum(0), rtol=1e-5)
        before = np.vstack([np.zeros((1, d), np.float32), x.cumsum(0)[:-1]])
        wanted = np.where(before.sum(1, keepdims=True) > 0, before * x, x)
        np.testing.assert_allclose(np.asarray(ys), wanted, rtol=1e-5)
    assert f.cache_size() == 1


# --- programs on random sizes -----------------------------------------------------------------


@ts.constrain("D % 4 == 0", "D <= 64")
def block(
    x: ts.Tensor["B", "S", "D"],
    wqkv: ts.Tensor["D", "3*D"],
    wo: ts.Tensor["D", "D"],
    w1: ts.Tensor["D", "F"],
    w2: ts.Tensor["F", "D"],
) -> ts.Tensor["B", "S", "D"]:
    b, s, d = x.shape
    q, k, v = [
        ts.permute_dims(ts.reshape(t, (b, s, 4, d // 4)), (0, 2, 1, 3))
        for t in ts.split(ts.nn.rmsnorm_safe(x) @ wqkv, 3, axis=-1)
    ]
    mask = ts.arange(s)[:, None] >= ts.arange(s)[None, :]
    scores = ts.where(mask, q @ ts.matrix_transpose(k), -1e9)
    y = ts.permute_dims(ts.softmax(scores, axis=-1) @ v, (0, 2, 1, 3))
    x = x + ts.reshape(y, (b, s, d)) @ wo
    return x + ts.nn.gelu(ts.nn.rmsnorm_safe(x) @ w1) @ w2


GENERIC = ts.jit(block)
STATIC = ts.jit(lambda *args: block(*args))


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 6), st.integers(1, 40))
def test_a_generic_program_computes_what_a_static_one_does(b: int, s: int, d: int, f: int) -> None:
    d *= 4
    shapes = [(b, s, d), (d, 3 * d), (d, d), (d, f), (f, d)]
    args = [array(*shape) for shape in shapes]
    found, wanted = GENERIC(*args), STATIC(*args)
    assert_close(np.asarray(found), np.asarray(wanted), length=d + f, factor=8)
    assert GENERIC.cache_size() == 1


def test_a_thousand_shapes_of_a_block_compile_once() -> None:
    rng = np.random.default_rng(0)
    weights = {d: [array(d, 3 * d), array(d, d), array(d, 8), array(8, d)] for d in (4, 8, 16)}
    for _ in range(1000):
        b, s, d = int(rng.integers(1, 9)), int(rng.integers(1, 30)), int(rng.choice([4, 8, 16]))
        assert GENERIC(np.ones((b, s, d), np.float32), *weights[d]).shape == (b, s, d)
    assert GENERIC.cache_size() == len(GENERIC.specializations()) == 1


def test_an_unannotated_function_pays_nothing() -> None:
    f = ts.jit(lambda x: x + 1)
    f(ts.ones(3))
    assert f.generic is None
    assert f.specializations() == ()
    assert [stages.graph.dims for stages in f.compiled()] == [()]


# --- values in the middle, and what is shown --------------------------------------------------


def test_ensure() -> None:
    @ts.jit
    def f(x: ts.Tensor["B", "D"]) -> ts.Array:
        y = ts.ensure(ts.concat([x, x]), ts.Tensor["2*B", "D", ts.float32])
        parts = ts.ensure({"y": y, "z": [x[0]]}, {"y": ts.Tensor["N", "D"], "z": [ts.Tensor["D"]]})
        return ts.sum(parts["y"])

    assert float(f(ts.ones((2, 3)))) == 12

    @ts.jit
    def g(x: ts.Tensor["B", "D"]) -> ts.Array:
        return ts.ensure(x.T, ts.Tensor["B", "D"])

    with pytest.raises(ShapeError, match='`value: dim 0 "B"` is D, but B in the annotations'):
        g(ts.ones((2, 2)))
    assert ts.ensure(ts.ones((2, 2)), ts.Tensor["A", "A"]).shape == (2, 2)
    with pytest.raises(ShapeError, match='`value: dim 1 "A"` is 3, but `value: dim 0 "A"` is 2'):
        ts.ensure(ts.ones((2, 3)), ts.Tensor["A", "A"])
    with pytest.raises(ShapeError, match="A is 3"):
        ts.ensure(ts.ones(3), ts.Tensor[ts.dim("A", 4)])
    with pytest.raises(DTypeError, match="dtype float32"):
        ts.ensure(ts.ones(3), ts.Tensor[3, ts.float64])
    with pytest.raises(OptionError, match="the annotation is"):
        ts.ensure(ts.ones(3), int)


def test_annotations_are_shown() -> None:
    @ts.function
    def f(
        x: ts.Tensor["N", ts.float32], n: int, *, p: dict[str, ts.Tensor["N"]] | None = None
    ) -> ts.Tensor["N"]:
        return x

    shown = 'f(x: Tensor["N", f32], n, p: dict[str, Tensor["N"]] | None) -> Tensor["N"]'
    assert repr(f) == f"function({shown}), 0 compiled"
    assert repr(ts.jit(loss)) == (
        'jit(loss(x: Tensor["B", "D"], w: Tensor["D", "E"]) -> Tensor[]), 0 compiled'
    )


def test_why_says_what_was_proved() -> None:
    @ts.jit
    @ts.constrain("N >= 3")
    def f(x: ts.Tensor["N"]) -> ts.Array:
        return x[2] + x[4]

    f(ts.ones(5))
    lines = f.why().splitlines()
    assert lines[0].startswith("N >= 3: proved, for ")
    assert lines[1].startswith("N >= 5: asked of each call, for ")


def test_widths_of_indices_follow_from_bounds() -> None:
    def indexed(x: Any, i: Any) -> Any:
        return ts.take(x, i, axis=0)

    @ts.jit
    def wide(x: ts.Tensor["S", "D"], i: ts.Tensor["N", ts.int32]) -> ts.Tensor["N", "D"]:
        return indexed(x, i)

    @ts.jit
    @ts.constrain("S <= 8192")
    def narrow(x: ts.Tensor["S", "D"], i: ts.Tensor["N", ts.int32]) -> ts.Tensor["N", "D"]:
        return indexed(x, i)

    x, i = array(4, 3), np.array([1, -1, 3], np.int32)
    for f, found in ((wide, True), (narrow, False)):
        np.testing.assert_array_equal(np.asarray(f(x, i)), x[i])
        assert ("graph.cast(%1)" in str(f.lower(x, i).traced)) is found
    assert "S <= 8192: proved, for" in narrow.why()
    assert "S <= " not in wide.why()


def test_annotations_that_are_text() -> None:
    names: dict[str, Any] = {"ts": ts}
    exec(
        "from __future__ import annotations\n"
        "from typing import NamedTuple\n"
        "B = ts.dim('B', 2, 3)\n"
        "class P(NamedTuple):\n"
        "    w: ts.Tensor['D', 'E']\n"
        "    unknown: Missing = None\n"
        "@ts.jit\n"
        "def f(x: ts.Tensor[B, 'D'], p: P, other: Missing = None) -> ts.Tensor[B, 'E']:\n"
        "    return x @ p.w\n",
        {"__name__": "tests.api.test_annotations", **names},
        names,
    )
    # The class is looked up in the module that it says it is from.
    sys.modules["tests.api.test_annotations"].__dict__.setdefault("B", names["B"])
    p = names["P"](ts.ones((4, 5)))
    names["f"].function.__globals__.update(names)
    assert names["f"](ts.ones((2, 4)), p).shape == (2, 5)
    with pytest.raises(ShapeError, match=r"`p\.w: dim 0"):
        names["f"](ts.ones((2, 3)), p)


def test_forbidden_rank_promotion() -> None:
    with ts.config.update(rank_promotion="forbid"):
        with pytest.raises(ShapeError, match="of different numbers of dims"):
            ts.ones((2, 3)) + ts.ones(3)
        with pytest.raises(ShapeError, match="of different numbers of dims"):
            ts.jit(lambda x, y: x * y)(ts.ones((2, 3)), ts.ones(3))
        assert (ts.ones((2, 3)) + ts.ones((1, 3)) + 1 + ts.asarray(1.0)).shape == (2, 3)
        assert ts.nn.dense(ts.ones((4, 2, 3)), ts.ones((3, 5)), ts.ones(5)).shape == (4, 2, 5)
    assert (ts.ones((2, 3)) + ts.ones(3)).shape == (2, 3)


# --- together with other things ---------------------------------------------------------------


def test_what_one_trace_assumes_is_not_taken_for_granted_in_another() -> None:
    inner = ts.jit(lambda x: x[4])

    @ts.jit
    @ts.constrain("N >= 5")
    def safe(x: ts.Tensor["N"]) -> ts.Array:
        return inner(x)

    @ts.jit
    def guarded(x: ts.Tensor["N"]) -> ts.Array:
        return inner(x)

    assert float(safe(ts.arange(6))) == float(guarded(ts.arange(6))) == 4
    with pytest.raises(ShapeError, match="N is 3"):
        guarded(ts.arange(3))


def test_donated_arguments() -> None:
    @ts.jit(donate_argnums=0)
    def f(x: ts.Tensor["N"]) -> ts.Tensor["N"]:
        return x * 2

    for n in (3, 4, 4, 4):
        x = ts.ones(n)
        assert float(f(x)[n - 1]) == 2
        with pytest.raises(DonatedError):
            _ = x + 1


def test_threads_share_programs() -> None:
    @ts.jit
    def f(x: ts.Tensor["N", "D"], y: ts.Tensor["D"]) -> ts.Tensor["N"]:
        return ts.sum(x * y, axis=1)

    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            x = array(int(rng.integers(1, 40)), int(rng.integers(1, 40)))
            if not np.allclose(np.asarray(f(x, x[0])), (x * x[0]).sum(1), atol=1e-4):
                wrong.append(x.shape)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert f.cache_size() == 1


def test_watched_calls_and_devices_are_checked() -> None:
    @ts.jit
    def f(x: ts.Tensor["N"], y: ts.Tensor["N"]) -> ts.Tensor["N"]:
        return x + y

    with ts.debug.nans():
        assert f(ts.ones(3), ts.ones(3)).shape == (3,)
        with pytest.raises(ShapeError, match='`y: dim 0 "N"` is 4'):
            f(ts.ones(3), ts.ones(4))
    with fake_gpu():
        x, y = ts.device_put(np.ones(3, np.float32), "cuda:0"), np.ones(4, np.float32)
        assert str(f(x, x).device) == "cuda:0"
        with pytest.raises(ShapeError, match='`y: dim 0 "N"` is 4'):
            f(x, ts.device_put(y, "cuda:0"))


def test_many_shapes_are_forgotten_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_module, "_MOST_SHAPES", 8)

    @ts.jit
    def f(x: ts.Tensor["N"]) -> ts.Tensor["N"]:
        return x + 1

    for _ in range(2):
        for n in range(1, 30):
            assert f(ts.zeros(n)).shape == (n,)
    assert f.cache_size() == 1
    f.clear_cache()
    assert f.cache_size() == 0
    assert f(ts.zeros(3)).shape == (3,)


def test_sizes_that_are_equal_by_conditions_have_one_expression() -> None:
    @ts.jit
    @ts.constrain("D % 8 == 0")
    def f(
        x: ts.Tensor["S", "D"], y: ts.Tensor["S - 1", "D"]
    ) -> tuple[ts.Tensor["S - 1", "D"], ts.Array]:
        c = ts.exp(y)
        slopes = ts.grad(lambda v: ts.sum(v[1:] * c))(x)
        return x[1:] + c + x[:-1], slopes

    for s in (2, 5, 9):
        x = array(s, 8)
        found, slopes = f(x, x[1:])
        np.testing.assert_allclose(np.asarray(found), x[1:] + np.exp(x[1:]) + x[:-1], rtol=1e-5)
        padded = np.pad(np.exp(x[1:]), ((1, 0), (0, 0)))
        np.testing.assert_allclose(np.asarray(slopes), padded, rtol=1e-5)
    assert f.cache_size() == 1
    (stages,) = f.compiled()
    with ts.config.update(verify=True):
        again = f.lower(x, x[1:])
    assert "min(" not in str(again.graph)
    assert str(again.graph) == str(stages.graph)


def test_annotations_of_others_are_left_alone() -> None:
    class Node:
        pass

    Node.__annotations__ = {"next": "Node | None", "other": "Other[1/0]", "value": "1/0"}

    def f(x: Any, y: Any = 1, *, node: Node | None = None) -> Any:
        return x + y

    f.__annotations__.update(x="1/0", y="missing.Name", **{"return": "[][3]"})
    assert ts.jit(f).generic is None
    assert float(ts.jit(f)(2.0)) == 3


@ts.constrain("D >= 2")
def bounded(x: ts.Tensor["B", "D"], w: ts.Tensor["D"]) -> ts.Tensor[()]:
    return ts.sum(ts.tanh(x @ w))


def test_what_transforms_make_has_other_shapes() -> None:
    x, w = array(3, 2), array(2)
    assert ts.jit(ts.grad(bounded, argnums=1))(x, w).shape == (2,)
    assert ts.jit(ts.value_and_grad(bounded))(x, w)[1].shape == (3, 2)
    assert ts.jit(ts.vmap(bounded, in_axes=(0, None)))(array(4, 3, 2), w).shape == (4,)
    assert ts.jit(ts.jacfwd(bounded, argnums=1))(x, w).shape == (2,)
    assert ts.jit(ts.hessian(bounded, argnums=1))(x, w).shape == (2, 2)
    vmapped = ts.jit(ts.vmap(ts.jit(bounded), in_axes=(0, None)))
    assert vmapped(array(4, 3, 2), w).shape == (4,)
    with pytest.raises(ShapeError, match="D is 1"):
        vmapped(array(4, 3, 1), array(1))


def test_what_keeps_the_arguments_keeps_annotations() -> None:
    for fn in (ts.autodiff(bounded), ts.checkpoint(bounded), ts.jit(bounded)):
        f = ts.jit(fn)
        for b in (2, 3, 5):
            f(array(b, 2), array(2))
        assert f.cache_size() == 1
        with pytest.raises(ShapeError, match="D is 1"):
            f(array(4, 1), array(1))


def test_loops_over_a_dim() -> None:
    @ts.jit
    def f(x: ts.Tensor["N", "D"]) -> tuple[ts.Tensor["D"], ts.Tensor["D"]]:
        zero = ts.zeros(x.shape[1])
        rows = ts.fori_loop(0, x.shape[0], lambda i, c: c + x[i], zero)
        going = ts.while_loop(
            lambda c: c[1] < x.shape[0], lambda c: (c[0] + x[c[1]], c[1] + 1), (zero, 0)
        )
        return rows, going[0]

    for n in (1, 4, 7):
        x = array(n, 3)
        for found in f(x):
            np.testing.assert_allclose(np.asarray(found), x.sum(0), rtol=1e-5)
    assert f.cache_size() == 1


def test_a_dim_prints_its_range_once_and_its_expression():
    assert repr(ts.dim("B", 1, 4096, multiple_of=8)) == "dim(B in 1..=4096, B % 8 == 0)"
    assert repr(ts.dim("B", 2) * 2) == "dim('2*B', B >= 2)"


def test_names_that_equations_give():
    @ts.jit
    @ts.constrain("N == 2*M", "N == 4*K")
    def f(x: ts.Tensor["N"]) -> ts.Tensor["M"]:
        return ts.sum(ts.ensure(ts.reshape(x, (-1, 2)), ts.Tensor["M", 2]), axis=1)

    for n in (4, 8, 12, 400, 4, 8):  # from the third call on native code runs them
        x = array(n)
        assert_close(f(x), x.reshape(-1, 2).sum(1))
    assert f.cache_info().misses == 1
    for n in (5, 6, 7):
        with pytest.raises(ShapeError, match="asked for at"):
            f(array(n))
    assert f.memory(N=8).peak == 8 * 4 + 4 * 4
    assert f.lower(array(8), machine="sm_90a").graph.args[0].type.rank == 1


def test_an_equation_with_a_name_of_an_argument_that_is_left_out():
    @ts.jit
    @ts.constrain("S == 2*T")
    def f(x: ts.Tensor["S"], mask: ts.Tensor["T"] | None = None):
        return x * 2 if mask is None else x * ts.concat([mask, mask])

    assert_close(f(array(4)), array(4) * 2)
    assert_close(f(array(4), np.ones(2, np.float32)), array(4))
    with pytest.raises(ShapeError, match="S == 2\\*T"):
        f(array(5))


def test_conditions_on_a_result_are_asked_of_calls():
    @ts.jit
    @ts.constrain("M <= 8", "M % 4 == 0")
    def f(x: ts.Tensor["N"]) -> ts.Tensor["M"]:
        return ts.concat([x, x])

    for n in (2, 4, 2, 4, 2):
        assert f(array(n)).shape == (2 * n,)
    for n in (3, 6):
        with pytest.raises(ShapeError, match="N is"):
            f(array(n))
    with pytest.raises(ShapeError, match="M is 6"):
        ts.grad(lambda x: ts.sum(f(x)))(ts.asarray(array(3)))

    @ts.jit
    def g(x: ts.Tensor["N"]) -> ts.Tensor["M"]:
        return x[:0]

    assert g(array(3)).shape == (0,)
