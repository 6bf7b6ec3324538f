"""Attributes that are computed when they are first read.

Python 3.11's `functools.cached_property` has one lock for all instances of a class, and holds it
while it computes: threads would compile one after the other, and the child of a fork would wait for
a thread that it has not. From 3.12 on it has none, and neither has this.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:
        """What a method gives, kept in the instance; two threads may compute it, one is kept."""

        def __init__(self, compute):
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.name, self.compute(instance))


__all__ = ["cached_property"]
