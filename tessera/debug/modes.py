"""Modes that programs run in while somebody looks for a mistake."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from tessera.api.sentinels import checking, checks_of
from tessera.api.watch import watching
from tessera.config import config


@contextmanager
def disable_jit(disable: bool = True) -> Generator[None, None, None]:
    """Runs jitted functions as Python within a ``with`` block, or as a decorator.

    Each operation is computed at once, so that arrays have values: `print`, `if` and a debugger
    work on them. `ts.cond`, `ts.while_loop` and `ts.fori_loop` are then `if` and `while`. Functions
    under `vmap` are traced all the same.

    Args:
        disable: False puts `jit` back in force.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... def f(x):
        ...     print("x is", x)
        ...     return x + 1
        >>> with ts.debug.disable_jit():
        ...     y = f(2.0)
        x is 2.0
    """
    with config.update(disable_jit=disable):
        yield


@contextmanager
def sentinels(check: str | Sequence[str] = "nan,inf,bounds") -> Generator[None, None, None]:
    """Compiles sentinels into functions, within a ``with`` block or as a decorator.

    What is called inside is compiled once more, with code that looks for NaN and infinities where
    they first appear, and for indices out of range; operations outside of compiled functions are
    looked at one by one. Code that runs outside of the block is as it was.

    Args:
        check: some of "nan", "inf", "overflow" (an infinity of finite operands that is no value at
            a pole, as 1 / 0 is) and "bounds", separated by commas.

    Raises:
        OptionError: there is no such check.
        NonFiniteError: an operation gave NaN of operands without NaN, or an infinity of finite
            ones. The error says which, on which line, where, of which values, in the forward or
            the backward pass, and in which step of a loop.
        IndexOutOfBoundsError: an index is out of range, and no `mode` says what becomes of it.

    Example:
        >>> import tessera as ts
        >>> f = ts.jit(lambda x: ts.sum(ts.exp(x)))
        >>> with ts.debug.sentinels():
        ...     try:
        ...         f(ts.asarray([1.0, 1000.0]))
        ...     except ts.errors.NonFiniteError as error:
        ...         print(error.what)
        exp: the result has Inf at [1], in the forward pass
    """
    with checking(checks_of("sentinels", check)), watching():
        yield


@contextmanager
def nans(*, infs: bool = False) -> Generator[None, None, None]:
    """Fails where an operation gives NaN, within a ``with`` block or as a decorator.

    Operations are checked one by one. Compiled functions run as they are; where a result of one has
    NaN, it is computed once more, operation by operation, to find the one where it began.

    Args:
        infs: whether to fail for infinities too.

    Raises:
        NonFiniteError: an operation gave NaN. The error says which, on which line, in the forward
            or the backward pass, and of which values.

    Example:
        >>> import tessera as ts
        >>> with ts.debug.nans():
        ...     try:
        ...         ts.jit(lambda x: ts.log(x) * 0)(ts.asarray([1.0, -1.0]))
        ...     except ts.errors.NonFiniteError as error:
        ...         print(error.what)
        log: the result has NaN at [1], in the forward pass
    """
    with config.update(debug_nans=True, debug_infs=infs), watching():
        yield
