"""Convolutions and pooling against loops over all places of the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.graph.namespace import convolution
from tessera.graph.ops.windows import windows
from tests.graph.convolving import convolved, same_pads, windows_of
from tests.graph.namespace_cases import engine, host, same, sample

__all__ = ["engine"]


CONVOLUTIONS: list[Any] = [
    ((2, 3, 7), (4, 3, 3), (2,), [(1, 2)], (1,), (1,), 1, 1),
    ((1, 2, 6, 5), (3, 2, 3, 2), (1, 2), "SAME", (1, 1), (1, 1), 1, 1),
    ((2, 4, 5, 5), (6, 2, 2, 2), (1, 1), [(0, 1), (-1, 2)], (2, 1), (1, 2), 2, 1),
    ((4, 2, 6), (6, 2, 3), (1,), [(1, 1)], (1,), (1,), 1, 2),
    ((2, 3, 6), (3, 1, 3), (1,), "SAME", (1,), (1,), 3, 1),
    ((1, 2, 3, 4, 3), (2, 2, 2, 1, 3), (1, 2, 1), [(0, 0), (1, 0), (2, 2)], (1, 1, 3), (2, 1, 1),
     1, 1),
    ((2, 3, 4, 3), (2, 3, 4, 3), (1, 1), [(2, 2), (1, 2)], (2, 2), (1, 1), 1, 1),
    ((2, 4, 3, 5), (6, 2, 2, 3), (1, 2), [(3, -1), (1, 0)], (3, 1), (1, 2), 2, 1),
    ((4, 2, 5), (6, 2, 5), (1,), [(4, 0)], (4,), (1,), 1, 2),
    ((2, 3, 6), (3, 1, 1), (1,), [(1, 1)], (2,), (1,), 3, 1),
    ((3, 2), (4, 2), (), [], (), (), 1, 1),
    ((2, 0, 5), (3, 0, 2), (1,), [(0, 0)], (1,), (1,), 1, 1),
    ((2, 1, 2), (3, 1, 4), (1,), [(0, 0)], (1,), (1,), 1, 1),
    ((0, 1, 4), (3, 1, 4), (1,), [(0, 0)], (1,), (1,), 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: "x".join(map(str, c[0])))
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "complex64", "int32"])
def test_conv_general(case: Any, dtype: str) -> None:
    shape, window, strides, padding, base, dilation, groups, batches = case
    x, w = sample(dtype, shape, low=-3), sample(dtype, window, 1, low=-3)
    exact = "complex128" if dtype == "complex64" else "float64"
    wanted = convolved(
        x.astype(exact), w.astype(exact), strides, padding, base, dilation, groups, batches
    )
    found = ts.conv_general(
        ts.asarray(x), ts.asarray(w), strides, padding, base, dilation, None, groups, batches
    )
    # Sums of products of eighths are exact but for the rounding of the result.
    same(found, wanted.astype(x.dtype), rtol=1e-2 if dtype == "bfloat16" else 1e-6)


@pytest.mark.parametrize("names", [("NCHW", "OIHW", "NCHW"), ("CHNW", "IOHW", "HNCW")])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_many_features_and_few_places_have_features_last(
    monkeypatch: pytest.MonkeyPatch, names: Any, strides: Any
) -> None:
    x, w = sample("float64", (3, 5, 6, 4)), sample("float64", (7, 5, 3, 2), 1)
    x, w = [np.moveaxis(v, range(4), [n.index(c) for c in o]) for v, n, o in
            zip((x, w), names[:2], ("NCHW", "OIHW"), strict=True)]  # fmt: skip

    def fn(x: Any, w: Any) -> Any:
        return ts.conv_general(x, w, strides, ((1, 1), (0, 1)), dimension_numbers=names)

    def gradients(x: Any, w: Any) -> Any:
        return ts.grad(lambda x, w: ts.sum(ts.sin(fn(x, w))), (0, 1))(x, w)

    wanted = [ts.jit(fn)(x, w), *ts.jit(gradients)(x, w)]
    assert "graph.dot_general(%1" in ts.jit(fn).lower(x, w).stage("graph")
    monkeypatch.setattr(convolution, "DEEP", 5)

    def again(x: Any, w: Any) -> Any:
        return fn(x, w), *gradients(x, w)

    for a, b in zip(ts.jit(again)(x, w), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-12, atol=1e-12)
    assert "graph.dot_general(%1" not in ts.jit(lambda x, w: fn(x, w)).lower(x, w).stage("graph")


@pytest.mark.parametrize(
    ("features", "window", "last"), [(64, 3, True), (63, 3, False), (64, 1, False)]
)
def test_a_gpu_has_features_last(features: int, window: int, last: bool) -> None:
    x, w = ts.zeros((1, features, 9, 9)), ts.zeros((8, features, window, window))
    lowered = ts.jit(lambda x, w: ts.conv_general(x, w, (1, 1), "SAME"))
    text = lowered.lower(x, w, machine="sm_90a").stage("graph")
    assert ("graph.transpose(%0) {perm=[0, 2, 3, 1]}" in text) == last
    assert "perm=[0, 2, 3, 1]" not in lowered.lower(x, w).stage("graph")


def apart(x: Any, w: Any) -> Any:
    return ts.conv_general(x, w, (1, 1), ((2, 2), (1, 1)), lhs_dilation=(2, 2))


def test_elements_that_are_put_apart_are_multiplied_in_phases() -> None:
    """No product has a zero that was put between elements, so that infinity times it is no NaN."""
    x, w = np.ones((1, 1, 3, 3)), np.ones((1, 1, 4, 3))
    w[0, 0, 1, 1] = np.inf
    found = np.asarray(ts.jit(apart)(x, w))
    assert not np.isnan(found).any()
    assert np.isinf(found).sum() == 9
    text = ts.jit(apart).lower(x, w).stage("graph")
    assert "interior" not in text
    assert text.count("graph.dot_general") == 4


@pytest.mark.parametrize("wrt", [0, 1])
def test_their_derivatives(wrt: int) -> None:
    x, w = sample("float64", (2, 3, 4, 3)), sample("float64", (2, 3, 4, 3), 1)
    u = sample("float64", (x, w)[wrt].shape, 2)

    def loss(x: Any, w: Any) -> Any:
        return ts.sum(ts.sin(apart(x, w)))

    found = np.sum(np.asarray(ts.jit(ts.grad(loss, wrt))(x, w)) * u)
    h = 1e-6
    moved = [[(x + s * h * u, w), (x, w + s * h * u)][wrt] for s in (1, -1)]
    wanted = (float(loss(*moved[0])) - float(loss(*moved[1]))) / (2 * h)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "names",
    [
        ("NHWC", "HWIO", "NHWC"), ("CWNH", "OHIW", "HNCW"),
        ((3, 0, 2, 1), (2, 1, 0, 3), (1, 0, 3, 2)),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("groups", "batches"), [(1, 1), (2, 1), (1, 2)])
def test_dims_in_any_order(names: Any, groups: int, batches: int) -> None:
    specs = [
        [s.index(c) for c in letters] if isinstance(s, str) else list(s)
        for s, letters in zip(names, ("NCHW", "OIHW", "NCHW"), strict=True)
    ]
    x, w = sample("float64", (4, 4, 5, 6)), sample("float64", (6, 4 // groups, 2, 3), 1)
    wanted = convolved(x, w, (1, 2), "SAME", (1, 1), (1, 1), groups, batches)
    ordered = [np.transpose(v, np.argsort(s)) for v, s in zip((x, w), specs[:2], strict=True)]
    found = ts.conv_general(
        *map(ts.asarray, ordered), (1, 2), "SAME", None, None, names, groups, batches
    )
    same(found, np.transpose(wanted, np.argsort(specs[2])), rtol=1e-12)


def test_wider_results() -> None:
    x, w = sample("int8", (1, 2, 9)), sample("int8", (2, 2, 3), 1)
    found = ts.conv_general(
        ts.asarray(x), ts.asarray(w), (1,), "VALID", preferred_element_type=ts.int32
    )
    wanted = convolved(x.astype(np.int32), w.astype(np.int32), (1,), [(0, 0)], (1,), (1,))
    same(found, wanted.astype(np.int32))


def test_same_lower_has_the_odd_one_in_front() -> None:
    x, w = ts.asarray([[[1.0, 2.0, 3.0]]]), ts.asarray([[[1.0, 1.0]]])
    same(ts.conv_general(x, w, (1,), "SAME_LOWER"), np.float32([[[1, 3, 5]]]))
    same(ts.conv_general(x, w, (1,), "SAME"), np.float32([[[3, 5, 3]]]))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("sizes", [(5, 2), (2, 5), (5, 3), (4, 4), (1, 1), (3, 1), (6, 4)])
@pytest.mark.parametrize("dtype", ["float64", "int64", "complex128"])
def test_convolve(mode: Any, sizes: tuple[int, int], dtype: str) -> None:
    x, y = sample(dtype, sizes[:1]), sample(dtype, sizes[1:], 1)
    same(ts.convolve(ts.asarray(x), ts.asarray(y), mode), np.convolve(x, y, mode), rtol=1e-12)


REDUCTIONS: dict[str, tuple[Any, float, Callable[..., Any]]] = {
    "add": (ts.add, 0, np.sum),
    "multiply": (ts.multiply, 1, np.prod),
    "maximum": (ts.maximum, -np.inf, np.max),
    "minimum": (ts.minimum, np.inf, np.min),
    "any function": (lambda a, b: a + b, 0, np.sum),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("padding", ["VALID", "SAME", [(0, 0), (1, 2), (0, 1)]])
def test_reduce_window(name: str, padding: Any) -> None:
    computation, neutral, reduction = REDUCTIONS[name]
    x = sample("float64", (2, 7, 5))
    sizes, strides, base, dilation = (1, 3, 2), (1, 2, 1), (1, 1, 2), (1, 2, 1)
    found = ts.reduce_window(
        ts.asarray(x), neutral, computation, sizes, strides, padding, base, dilation
    )
    pads = [(0, 0)] * 3 if padding == "VALID" else padding
    if padding == "SAME":
        pads = same_pads((2, 7, 9), sizes, strides, dilation)
    moved = windows_of(x, sizes, strides, pads, base, dilation, neutral)
    same(found, reduction(moved, axis=(3, 4, 5)), rtol=1e-12)


def test_reduce_window_without_windows() -> None:
    x = sample("float32", (3, 2))
    same(ts.reduce_window(ts.asarray(x), 0, ts.add, (1, 1)), x)
    same(ts.reduce_window(ts.asarray(x), 0, ts.add, (5, 1)), np.zeros((0, 2), np.float32))
    flags = np.array([[True, False, False], [True, True, False]])
    found = ts.reduce_window(ts.asarray(flags), True, ts.logical_and, (1, 2))
    same(found, flags[:, :-1] & flags[:, 1:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_extreme_pools(dtype: str) -> None:
    x = sample(dtype, (2, 5, 4, 3))
    wide = x.astype(np.float64)
    pads = [(0, 0), (1, 1), (1, 1), (0, 0)]
    args = ((1, 3, 2, 1), (1, 2, 1, 1), pads, (1,) * 4, (1,) * 4)
    a = ts.asarray(x)
    most = windows_of(wide, *args, -np.inf).max((4, 5, 6, 7))
    least = windows_of(wide, *args, np.inf).min((4, 5, 6, 7))
    same(ts.max_pool(a, (3, 2), (2, 1), pads[1:3]), most.astype(x.dtype))
    same(ts.min_pool(a, (3, 2), (2, 1), pads[1:3]), least.astype(x.dtype))


def test_max_pool_of_nan() -> None:
    x = ts.asarray([[[1.0], [float("nan")], [2.0], [3.0]]])
    same(ts.max_pool(x, (2,)), np.float32([[[np.nan], [np.nan], [3]]]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int16"])
def test_avg_pool(dtype: str) -> None:
    x = sample(dtype, (2, 5, 3))
    pads = [(0, 0), (1, 2), (0, 0)]
    moved = windows_of(x.astype(np.float64), (1, 3, 1), (1, 1, 1), pads, (1,) * 3, (1,) * 3, np.nan)
    result = np.float32 if dtype == "int16" else x.dtype
    a = ts.asarray(x)
    same(ts.avg_pool(a, (3,), None, pads[1:2]), (np.nansum(moved, (3, 4, 5)) / 3).astype(result))
    found = ts.avg_pool(a, (3,), None, pads[1:2], count_include_pad=False)
    same(found, np.nanmean(moved, (3, 4, 5)).astype(result))
    assert host(ts.avg_pool(a, (2,), (2,), "SAME")).shape == (2, 3, 3)


X, W = ts.ones((2, 4, 8)), ts.ones((6, 4, 3))


def test_integers_of_numpy_count() -> None:
    one, two = np.int64(1), np.int64(2)
    found = ts.conv_general(X, W[:, :2], np.array([2]), [(one, two)], feature_group_count=two)
    same = ts.conv_general(X, W[:, :2], (2,), [(1, 2)], feature_group_count=2)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(same))
    images, kernel = ts.ones((1, 6, 7, 4)), ts.ones((3, 3, 2, 4))
    assert ts.nn.conv(images, kernel, strides=two, feature_group_count=two).shape == (1, 3, 4, 4)
    assert ts.max_pool(images, np.array([2, 3]), np.array([1, 2])).shape == (1, 5, 3, 4)


def conv(x: Any = X, w: Any = W, strides: Any = (1,), padding: Any = "SAME", **options: Any) -> Any:
    return ts.conv_general(x, w, strides, padding, **options)


def named(*names: Any) -> Any:
    return lambda: conv(dimension_numbers=names)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: conv(X, ts.ones((6, 3, 3))), "the features of a group are those of the window"),
        (lambda: conv(X, ts.ones((6, 4))), "both have as many dims"),
        (lambda: conv(strides=(0,)), "it has 1 ints, each 1 or more"),
        (lambda: conv(strides=(1, 1)), "it has 1 ints, each 1 or more"),
        (lambda: conv(padding="FULL"), "padding is 'SAME', 'SAME_LOWER', 'VALID'"),
        (lambda: conv(padding=[(1, 1), (2, 2)]), "there are 1 pairs of ints"),
        (lambda: conv(padding=[1]), "there are 1 pairs of ints"),
        (lambda: conv(feature_group_count=3), "of 12 in 3 groups"),
        (lambda: conv(X[:, :2], W[:5, :1], feature_group_count=2), "5 features of the result in 2"),
        (lambda: conv(X[:1], batch_group_count=2), "1 examples in 2 groups"),
        (lambda: conv(batch_group_count=0), "a number of groups is 1 or more"),
        (named("NCW", "OIW"), "there are three"),
        (named("NCW", "OIW", "NCH"), "each of the 3 dims is named once"),
        (named("NCW", (0, 1, 2), "NCW"), "all three are texts, or tuples of ints"),
        (lambda: conv(X > 0, W > 0), "the elements are numbers"),
        (lambda: ts.convolve(X, W), "both are vectors"),
        (lambda: ts.convolve(X[0, 0], X[0, 0], "all"), "it is 'full', 'same' or 'valid'"),
        (lambda: ts.reduce_window(X, ts.ones(2), ts.add, (1, 1, 1)), "init_value is a number"),
        (lambda: ts.reduce_window(X, 0, ts.add, (1, 1)), "it has 3 ints"),
        (lambda: ts.max_pool(ts.ones(3), ()), "its first dim is the batch"),
    ],
)
def test_mistakes(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ts.TesseraError) as caught:
        call()
    assert text in str(caught.value)
    assert "test_namespace_windows.py" in str(caught.value)


@given(st.data())
def test_any_convolution(data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 2))
    groups = data.draw(st.sampled_from([1, 1, 2]))
    batches = 1 if groups > 1 else data.draw(st.sampled_from([1, 1, 2]))

    def ints(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    dims, sizes, strides = ints(1, 6), ints(1, 3), ints(1, 3)
    base, dilation = ints(1, 2), ints(1, 2)
    padding = list(zip(ints(-1, 2), ints(-1, 3), strict=True))
    features = data.draw(st.integers(1, 2))
    x = sample("float64", (2 * batches, features * groups, *dims))
    w = sample("float64", (data.draw(st.integers(1, 2)) * groups * batches, features, *sizes), 1)
    wanted = convolved(x, w, strides, padding, base, dilation, groups, batches)
    specs = [data.draw(st.permutations(range(rank + 2))) for _ in range(3)]
    ordered = [np.transpose(v, np.argsort(s)) for v, s in zip((x, w), specs[:2], strict=True)]
    found = ts.conv_general(
        *map(ts.asarray, ordered), strides, padding, base, dilation, specs, groups, batches
    )
    same(found, np.transpose(wanted, np.argsort(specs[2])), rtol=1e-12)


@given(st.data())
def test_windows_and_their_transpose(data: st.DataObject) -> None:
    """The product of windows with an array is that of the array with what the transpose gives."""
    size, step, apart = (data.draw(st.integers(1, 3)) for _ in range(3))
    length = (size - 1) * apart + data.draw(st.integers(1, 7))
    x = sample("float64", (2, length))
    moved, pull = ts.vjp(lambda v: windows(v, (1,), (size,), (step,), (apart,)), ts.asarray(x))
    y = sample("float64", moved.shape, 1)
    (back,) = pull(ts.asarray(y))
    np.testing.assert_allclose(np.sum(host(moved) * y), np.sum(x * host(back)), rtol=1e-12)
