"""Arrays, eager ops and compiled functions on devices, with a simulated GPU."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import CompileError
from tessera.graph import calls
from tessera.graph.device import DeviceError
from tessera.graph.engine import installed
from tessera.graph.interp import NumpyEngine
from tessera.target.machine import LEVELS, supported_levels
from tests.fake_gpu import FakeBackend, fake_gpu

pytestmark = pytest.mark.unchecked


@pytest.fixture
def gpu() -> Generator[FakeBackend]:
    with fake_gpu() as found:
        yield found


def on_gpu(data: Any, dtype: Any = np.float32) -> Any:
    return ts.device_put(np.asarray(data, dtype), "cuda:0")


def grid(*shape: int) -> np.ndarray:
    """Numbers without a pattern, of both signs."""
    count = int(np.prod(shape))
    return (np.sin(np.arange(count) * 1.7) * 2).astype(np.float32).reshape(shape)


def close(x: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    assert str(x.device) == "cuda:0"
    np.testing.assert_allclose(np.asarray(x), wanted, rtol=tolerance, atol=tolerance)


# --- devices and arrays -----------------------------------------------------------------------


def test_devices(gpu: FakeBackend) -> None:
    assert [str(d) for d in ts.devices()] == ["cpu", "cuda:0", "cuda:1"]
    assert ts.devices("cuda") == [ts.Device("cuda", 0), ts.Device("cuda", 1)]
    assert ts.devices("cpu") == [ts.Device("cpu")]
    with pytest.raises(DeviceError, match="no kind of device 'tpu'"):
        ts.devices("tpu")


def test_a_device_that_is_missing() -> None:
    with fake_gpu(devices=0):
        assert ts.devices() == [ts.Device("cpu")]
        assert ts.devices("cuda") == []
        for make in (
            lambda: ts.zeros(2, device="cuda:0"),
            lambda: ts.ones(2).to_device("cuda"),
            lambda: ts.device("cuda:0"),
            lambda: ts.device_put(1.0, "cuda:0"),
        ):
            with pytest.raises(DeviceError, match="'cuda:0': there is no fake device"):
                make()


def test_a_device_of_no_such_number(gpu: FakeBackend) -> None:
    for name in ("cuda:2", "cuda:-1", "cuda:x", "cpu:1", "gpu"):
        with pytest.raises(DeviceError, match="there is no device"):
            ts.zeros(2, device=name)


def test_an_array_on_a_device(gpu: FakeBackend) -> None:
    data = grid(2, 3)
    x = ts.asarray(data, device="cuda:0")
    assert x.device == ts.Device("cuda", 0)
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes) == ((2, 3), ts.float32, 2, 6, 24)
    assert np.array_equal(np.asarray(x), data)
    assert x.tolist() == data.tolist()
    assert len(x) == 2
    assert repr(ts.asarray([1, 2], device="cuda:1")) == (
        "Array([1, 2], dtype=int64, device=cuda:1)"
    )
    one = ts.asarray(2.5, device="cuda")
    assert (float(one), int(one), bool(one), one.item()) == (2.5, 2, True, 2.5)
    assert f"{one:.2f}" == "2.50"
    assert np.array_equal(pickle.loads(pickle.dumps(x)), data)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, copy=False)
    with pytest.raises((TypeError, BufferError)):
        memoryview(x)


def test_moving(gpu: FakeBackend) -> None:
    x = ts.asarray(grid(4))
    y = x.to_device("cuda:0")
    z = y.to_device(ts.Device("cuda", 1))
    assert [str(a.device) for a in (x, y, z, z.to_device("cpu"))] == [
        "cpu", "cuda:0", "cuda:1", "cpu",
    ]  # fmt: skip
    assert y.to_device("cuda:0") is y
    assert np.array_equal(np.asarray(z), np.asarray(x))
    tree = ts.device_put({"a": [x, 1.5], "b": grid(2)}, "cuda:1")
    assert {str(leaf.device) for leaf in ts.pytree.leaves(tree)} == {"cuda:1"}
    with pytest.raises(ts.TesseraError, match="got a value of type str"):
        ts.device_put(["a"], "cuda:0")


def test_waiting(gpu: FakeBackend) -> None:
    x = on_gpu([1.0])
    assert ts.block_until_ready({"x": x, "y": ts.ones(2)})["x"] is x
    assert x.block_until_ready() is x
    assert gpu.waits == 2


def test_strided_arrays_are_copied_in_order(gpu: FakeBackend) -> None:
    data = grid(4, 6)
    x = ts.device_put(ts.asarray(data).T[::2], "cuda:0")
    assert np.array_equal(np.asarray(x), data.T[::2])
    assert np.array_equal(np.asarray(ts.asarray(data[:, ::-2], device="cuda")), data[:, ::-2])


def test_the_default_device(gpu: FakeBackend) -> None:
    with ts.device("cuda:1"):
        made = [
            ts.zeros((2, 3)), ts.ones(3), ts.full(2, 7), ts.arange(4), ts.linspace(0, 1, 3),
            ts.eye(3), ts.asarray([1.0, 2.0]), ts.asarray(2.0), ts.empty(2),
            ts.tril(ts.ones((3, 3))), ts.jit(lambda: ts.ones((2, 2)))(),
            ts.jit(lambda x: x + 1)(2.0), ts.jit(lambda x: x + 1)(grid(3)),
        ]  # fmt: skip
        assert ts.__array_namespace_info__().default_device() == ts.Device("cuda", 1)
        here = ts.asarray(grid(3), device="cpu")
        assert str(ts.jit(lambda x: x * 2)(here).device) == "cpu"
    assert [str(x.device) for x in made] == ["cuda:1"] * len(made)
    assert np.array_equal(np.asarray(made[2]), [7, 7])
    assert np.array_equal(np.asarray(made[9]), np.tril(np.ones((3, 3))))
    assert str(ts.zeros(2).device) == "cpu"


def test_the_device_argument(gpu: FakeBackend) -> None:
    x = on_gpu(grid(2, 2))
    for made in (
        ts.zeros(2, device="cuda:0"), ts.full((2,), ts.asarray(3.0), device="cuda:0"),
        ts.arange(3, device=x.device), ts.zeros_like(x), ts.full_like(x, 4.0),
        ts.eye(2, device="cuda"), ts.astype(x, ts.float16),
        ts.linspace(ts.asarray(0.0), ts.asarray(1.0), 3, device="cuda"),
    ):  # fmt: skip
        assert str(made.device) == "cuda:0"
    assert str(ts.zeros_like(x, device="cpu").device) == "cpu"
    assert str(ts.astype(x, ts.int32, device="cpu").device) == "cpu"


def test_mixing_devices(gpu: FakeBackend) -> None:
    x, y = on_gpu(grid(2, 2)), ts.ones((2, 2))
    calls: list[Callable[[], Any]] = [
        lambda: x + y,
        lambda: y + x,
        lambda: ts.maximum(x, y),
        lambda: x @ y,
        lambda: ts.concat([x, y]),
        lambda: ts.where(x > 0, x, y),
        lambda: ts.jit(lambda a, b: a + b)(x, y),
        lambda: ts.grad(lambda a, b: ts.sum(a * b))(x, y),
        lambda: x + ts.device_put(x, "cuda:1"),
        lambda: x.at[0].set(ts.ones(2)),
    ]
    for call in calls:
        wanted = r"f32\[2(, 2)?\] on cuda:0, and another is f32"
        with pytest.raises(DeviceError, match=wanted) as info:
            call()
        assert "device_put" in (info.value.fix or "")


def test_what_has_no_device_goes_along(gpu: FakeBackend) -> None:
    data = grid(2, 2)
    x = on_gpu(data)
    close(x + data, 2 * data)
    close(data * x, data * data)
    close(2 - x, 2 - data)
    close(x + np.float32(1), data + 1)
    close(x * ts.asarray(3.0), data * 3)
    close(ts.jit(lambda a, b, c: a * b + c)(x, data, 2.0), data * data + 2)
    close(ts.jit(lambda tree: tree["a"] * tree["b"])({"a": x, "b": data}), data * data)
    close(ts.grad(lambda a, b: ts.sum(a * b))(x, data), data)
    close(ts.concat([x, data]), np.concatenate([data, data]))


def test_captured_arrays(gpu: FakeBackend) -> None:
    x, weights = on_gpu(grid(3)), ts.asarray(grid(3) + 1)
    close(ts.jit(lambda a: a * weights)(x), grid(3) * (grid(3) + 1))
    with pytest.raises(DeviceError, match="captures an array"):
        ts.jit(lambda a: a * x)(ts.ones(3))


def test_devices_in_traces(gpu: FakeBackend) -> None:
    x = on_gpu(grid(3))
    seen: list[Any] = []

    def f(a: Any) -> Any:
        seen.append(a.device)
        b = a + ts.asarray([1.0, 2.0, 3.0]) + ts.zeros(3, device=a.device)
        return b + a.to_device("cuda:0")

    close(ts.jit(f)(x), 2 * grid(3) + [1, 2, 3])
    ts.grad(lambda a: ts.sum(f(a)))(x)
    assert {str(d) for d in seen} == {"cuda:0"}
    with pytest.raises(DeviceError, match="in a program for cuda:0"):
        ts.jit(lambda a: a + ts.zeros(3, device="cpu"))(x)
    with pytest.raises(DeviceError, match="all values are on one device"):
        ts.jit(lambda a: a.to_device("cpu"))(x)


def test_programs_belong_to_their_device(gpu: FakeBackend) -> None:
    f = ts.jit(lambda x: x * 2 + 1)
    for device in ("cpu", "cuda:0", "cuda:1", "cuda:0"):
        x = ts.device_put(grid(5), device)
        assert str(f(x).device) == device
        assert np.allclose(np.asarray(f(x)), grid(5) * 2 + 1)
    assert f.cache_size() == 3


def test_memory_is_given_back(gpu: FakeBackend) -> None:
    x = on_gpu(grid(64))
    f = ts.jit(lambda x: ts.exp(x - ts.max(x)))
    f(x)
    before = gpu.memory.live
    for _ in range(3):
        f(x)
    assert gpu.memory.live == before


def test_a_refused_launch_ends_the_program(gpu: FakeBackend) -> None:
    f = ts.jit(lambda x: ts.cumulative_sum(ts.exp(x)) / ts.sum(x))
    x = on_gpu(grid(8))
    f(x)
    names = list(dict.fromkeys(gpu.launches))
    assert len(names) > 1
    gpu.launches.clear()
    gpu.refuse = names[0]
    with pytest.raises(RuntimeError, match="refused"):
        f(x)
    assert gpu.launches == names[:1]


def test_interfaces(gpu: FakeBackend) -> None:
    x = on_gpu(grid(2, 3))
    found = x.__cuda_array_interface__
    assert (found["shape"], found["typestr"], found["data"][1]) == ((2, 3), "<f4", True)
    assert x.__dlpack_device__() == (2, 0)
    assert not hasattr(ts.ones(2), "__cuda_array_interface__")

    class Foreign:
        __cuda_array_interface__ = found

    close(ts.asarray(Foreign()), grid(2, 3))
    close(ts.from_dlpack(Foreign()) if hasattr(Foreign, "__dlpack__") else x, grid(2, 3))


# --- programs -----------------------------------------------------------------------------------

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "elementwise": (lambda x: ts.tanh(x) * ts.exp(-x) + ts.sqrt(ts.abs(x)), (grid(7, 9),)),
    "broadcast": (lambda x, y: x[:, None] * y + 1, (grid(5), grid(6))),
    "sum": (lambda x: ts.sum(x, axis=0), (grid(17, 6),)),
    "rows": (lambda x: ts.mean(x, axis=-1), (grid(5, 70),)),
    "full": (lambda x: ts.sum(x * x), (grid(40, 20),)),
    "max": (lambda x: ts.max(x, axis=1), (grid(6, 33),)),
    "argmax": (lambda x: ts.argmax(x, axis=1), (grid(6, 33),)),
    "softmax": (
        lambda x: (
            ts.exp(x - ts.max(x, axis=-1, keepdims=True))
            / ts.sum(ts.exp(x - ts.max(x, axis=-1, keepdims=True)), axis=-1, keepdims=True)
        ),
        (grid(4, 37),),
    ),
    "matmul": (lambda x, y: x @ y, (grid(9, 12), grid(12, 5))),
    "layernorm": (
        lambda x: (
            (x - ts.mean(x, axis=-1, keepdims=True))
            / ts.sqrt(ts.var(x, axis=-1, keepdims=True) + 1e-5)
        ),
        (grid(3, 50),),
    ),
    "transpose": (lambda x: ts.permute_dims(x, (1, 0)) + 1, (grid(6, 11),)),
    "concat": (lambda x, y: ts.concat([x, y * 2], axis=1), (grid(3, 4), grid(3, 5))),
    "gather": (lambda x: x[ts.asarray([2, 0, 1, 2])], (grid(3, 5),)),
    "cumsum": (lambda x: ts.cumulative_sum(x, axis=1), (grid(2, 40),)),
    "sort": (lambda x: ts.sort(x, axis=1), (grid(3, 20),)),
    "complex": (lambda x: ts.abs(ts.astype(x, ts.complex64) * 1j), (grid(8),)),
    "cond": (lambda x: ts.cond(ts.sum(x) > 0, lambda y: y * 2, lambda y: y - 1, x), (grid(6),)),
    "while": (
        lambda x: ts.while_loop(lambda c: ts.sum(c) < 100, lambda c: c * 2 + 1, ts.abs(x)),
        (grid(4),),
    ),
    "fori": (lambda x: ts.fori_loop(0, 3, lambda i, c: c * 0.5 + i, x), (grid(5),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", ["jit", "eager", "grad", "grad at once", "jvp", "vmap"])
def test_program(gpu: FakeBackend, name: str, mode: str) -> None:
    fn, args = PROGRAMS[name]
    inner = plain = fn
    if mode.startswith("grad"):
        if name in ("argmax", "while", "sort", "fori"):
            pytest.skip("no gradient")
        plain = ts.grad(lambda *a: ts.sum(ts.sin(inner(*a))))
    elif mode == "jvp":
        plain = lambda *a: ts.jvp(inner, a, tuple([x * 0.5 for x in a]))[1]  # noqa: E731
    elif mode == "vmap":
        args = tuple([np.stack([a, a * 0.5 + 0.1]) for a in args])
        plain = ts.vmap(fn)
    fn = ts.jit(plain) if mode in ("jit", "grad", "vmap") else plain
    given = [ts.asarray(a) for a in args]
    if mode in ("jit", "eager"):
        wanted = fn(*given)  # by code of the host, from the same function
    else:
        # NumPy computes the ops, which takes less time than to compile them for the host.
        with installed(NumpyEngine()):
            wanted = plain(*given)
    found = fn(*[ts.device_put(a, "cuda:0") for a in args])
    close(found, np.asarray(wanted), 1e-4)
    assert gpu.launches


def test_conditions_are_read_back(gpu: FakeBackend) -> None:
    fn, (data,) = PROGRAMS["while"]
    ts.jit(fn)(on_gpu(data))
    assert gpu.reads == 0  # one kernel runs the loop
    data = grid(200, 200) / 1e4

    def large(x: Any) -> Any:
        return ts.while_loop(lambda c: ts.sum(c) < 100000, lambda c: c * 2 + 1, ts.abs(x))

    close(ts.jit(large)(on_gpu(data)), large(ts.asarray(data)))
    assert gpu.reads > 2


def test_many_sizes_share_an_eager_program(gpu: FakeBackend) -> None:
    for n in (1, 2, 31, 32, 33, 100):
        x = on_gpu(grid(n))
        close(x * 2.0 + x, grid(n) * 3)
        close(ts.sum(x), grid(n).sum(), 1e-4)
    assert len({k.name for k in gpu.kernels}) == len(gpu.kernels) == 4


def test_empty_arrays(gpu: FakeBackend) -> None:
    x = on_gpu(np.empty((0, 4)))
    assert (x + 1).shape == (0, 4)
    close(ts.sum(x, axis=0), np.zeros(4))
    close(ts.jit(lambda x: ts.sum(x * 2, axis=0))(x), np.zeros(4))
    close(ts.jit(lambda x: x.T @ x)(x), np.zeros((4, 4)))


def test_dtypes(gpu: FakeBackend) -> None:
    names = "bool int8 uint16 int32 int64 float16 bfloat16 float64"
    for dtype in [getattr(ts, name) for name in names.split()]:
        x = ts.astype(ts.asarray([0, 1, 5, 3]), dtype).to_device("cuda:0")
        assert x.dtype is dtype
        assert np.array_equal(np.asarray(x == x), [True] * 4)
        assert (
            np.asarray(ts.astype(x, ts.float32)).tolist()
            == np.asarray(ts.astype(x.to_device("cpu"), ts.float32)).tolist()
        )


def test_lists_of_indices_and_masks(gpu: FakeBackend) -> None:
    data = grid(5, 3)
    x = on_gpu(data)
    close(x[[1, -1]], data[[1, -1]])
    close(x[ts.asarray([0, 4], device="cuda")], data[[0, 4]])
    close(x[x > 0], data[data > 0])
    close(x.at[1].set(0.0), np.where(np.arange(5)[:, None] == 1, 0, data))
    close(x[::-2, 1], data[::-2, 1])
    assert [str(i.device) for i in ts.nonzero(x)] == ["cuda:0"] * 2
    assert str(ts.unique_values(x).device) == "cuda:0"


# --- stages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a", "sm_100a", "sm_120"])
def test_stages_need_no_gpu(machine: str) -> None:
    lowered = ts.jit(lambda x: ts.exp(x) / ts.sum(x)).lower(ts.ones((4, 300)), machine=machine)
    for name in ("graph", "schedule", "tile", "target", "host", "llvm", "ptx"):
        assert lowered.stage(name)
    assert f".target {machine}" in lowered.ptx
    assert "target.launch_kernel" in str(lowered.host)
    assert "tessera_cuda_launch" in lowered.llvm


def test_a_machine_by_name() -> None:
    f = ts.jit(lambda x: x + 1)
    assert f.lower(ts.ones(3), machine="x86-64-v3").machine.name == "x86-64-v3"
    with pytest.raises(ts.TesseraError, match="there is no GPU 'sm_1'"):
        f.lower(ts.ones(3), machine="sm_1")
    with pytest.raises(ts.TesseraError, match="'ptx' is no stage of a program for x86-64-v3"):
        f.lower(ts.ones(3), machine="x86-64-v3").stage("ptx")


def test_assembly_for_another_architecture() -> None:
    f = ts.jit(lambda x: ts.exp(x) * 2)
    asm = f.lower(ts.ones(1000), machine="aarch64").stage("asm")
    assert "fmla\tv" in asm
    assert not {"\tbl\texp\n", "\tbl\texpf\n"} & set(asm.splitlines(keepends=True))
    other = next(level for level in LEVELS if level not in supported_levels())
    with (
        ts.config.update(cpu_level=other),
        pytest.raises(CompileError, match=f"code for {other} cannot run here"),
    ):
        f(ts.ones(1000))


def test_lower_for_a_device(gpu: FakeBackend) -> None:
    f = ts.jit(lambda x, machine=1: x + machine)
    assert str(f.lower(ts.ones(3), device="cuda:0").machine) == "sm_90a"
    assert str(ts.jit(lambda x: x).lower(on_gpu([1.0])).machine) == "sm_90a"
    # A parameter of that name is the function's.
    assert "ptx" not in vars(type(f.lower(ts.ones(3), machine=ts.ones(3))))


def test_grid_of_a_symbolic_size_is_passed() -> None:
    from tessera.compile_gpu import LoweredGpu
    from tessera.ir.parser import parse_func
    from tessera.target.gpu import gpu as machine

    text = """
    func @f[S](%x: f32[S]) {
      %y = graph.exp(%x) : f32[S]
      return %y
    }
    """
    lowered = LoweredGpu(parse_func(text), machine("sm_90a"))
    (kernel,) = lowered.gpu_kernels.values()
    assert [str(a.type) for a in kernel.func.args] == ["ptr<global>"] * 2 + ["i64"] * 2
    assert [str(a.type) for a in lowered.host.entry.args] == [
        "ptr<global>", "ptr<global>", "ptr<global>", "ptr<global>", "i64", "ptr<global>",
    ]  # fmt: skip


# --- functions that make arrays beside their operands -----------------------------------------

MAKERS: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: ts.conv_general(x[:, None], x[:2, None, :3], (1,), "SAME"),
    "conv without places": lambda x: ts.conv_general(x[:, None, :2], x[:2, None], (1,), "VALID"),
    "max_pool": lambda x: ts.max_pool(x[None], (2,)),
    "fill": lambda x: x.at[:, 7].get(mode="fill"),
    "histogram": lambda x: ts.histogram(x, 3)[0],
    "isin": lambda x: ts.isin(x, x[0]),
    "isin nothing": lambda x: ts.isin(x, x[0, :0]),
    "nanmean": lambda x: ts.nanmean(x, axis=0),
    "pad": lambda x: ts.pad(x, 1, "reflect"),
    "divide": lambda x: x.at[0].divide(2.0),
    "segment_sum": lambda x: ts.segment_sum(x, ts.astype(x[:, 0] > 0, ts.int64), 3),
}


@pytest.mark.parametrize("name", MAKERS)
def test_results_are_where_operands_are(gpu: FakeBackend, name: str) -> None:
    x = grid(4, 6)
    with installed(NumpyEngine()):
        wanted = MAKERS[name](ts.asarray(x))
    close(MAKERS[name](on_gpu(x)), np.asarray(wanted))


SEGMENTS = ["segment_sum", "segment_prod", "segment_max", "segment_min"]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float8_e4m3fn"])
def test_bytes_meet(gpu: FakeBackend, dtype: str) -> None:
    """Scatters combine elements for which a GPU has no atomic instruction."""
    ids = ts.asarray([0, 2, 0, 2, 2, 5])
    numbers = [1, 0, 3, 8, 4, 7] if "float" in dtype else [1, 0, 3, 100, 60, 7]
    x = ts.astype(ts.asarray(numbers), getattr(ts, dtype))
    for name in SEGMENTS:
        wanted = getattr(ts, name)(x, ids, 4)
        found = getattr(ts, name)(*ts.device_put((x, ids), "cuda:0"), 4)
        assert found.dtype is x.dtype
        close(ts.astype(found, ts.float32), np.asarray(ts.astype(wanted, ts.float32)))


def test_an_op_that_a_gpu_lacks_says_so(gpu: FakeBackend) -> None:
    for _ in range(2):
        with pytest.raises(ts.TesseraError, match="a library of the host computes it"):
            ts.linalg.cholesky(on_gpu([[1, 0], [0, 1]]))


# --- refs -----------------------------------------------------------------------------------------


def test_a_ref_on_a_device(gpu: FakeBackend) -> None:
    ref = ts.Ref(on_gpu(grid(3)), name="state")

    def step(r: Any, x: Any) -> Any:
        r.update(lambda v: v + x)
        return r.get() * 2

    passed = ts.jit(step)
    close(passed(ref, 1.0), (grid(3) + 1) * 2)
    close(ref.get(), grid(3) + 1)
    found = ts.jit(lambda x: step(ref, x))
    close(found(on_gpu(np.ones(3))), (grid(3) + 2) * 2)
    # Without an argument that says where, a program runs where its refs are.
    close(ts.jit(lambda: step(ref, 1.0))(), (grid(3) + 3) * 2)
    ref[0] = 0.0
    close(ref.get(), np.concatenate([[0], grid(3)[1:] + 3]))
    scanned = ts.jit(lambda: ts.scan(lambda c, y: (c, ref.update(lambda v: v + y)), 0, ts.ones(2)))
    scanned()
    close(ref.get(), np.concatenate([[2], grid(3)[1:] + 5]))


def test_a_ref_goes_where_it_is_written(gpu: FakeBackend) -> None:
    ref = ts.Ref(grid(3), name="state")
    add = ts.jit(lambda x: ref.update(lambda v: v + x))
    add(on_gpu(np.ones(3)))
    close(ref.get(), grid(3) + 1)
    with pytest.raises(DeviceError, match="jit: <lambda> uses the ref `state`"):
        add(ts.ones(3))
    close(ref.get(), grid(3) + 1)


@pytest.mark.parametrize("where", ["cpu", "cuda:0"])
def test_attention_is_a_region_on_hosts_alone(
    gpu: FakeBackend, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of jit; what is launched on a GPU is found sooner one by one."""
    made: list[str] = []
    trace = calls.trace_function

    def noted(fn: Any, types: Any, kind: str, name: str) -> Any:
        made.append(name)
        return trace(fn, types, kind, name)

    monkeypatch.setattr(calls, "trace_function", noted)
    x = ts.device_put(grid(1, 2, 64, 16), where)
    found = ts.grad(lambda x: ts.sum(ts.nn.attention(x, x, x)))(x)
    assert found.shape == x.shape
    assert ("attention" in made) == (where == "cpu")
