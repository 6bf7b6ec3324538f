"""Graphs of programs: when they are recorded, replayed and forgotten. And tensor maps."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tessera import dtypes
from tessera.config import config
from tessera.runtime.cuda import driver, graphs
from tessera.runtime.cuda.device import CudaDevice, cuda_device
from tessera.runtime.cuda.errors import CudaError
from tessera.runtime.cuda.graphs import GraphProgram
from tessera.runtime.cuda.launch import record_of
from tessera.runtime.cuda.stream import Stream
from tessera.runtime.cuda.tensormap import TensorMaps, encode
from tests.runtime.cuda.fake_driver import FakeDriver


class Program:
    """Stands for native code of so many launches and reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, launches: int = 3, reads: int = 0) -> None:
        self.runs = 0
        self.captures = 0
        self.launches = launches
        self.reads = reads
        self.fails = False
        monkeypatch.setattr(graphs, "NativeProgram", self._make)
        monkeypatch.setattr(graphs, "run_record", self._capture)

    def _make(self, main: int, *, name: str, owner: object) -> Any:
        self.main, self.name = main, name
        return self

    def run(self, stream: Stream, words: Any, settings: Any = None) -> None:
        self.runs += 1
        record = record_of(stream)
        record.launches += self.launches
        record.reads += self.reads

    def _capture(self, main: int, record: Any, words: Any) -> None:
        self.captures += 1
        if self.fails:
            raise CudaError("no")


def test_graphs_are_off_by_default(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = Program(monkeypatch)
    program = GraphProgram(1)
    for _ in range(5):
        program.run(device.stream, (1, 2))
    assert (native.runs, native.captures) == (5, 0)


def test_the_second_run_with_the_same_words_is_recorded(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = Program(monkeypatch)
    program = GraphProgram(1)
    array = np.zeros(3)
    with config.update(cuda_graphs=3, nvtx=True):
        for _ in range(4):
            program.run(device.stream, (1, array))
        assert (native.runs, native.captures, program.graphs) == (1, 1, 1)
        assert len(fake.called("cuGraphLaunch")) == 3
        assert fake.called("cuGraphLaunch")[0][1] == device.stream.raw_handle
        # Recorded elsewhere, so that work of other threads stays out.
        assert fake.called("cuStreamBeginCapture")[0][0] != device.stream.raw_handle
        assert len(fake.called("cuGraphDestroy")) == 1
        program.run(device.stream, (2, array))
        assert native.runs == 2
        with config.update(cuda_debug=True):
            program.run(device.stream, (1, array))
        assert native.runs == 3
        program.run(cuda_device(1).stream, (1, array))
        assert native.runs == 4


@pytest.mark.parametrize(("launches", "reads"), [(2, 0), (9, 1)])
def test_what_is_not_recorded(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch, launches: int, reads: int
) -> None:
    native = Program(monkeypatch, launches, reads)
    program = GraphProgram(1)
    with config.update(cuda_graphs=3):
        for _ in range(4):
            program.run(device.stream, (1,))
    assert (native.runs, native.captures) == (4, 0)


def test_a_recording_that_fails_is_not_tried_again(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = Program(monkeypatch)
    native.fails = True
    program = GraphProgram(1)
    with config.update(cuda_graphs=1):
        for _ in range(4):
            program.run(device.stream, (1,))
    assert (native.runs, native.captures, program.graphs) == (4, 1, 0)
    assert len(fake.called("cuStreamEndCapture")) == 1
    assert len(fake.called("cuGraphDestroy")) == 1


@pytest.mark.parametrize("name", ["cuStreamEndCapture", "cuGraphInstantiate"])
def test_a_driver_that_cannot(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    native = Program(monkeypatch)
    fake.failures[name] = 901
    program = GraphProgram(1)
    with config.update(cuda_graphs=1):
        for _ in range(3):
            program.run(device.stream, (1,))
    assert (native.runs, program.graphs) == (3, 0)


def test_old_graphs_go_after_their_last_run(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    Program(monkeypatch)
    program = GraphProgram(1)
    with config.update(cuda_graphs=1):
        for word in range(10):
            program.run(device.stream, (word,))
            program.run(device.stream, (word,))
    assert program.graphs == 8
    device.pool.collect()
    gc.collect()
    driver.drain()
    assert not fake.called("cuGraphExecDestroy")
    fake.finish()
    device.pool.collect()
    driver.drain()
    assert len(fake.called("cuGraphExecDestroy")) == 2
    program.clear()
    assert program.graphs == 0
    fake.finish()
    device.pool.collect()
    driver.drain()
    assert len(fake.called("cuGraphExecDestroy")) == 10


# --- tensor maps ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("fake")
def test_maps_are_encoded_once(fake: FakeDriver) -> None:
    maps = TensorMaps(limit=2)
    first = maps.get(256, dtypes.bfloat16, (128, 64), (64, 1), (32, 64), swizzle=128)
    assert first.address % 64 == 0
    assert first.data.tobytes() == bytes(range(128))
    assert maps.get(256, dtypes.bfloat16, (128, 64), (64, 1), (32, 64), swizzle=128) is first
    (call,) = fake.called("cuTensorMapEncodeTiled")
    kind, rank, pointer, sizes, strides, box, steps, _, swizzle, promotion, fill = call
    assert (kind, rank, pointer) == (9, 2, 256)
    assert (sizes, strides, box, steps) == ([64, 128], [128], [64, 32], [1, 1])
    assert (swizzle, promotion, fill) == (3, 3, 0)
    for pointer in (512, 768):
        maps.get(pointer, dtypes.float32, (64,), (1,), (16,))
    assert len(maps) == 2
    assert maps.get(256, dtypes.bfloat16, (128, 64), (64, 1), (32, 64), swizzle=128) is not first


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"pointer": 8}, "multiple of 16"),
        ({"shape": (), "strides": (), "box": ()}, "1 to 5 dims"),
        ({"strides": (64,)}, "a stride and an extent"),
        ({"dtype": dtypes.complex128}, "dtype c128"),
        ({"swizzle": 16}, "a swizzle of"),
        ({"promotion": 1}, "a promotion of"),
        ({"shape": (0, 64)}, "extents"),
        ({"strides": (64, 2)}, "contiguous last dim"),
        ({"strides": (63, 1)}, "strides that are multiples of 16 bytes"),
        ({"strides": (1 << 40, 1)}, "strides that are multiples of 16 bytes"),
        ({"box": (257, 64)}, "boxes of 1 to 256"),
        ({"box": (8, 3)}, "multiple of 16 bytes"),
        ({"box": (8, 64), "swizzle": 64}, "no longer than the swizzle"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_maps_that_the_hardware_lacks(changes: dict[str, Any], rule: str) -> None:
    arguments: dict[str, Any] = {
        "pointer": 256,
        "dtype": dtypes.bfloat16,
        "shape": (128, 64),
        "strides": (64, 1),
        "box": (32, 64),
    }
    with pytest.raises(CudaError, match=rule):
        encode(**{**arguments, **changes})
