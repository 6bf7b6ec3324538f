"""Mistakes with refs."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_another_shape() -> None:
    expect(
        """
        scale = ts.Ref(ts.ones(3), name="scale")
        scale.set(ts.ones(4))
        """,
        """
        ShapeError: Ref.set: the value is f32[4], and `scale` holds f32[3]
          at user.py:2
            2 | scale.set(ts.ones(4))
              | ^^^^^^^^^^^^^^^^^^^^^
          rule: a ref keeps the shapes and the dtypes that it was made with
          fix: make another ref, or write a part of it: `ref[i] = value`
        """,
    )


def test_another_dtype() -> None:
    expect(
        """
        count = ts.Ref(0, name="count")

        @ts.jit
        def f(x):
            count.update(lambda n: n + x)

        f(0.5)
        """,
        """
        DTypeError: Ref.update: the result of <lambda> is f32[], and `count` holds i64[]
          at user.py:5 in f
            5 |     count.update(lambda n: n + x)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:7
            7 | f(0.5)
              | ^^^^^^
          rule: a ref keeps the shapes and the dtypes that it was made with
          fix: convert it: `x.astype(ts.int64)`
        """,
    )


def test_another_structure() -> None:
    expect(
        """
        stats = ts.Ref({"mean": ts.zeros(3), "count": 0}, name="stats")
        stats.set({"mean": ts.ones(3)})
        """,
        """
        PytreeError: Ref.set: the value and the contents of `stats` differ in structure; at value: only the contents of `stats` has 'count'
          at user.py:2
            2 | stats.set({"mean": ts.ones(3)})
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: both must have the same containers, keys and lengths, and None in the same places
          the value: {'mean': *}
          the contents of `stats`: {'count': *, 'mean': *}
        """,
    )


def test_elements_of_a_container() -> None:
    expect(
        """
        stats = ts.Ref({"mean": ts.zeros(3), "count": 0}, name="stats")
        stats[0] = 1.0
        """,
        """
        CallError: Ref: elements of `stats` are written, which holds {'count': *, 'mean': *}
          at user.py:2
            2 | stats[0] = 1.0
              | ^^^^^^^^
          rule: elements are those of one array
          fix: take the container with `ref.get()`, and write it with `ref.set(value)`
        """,
    )


def test_nothing_to_hold() -> None:
    expect(
        """
        ts.Ref({}, name="nothing")
        """,
        """
        CallError: Ref: the value has no arrays
          at user.py:1
            1 | ts.Ref({}, name="nothing")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a ref holds an array, or a container of arrays
        """,
    )


def test_a_name_that_is_none() -> None:
    expect(
        """
        ts.Ref(0, name="")
        """,
        """
        OptionError: Ref: the name is ''
          at user.py:1
            1 | ts.Ref(0, name="")
              | ^^^^^^^^^^^^^^^^^^
          rule: it is a string that is not empty
        """,
    )


def test_each_example_writes() -> None:
    expect(
        """
        last = ts.Ref(0.0, name="last")

        def f(x):
            last.set(x)
            return x

        ts.vmap(f)(ts.ones(3))
        """,
        """
        StateError: vmap: f writes the ref `last`, each example something else
          at user.py:4 in f
            4 |     last.set(x)
              |     ^^^^^^^^^^^
          called from user.py:7
            7 | ts.vmap(f)(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^
          rule: under `vmap` a ref has one value for all examples, as what is not batched
          fix: write what is the same for all, as with `ts.pmean(x, axis_name)`; or return it, and write the ref outside
        """,
    )


def test_passed_twice() -> None:
    expect(
        """
        cache = ts.Ref(ts.zeros(3), name="cache")

        @ts.jit
        def copy(old, new):
            new.set(old.get())

        copy(cache, cache)
        """,
        """
        StateError: jit: copy is passed the ref `cache` twice
          at user.py:7
            7 | copy(cache, cache)
              | ^^^^^^^^^^^^^^^^^^
          rule: a ref has one user at a time: in a call it has one name
          fix: pass it once
        """,
    )


def test_passed_and_found() -> None:
    expect(
        """
        cache = ts.Ref(ts.zeros(3), name="cache")

        @ts.jit
        def copy(new):
            new.set(cache.get())

        copy(cache)
        """,
        """
        StateError: jit: copy is passed the ref `cache`, and finds it outside as well
          at user.py:7
            7 | copy(cache)
              | ^^^^^^^^^^^
          rule: a ref has one user at a time: in a call it has one name
          fix: pass it, or let the function find it, but not both
        """,
    )


def test_argument_is_kept() -> None:
    expect(
        """
        kept = []

        @ts.jit
        def f(ref):
            kept.append(ref)
            return ref.get()

        f(ts.Ref(1.0, name="cache"))
        kept[0].get()
        """,
        """
        StateError: use of the ref `cache`, an argument, after `jit` has traced f
          at user.py:9
            9 | kept[0].get()
              | ^^^^^^^^^^^^^
          rule: in a function that is traced, an argument stands for the ref of each call
          fix: use the ref that was passed; keep no argument in a global, an attribute or a list
        """,
    )


def test_local_is_kept() -> None:
    expect(
        """
        kept = []

        @ts.jit
        def f(x):
            kept.append(ts.Ref(x, name="total"))
            return x

        f(1.0)
        kept[0].set(2.0)
        """,
        """
        StateError: use of the ref `total`, made while `jit` traced f, after that
          at user.py:9
            9 | kept[0].set(2.0)
              | ^^^^^^^^^^^^^^^^
          rule: a ref that a traced function makes is local to it, and ends with it
          fix: make the ref before the call, and use it in the function or pass it
        """,
    )


def test_returned() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            return ts.Ref(x, name="total")

        f(1.0)
        """,
        """
        LeafError: jit: the result of f is the ref `total`
          at user.py:5
            5 | f(1.0)
              | ^^^^^^
          rule: a ref holds arrays and is none
          fix: read it, `ref.get()`; or let the function find the ref outside: `lambda x: f(x, ref)`
        """,
    )


def test_an_old_value_is_written() -> None:
    expect(
        """
        kept = []
        last = ts.Ref(0.0, name="last")

        @ts.jit
        def f(x):
            kept.append(x)
            return x

        f(1.0)
        last.set(kept[0])
        """,
        """
        TracerLeakError: use of a traced value of type f32[] after `jit` has traced f
          at user.py:10
            10 | last.set(kept[0])
               | ^^^^^^^^^^^^^^^^^
          rule: traced values live only while their function is traced
          the value is argument `x` of f
          it is kept in the global `kept[0]`
          fix: return it from the function; keep none in a global, an attribute or a list
        """,
    )


def test_condition_writes() -> None:
    expect(
        """
        count = ts.Ref(0, name="count")

        def test(i):
            count.update(lambda n: n + 1)
            return i < 3

        ts.while_loop(test, lambda i: i + 1, 0)
        """,
        """
        StateError: while_loop: test writes the ref `count`
          at user.py:4 in test
            4 |     count.update(lambda n: n + 1)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:7
            7 | ts.while_loop(test, lambda i: i + 1, 0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a condition reads refs and writes none: it is asked once more often than the step is made
          fix: write it in <lambda>, or after the loop
        """,
    )


def test_function_with_rules_writes() -> None:
    expect(
        """
        count = ts.Ref(0, name="count")

        @ts.custom_vjp
        def f(x):
            count.update(lambda n: n + 1)
            return x

        f.defvjp(lambda x: (x, None), lambda _, g: (g,))
        ts.grad(f)(1.0)
        """,
        """
        StateError: `custom_vjp` traces f, which writes the ref `count`
          at user.py:5 in f
            5 |     count.update(lambda n: n + 1)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:9
            9 | ts.grad(f)(1.0)
              | ^^^^^^^^^^^^^^^
          rule: `custom_vjp` takes functions that write no refs: it does not say how often they run
          fix: return the new contents, and write them outside
        """,
    )


def test_reduction_writes() -> None:
    expect(
        """
        count = ts.Ref(0, name="count")

        def add(a, b):
            count.update(lambda n: n + 1)
            return a + b

        ts.reduce(ts.ones(4), 0.0, add, (0,))
        """,
        """
        StateError: `reduce` traces add, which writes the ref `count`
          at user.py:4 in add
            4 |     count.update(lambda n: n + 1)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:7
            7 | ts.reduce(ts.ones(4), 0.0, add, (0,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: `reduce` takes functions that write no refs: it does not say how often they run
          fix: return the new contents, and write them outside
        """,
    )


def test_combination_writes() -> None:
    expect(
        """
        count = ts.Ref(0, name="count")

        def add(a, b):
            count.update(lambda n: n + 1)
            return a + b

        ts.associative_scan(add, ts.ones(4))
        """,
        """
        StateError: associative_scan: add writes the ref `count`
          at user.py:4 in add
            4 |     count.update(lambda n: n + 1)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:7
            7 | ts.associative_scan(add, ts.ones(4))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: what a transform calls as often as it needs reads refs and writes none
          fix: return what is to be written, and write it outside
        """,
    )


def test_deleted() -> None:
    expect(
        """
        cache = ts.Ref(ts.zeros(3), name="cache")
        cache.delete()
        cache.get()
        """,
        """
        StateError: use of the ref `cache` after it was deleted
          at user.py:3
            3 | cache.get()
              | ^^^^^^^^^^^
          rule: `ref.delete()` gives the memory of a ref back
          fix: make another one: `ts.Ref(value)`
        """,
    )


def test_deleted_in_a_program() -> None:
    expect(
        """
        cache = ts.Ref(ts.zeros(3), name="cache")
        ts.jit(cache.delete)()
        """,
        """
        StateError: Ref.delete of `cache` while `jit` traces a function
          at user.py:2
            2 | ts.jit(cache.delete)()
              | ^^^^^^^^^^^^^^^^^^^^^^
          rule: a program cannot delete a ref
          fix: delete it after the call
        """,
    )


def test_used_in_a_callback() -> None:
    expect(
        """
        cache = ts.Ref(ts.zeros(3), name="cache")

        @ts.jit
        def f(x):
            cache[0] = x
            ts.debug.callback(lambda _: print(cache.get()), x)

        f(1.0)
        """,
        """
        StateError: use of the ref `cache` while a call of f writes it
          at user.py:6 in <lambda>
            6 |     ts.debug.callback(lambda _: print(cache.get()), x)
              |                                       ^^^^^^^^^^^
          called from user.py:8
            8 | f(1.0)
              | ^^^^^^
          rule: a ref has one user at a time: its memory belongs to a call that writes it until that returns
          fix: pass the contents to the callback as an argument
        """,
    )


def test_used_as_an_array() -> None:
    expect(
        """
        scale = ts.Ref(2.0, name="scale")
        scale * 3.0
        """,
        """
        StateError: use of the ref `scale` as an array
          at user.py:2
            2 | scale * 3.0
              | ^^^^^^^^^^^
          rule: a ref holds an array and is none
          fix: read it: `ref.get()`, or `ref[...]`
        """,
    )


def test_an_argument_of_a_function() -> None:
    expect(
        """
        scale = ts.Ref(2.0, name="scale")
        ts.sin(scale)
        """,
        """
        LeafError: sin: got the ref `scale`, which is no array
          at user.py:2
            2 | ts.sin(scale)
              | ^^^^^^^^^^^^^
          rule: functions of arrays take arrays and Python numbers; a ref holds arrays
          fix: read it: `ref.get()`, or `ref[...]`
        """,
    )


def test_batched() -> None:
    expect(
        """
        scale = ts.Ref(2.0, name="scale")
        ts.vmap(lambda x, ref: x * ref.get())(ts.ones(3), scale)
        """,
        """
        StateError: vmap: the ref `scale` has the axis 0 in in_axes
          at user.py:2
            2 | ts.vmap(lambda x, ref: x * ref.get())(ts.ones(3), scale)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: under `vmap` a ref has one value for all examples, as what is not batched
          fix: give None for it, as in `in_axes=(0, None)`
        """,
    )


def test_differentiated_twice() -> None:
    expect(
        """
        scale = ts.Ref(2.0, name="scale")
        ts.grad(lambda a, b: a.get() * b.get(), argnums=(0, 1))(scale, scale)
        """,
        """
        StateError: grad: <lambda> is passed the ref `scale` twice
          at user.py:2
            2 | ts.grad(lambda a, b: a.get() * b.get(), argnums=(0, 1))(scale, scale)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a ref has one user at a time: in a call it has one name
          fix: pass it once
        """,
    )


def test_no_derivative() -> None:
    expect(
        """
        state = ts.Ref({"scale": 2.0, "count": 0}, name="state")
        ts.grad(lambda ref: ref.get()["scale"])(state)
        """,
        """
        GradError: grad: argument `ref['count']` of <lambda> has dtype int64, which has no derivative
          at user.py:2
            2 | ts.grad(lambda ref: ref.get()["scale"])(state)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: differentiated inputs are floating-point or complex numbers
          fix: convert it (`ts.astype(x, ts.float32)`), or leave it out with `argnums`
        """,
    )


def test_result_of_a_transform() -> None:
    expect(
        """
        scale = ts.Ref(2.0, name="scale")
        ts.cond(True, lambda: scale, lambda: scale)
        """,
        """
        LeafError: cond: the result of <lambda> is the ref `scale`
          at user.py:2
            2 | ts.cond(True, lambda: scale, lambda: scale)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a ref holds arrays and is none
          fix: read it, `ref.get()`; or let the function find the ref outside: `lambda x: f(x, ref)`
        """,
    )


def test_scanned() -> None:
    expect(
        """
        total = ts.Ref(ts.zeros(3), name="total")
        ts.scan(lambda c, x: (c, x), 0.0, total)
        """,
        """
        LeafError: scan: xs is the ref `total`
          at user.py:2
            2 | ts.scan(lambda c, x: (c, x), 0.0, total)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a ref holds arrays and is none
          fix: read it, `ref.get()`; or let the function find the ref outside: `lambda x: f(x, ref)`
        """,
    )


def test_carried_and_replaced() -> None:
    expect(
        """
        old, new = ts.Ref(0.0, name="old"), ts.Ref(0.0, name="new")
        ts.fori_loop(0, 3, lambda i, refs: (refs[1], refs[0]), (old, new))
        """,
        """
        StateError: fori_loop: a step carries on the ref `new` where it was not
          at user.py:2
            2 | ts.fori_loop(0, 3, lambda i, refs: (refs[1], refs[0]), (old, new))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a loop carries a ref as it is: what changes are its contents
          fix: write the ref, and return it in its place
        """,
    )


def test_undeclared_effect() -> None:
    expect(
        """
        count = ts.Ref(0, name="count")

        @ts.function(effects=[])
        def f(x):
            count.update(lambda n: n + 1)
            return x

        f(1.0)
        """,
        """
        EffectError: f has the effect `memory(count)`, which it does not declare: that of the ref `count`
          at user.py:5 in f
            5 |     count.update(lambda n: n + 1)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:8
            8 | f(1.0)
              | ^^^^^^
          rule: a function that declares effects has no others; this one declares none
          fix: declare it, `effects=["memory(count)"]`, or put the line under `with ts.effects.suspend("memory(count)"):`
        """,
    )


def test_a_rule_that_writes_a_tangent() -> None:
    expect(
        """
        norm = ts.Ref(0.0, name="norm")

        @ts.custom_jvp
        def f(x):
            return x * 2

        @f.defjvp
        def f_jvp(primals, tangents):
            norm.set(tangents[0])
            return primals[0] * 2, tangents[0] * 2

        ts.grad(f)(1.0)
        """,
        """
        StateError: the ref `norm` is written with what depends on a tangent, in reverse mode
          at user.py:9 in f_jvp
            9 |     norm.set(tangents[0])
              |     ^^^^^^^^^^^^^^^^^^^^^
          called from user.py:12
            12 | ts.grad(f)(1.0)
               | ^^^^^^^^^^^^^^^
          rule: reverse mode does not compute tangents: it runs their computation backwards
          fix: take `ts.jvp`; or write it in the bwd rule of a `ts.custom_vjp`, which has cotangents
        """,
    )


def test_a_rule_that_writes_for_each_example() -> None:
    expect(
        """
        norm = ts.Ref(0.0, name="norm")

        @ts.custom_vjp
        def f(x):
            return x

        def f_bwd(x, ct):
            norm.set(x * ct)
            return (ct,)

        f.defvjp(lambda x: (x, x), f_bwd)
        ts.grad(lambda xs: ts.sum(ts.vmap(f)(xs)))(ts.ones(3))
        """,
        """
        StateError: vmap: a rule writes the ref `norm`, each example something else
          at user.py:8 in f_bwd
            8 |     norm.set(x * ct)
              |     ^^^^^^^^^^^^^^^^
          called from user.py:12
            12 | ts.grad(lambda xs: ts.sum(ts.vmap(f)(xs)))(ts.ones(3))
               | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: under `vmap` a ref has one value for all examples, as what is not batched
          fix: write it in a rule of the whole batch: put `ts.vmap` into the function that has the rule, or write what is the same for all, such as a count
        """,
    )
