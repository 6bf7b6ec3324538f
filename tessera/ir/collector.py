"""Python's garbage collector while programs are lowered.

Lowering makes hundreds of thousands of objects that live until the program is done. Each time their
number has grown by a quarter Python looks through all objects of the process, in vain, which takes
a third of the time of lowering a large program.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_NEVER = 1 << 30

_lock = threading.Lock()
_inside = 0
_usual = 0


@contextmanager
def young_garbage_only() -> Generator[None, None, None]:
    """Within the block, young objects are collected as always, and old ones are not looked at.

    Blocks may nest, and run on several threads: what was set before the first of them is set again
    after the last.
    """
    global _inside, _usual
    with _lock:
        if not _inside:
            young, middle, _usual = gc.get_threshold()
            gc.set_threshold(young, middle, _NEVER)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            young, middle, old = gc.get_threshold()
            # Somebody else may have set another number meanwhile, which stays.
            if not _inside and old == _NEVER:
                gc.set_threshold(young, middle, _usual)
