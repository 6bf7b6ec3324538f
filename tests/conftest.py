"""Options, markers and Hypothesis profiles for the whole test suite."""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import pkgutil
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import halves

# Programs that an earlier run kept would leave the passes untested.
os.environ.setdefault("TESSERA_CACHE", "objects")

# A first example may compile a kernel, and two workers share two cores, so wall-clock deadlines and
# the "too slow" check would fail at random.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile(
    "ci", derandomize=True, database=None, print_blob=True, max_examples=60, **UNTIMED
)
settings.register_profile("dev", max_examples=60, **UNTIMED)
default_profile = "ci" if os.environ.get("CI") else "dev"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", default_profile))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests marked long")


def pytest_configure() -> None:
    # To look for garbage after each 700 new objects takes 6 % of the time, after each 20,000 4 %.
    gc.set_threshold(20_000, 10, 10)
    # All of it, before a module of tests asks for native code, which goes into complete classes.
    importlib.import_module("tessera.api")
    importlib.import_module("tests.native_fma").install()
    # Tests change constants of passes. A pass that is loaded meanwhile would keep what it imports.
    for module in pkgutil.iter_modules(importlib.import_module("tessera.schedule").__path__):
        importlib.import_module(f"tessera.schedule.{module.name}")
    # A shell starts what runs in its background with SIGINT ignored, and tests of interrupts would
    # wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        skip_marked(items, "long", "a long run: pass --long")
    skip_host_level(items)
    if not config.getoption("--long"):
        halves.divide([item for item in items if not item.get_closest_marker("unchecked")])
    if halves.CHECKED:
        skip_marked(items, "unchecked", "code and calls differ where memory is checked")
        elsewhere = {*of_lower_levels(items)} | {x for x in items if not halves.is_checked(x)}
        config.hook.pytest_deselected(items=[item for item in items if item in elsewhere])
        items[:] = [item for item in items if item not in elsewhere]
    # Asking the driver takes a while and starts it, so only where a test will use the answer.
    if any(item.get_closest_marker("gpu") for item in items) and (reason := missing_gpu()):
        skip_marked(items, "gpu", reason)


def pytest_collection_finish() -> None:
    """The tests themselves live until the end, so garbage is not looked for among them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def few_objects() -> None:
    """For tests that ask for garbage to be collected: it is looked for among what they make."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A module's generator gives a test the same numbers whichever tests ran before it."""
    rng = getattr(getattr(item, "module", None), "RNG", None)
    if isinstance(rng, np.random.Generator):
        bits = rng.bit_generator
        bits.state = type(bits)(bits.seed_seq).state
    halves.Current.interpreted = halves.is_interpreted(item)


def skip_marked(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


def with_levels(items: list[pytest.Item]) -> list[tuple[pytest.Item, str]]:
    """The tests that are there for several levels, and their levels."""
    params = [(item, getattr(getattr(item, "callspec", None), "params", {})) for item in items]
    return [(item, p["level"]) for item, p in params if isinstance(p.get("level"), str)]


def of_lower_levels(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests of compiled code for a level where the same test is there for a higher one: what
    checks memory is the same at all of them."""
    from tessera.target.machine import supported_levels

    order = [*supported_levels(), "host"]
    found = [
        (item, item.nodeid.partition("[")[0], order.index(level) if level in order else -1)
        for item, level in with_levels(items)
    ]
    best: dict[str, int] = {}
    for _, name, rank in found:
        best[name] = max(best.get(name, 0), rank)
    for item, name, rank in found:
        if rank < best[name]:
            yield item


def skip_host_level(items: list[pytest.Item]) -> None:
    """Skips tests for this machine where the same test is there for its level."""
    from tessera.target.machine import supported_levels

    highest = supported_levels()[-1]
    found = with_levels(items)
    there = {item.nodeid for item, level in found if level == highest}
    for item, level in found:
        if level == "host" and item.nodeid.replace("host", highest) in there:
            item.add_marker(pytest.mark.skip(reason="its level has a test of its own"))


def missing_gpu() -> str | None:
    """Why no test can run on a GPU here, or None when one can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver (libcuda.so.1)"
    if status := driver.cuInit(0):
        return f"the CUDA driver does not start (cuInit returned {status})"
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return "no CUDA device"
    if importlib.util.find_spec("cuda") is None:
        return "cuda-python is not installed (the cuda extra)"
    return None
