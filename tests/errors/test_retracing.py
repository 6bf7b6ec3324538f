"""Functions that are traced again and again, and values that outlive their trace."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

import dataclasses

import tessera as ts
from tests.errors.message import expect
from tests.fake_gpu import fake_gpu


def test_max_traces() -> None:
    expect(
        """
        @ts.jit(max_traces=2)
        def f(x, scale):
            return x * scale["by"]

        f(ts.ones(3), {"by": 2.0})
        f(ts.ones(4), {"by": 2.0})
        f(ts.ones(4), {"by": 3.0})
        f(ts.ones(5), {"by": 2.0})
        """,
        """
        RetraceError: jit: f would be traced for the 3rd time
          at user.py:8
            8 | f(ts.ones(5), {"by": 2.0})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it was compiled with max_traces=2
          what is new: argument `x` has shape [5], not [4] (against trace 2)
          traced before:
            1. at user.py:5:1: the first call
            2. at user.py:6:1: argument `x` has shape [4], not [3]
          fix: call it with the same shapes, dtypes and static values, or raise `max_traces`
        """,
    )


def test_max_traces_and_a_lambda_as_static_argument() -> None:
    expect(
        """
        @ts.jit(static_argnames="fn", max_traces=1)
        def f(x, fn):
            return fn(x)

        for _ in range(2):
            f(ts.ones(3), lambda x: x + 1)
        """,
        """
        RetraceError: jit: f would be traced for the 2nd time
          at user.py:6
            6 |     f(ts.ones(3), lambda x: x + 1)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it was compiled with max_traces=1
          what is new: static argument `fn` is another function, and equals none before: pass the same function each time
          traced before:
            1. at user.py:6:5: the first call
          fix: call it with the same shapes, dtypes and static values, or raise `max_traces`
        """,
    )


def test_max_traces_is_a_count() -> None:
    expect(
        """
        ts.jit(lambda x: x, max_traces=0)
        """,
        """
        OptionError: jit: max_traces is 0
          at user.py:1
            1 | ts.jit(lambda x: x, max_traces=0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is a number of traces, at least 1, or None
        """,
    )


def reasons(text: str) -> list[str]:
    """What `why_retraced` says of each trace, without the places."""
    return [line.partition(": ")[2] for line in text.splitlines()[1:]]


def test_why_retraced() -> None:
    f = ts.jit(lambda x, p: x + p["a"][0])
    assert f.why_retraced() == "<lambda> was not traced yet"
    f(ts.ones(3), {"a": [1.0]})
    f(ts.ones(3), {"a": [2.0]})
    assert f.why_retraced().startswith("<lambda> was traced once")
    f(ts.ones(4), {"a": [1.0]})
    f(ts.ones(4, dtype=ts.float64), {"a": [2]})
    f(ts.ones(4), {"a": [1.0, 2.0]})
    f(ts.asarray(1.0), {"a": [1.0]})
    f(1.0, {"a": [1.0]})
    assert reasons(f.why_retraced()) == [
        "the first call",
        "argument `x` has shape [4], not [3]",
        "argument `x` has dtype float64, not float32; "
        "argument `p['a'][0]` has dtype int64, not float32 (against trace 2)",
        "argument `p['a'][1]` is new, f32[], a Python number (weakly typed) (against trace 2)",
        "argument `x` has shape [], not [4] (against trace 2)",
        "argument `x` is a Python number (weakly typed), not an array (against trace 5)",
    ]


def test_why_retraced_tells_static_values_and_structures() -> None:
    f = ts.jit(lambda x, n=1: ts.sum(ts.stack(list(x))) * n, static_argnames="n")
    one = ts.ones(2)
    f([one, one])
    f((one, one))
    f((one, one), n=2)
    f((one, one), n=2.0)
    assert reasons(f.why_retraced()) == [
        "the first call",
        "argument `x`: this call has a tuple, the one before a list",
        "static argument `n` is new, 2 (against trace 2)",
        "static argument `n` is 2.0, not 2 (against trace 3)",
    ]


def test_why_retraced_tells_static_fields_and_devices() -> None:
    @ts.pytree.register_dataclass
    @dataclasses.dataclass
    class Layer:
        w: object
        width: int = dataclasses.field(default=1, metadata={"static": True})

    f = ts.jit(lambda layers: layers["a"].w * 2)
    f({"a": Layer(1.0, 3)})
    f({"a": Layer(1.0, 4)})
    assert reasons(f.why_retraced())[1:] == [
        "argument `layers['a']`: the field `width` is 4 in this call, 3 in the one before"
    ]
    g = ts.jit(lambda x: x + 1)
    g(ts.ones(2))
    with fake_gpu():
        g(ts.device_put(ts.ones(2), "cuda:1"))
    assert reasons(g.why_retraced())[1:] == ["it is called on cuda:1, not on cpu"]


def test_why_retraced_tells_settings() -> None:
    f = ts.jit(lambda x: x + 1)
    f(1.0)
    with ts.config.update(threads=ts.config.threads + 1):
        f(1.0)
    assert reasons(f.why_retraced())[1:] == [
        "the settings that compiled code depends on have changed"
    ]


def test_why_retraced_of_a_method() -> None:
    class Scale:
        @ts.jit
        def __call__(self, x):
            return x * 2

        @ts.jit
        def apply(self, x):
            return x * 2

    ts.pytree.register_pytree_node(Scale, lambda s: ((), None), lambda _, __: Scale())
    scale = Scale()
    scale.apply(1.0)
    scale.apply(2)
    assert reasons(scale.apply.why_retraced()) == [
        "the first call",
        "argument `x` has dtype int64, not float32",
    ]


# --- where a leaked tracer is kept -----------------------------------------------------------------


def leaked(program: str) -> str:
    """What the message says of the place that keeps the tracer."""
    from tests.errors.message import message

    lines = [line.strip() for line in message(program).splitlines()]
    return next((line for line in lines if line.startswith("it is kept")), "")


def test_leak_into_an_attribute() -> None:
    expect(
        """
        class Net:
            def __init__(self):
                self.cache = [None, None, None, {}]

            @ts.jit
            def __call__(self, x):
                self.cache[3]["k"] = x * 2
                return x

            def again(self):
                return self.cache[3]["k"] + 1

        ts.pytree.register_pytree_node(Net, lambda net: ((), net), lambda net, _: net)
        net = Net()
        net(ts.ones(3))
        net.again()
        """,
        """
        TracerLeakError: use of a traced value of type f32[3] after `jit` has traced __call__
          at user.py:11 in Net.again
            11 |         return self.cache[3]["k"] + 1
               |                ^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:16
            16 | net.again()
               | ^^^^^^^^^^^
          rule: traced values live only while their function is traced
          the value was computed at user.py:7:30 (multiply)
          it is kept in the variable `self.cache[3]['k']`
          fix: return it from the function; keep none in a global, an attribute or a list
        """,
    )


def test_leak_into_a_closure() -> None:
    program = """
    def make():
        total = 0.0

        @ts.jit
        def add(x):
            nonlocal total
            total = total + x
            return total

        return add

    add = make()
    add(1.0)
    add(ts.ones(3))
    """
    assert leaked(program) == "it is kept in the enclosing function's variable `total`"


def test_leak_into_a_closure_that_is_not_running() -> None:
    program = """
    def make():
        kept = {}
        def put(x):
            kept["last"] = x
            return x
        def get():
            return kept
        return put, get

    put, get = make()
    ts.jit(put)(1.0)
    ts.sin(get()["last"])
    """
    assert leaked(program) == "it is kept in the closure of put, as `kept['last']`"


def test_leak_into_a_default_argument() -> None:
    program = """
    def f(x, seen=[]):
        seen.append(x)
        return x

    ts.jit(f)(1.0)
    ts.sin(f.__defaults__[0][0])
    """
    assert leaked(program) == "it is kept in a default argument of f, `seen[0]`"


def test_leak_into_a_class() -> None:
    program = """
    class Net:
        last = None

    def f(x):
        Net.last = (1, x)
        return x

    ts.jit(f)(1.0)
    ts.sin(Net.last[1])
    """
    assert leaked(program) == "it is kept in the global `Net.last[1]`"


def test_a_local_variable_alone_keeps_nothing() -> None:
    program = """
    def run():
        out = iter([])
        def f(x):
            nonlocal out
            out = iter([x])
            return x

        ts.jit(f)(1.0)
        x = next(out)
        return x + 1

    run()
    """
    assert leaked(program) == ""
