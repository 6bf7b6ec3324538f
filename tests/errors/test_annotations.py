"""Mistakes in and against annotated shapes: dimension path, sizes, where they came from, remedy."""

# ruff: noqa: E501 -- messages stand as they are printed

from __future__ import annotations

from tests.errors.message import expect


def test_a_value_in_the_middle() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B", "D"]):
            y = ts.ensure(x.T, ts.Tensor["B", "D"])
            return y

        f(ts.ones((2, 2)))
        """,
        """
        ShapeError: ensure: `value: dim 0 "B"` is D, but B in the annotations of the function is B
          at user.py:3 in f
            3 |     y = ts.ensure(x.T, ts.Tensor["B", "D"])
              |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:6
            6 | f(ts.ones((2, 2)))
              | ^^^^^^^^^^^^^^^^^^
          rule: a dim is what its annotation says, and a name is one size in all of them
          `value` is Tensor["B", "D"] at user.py:3:24
          B is any size: that of `x: dim 0 "B"`
          D is any size: that of `x: dim 1 "D"`
          `x` is Tensor["B", "D"] at user.py:2
          fix: pass arrays whose dims agree, or give the dims other names
        """,
    )


def test_other_numbers_of_dims() -> None:
    expect(
        """
        with ts.config.update(rank_promotion="forbid"):
            ts.ones((2, 3)) + ts.ones(3)
        """,
        """
        ShapeError: add: got f32[2, 3] and f32[3], of different numbers of dims
          at user.py:2
            2 |     ts.ones((2, 3)) + ts.ones(3)
              |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: dims are not added in front while `rank_promotion` is `forbid`
          fix: insert dims of length 1 where they are missing, as in `x[None, :]`
        """,
    )


def test_a_limit_of_programs() -> None:
    expect(
        """
        @ts.jit(max_specializations=1)
        def f(x):
            return x

        f(ts.ones(2))
        f(ts.ones(3))
        """,
        """
        RetraceError: jit: f would be compiled once more, by a call with f32[3]
          at user.py:6
            6 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: it was made with max_specializations=1
          fix: annotate its parameters with `ts.Tensor`, so that sizes share programs, or raise `max_specializations`
        """,
    )


def test_sizes_that_differ() -> None:
    expect(
        """
        @ts.jit
        def scores(q: ts.Tensor["S", "D"], k: ts.Tensor["T", "D"]):
            return q @ k.T

        scores(ts.ones((2, 3)), ts.ones((2, 4)))
        """,
        """
        ShapeError: scores: `k: dim 1 "D"` is 4, but `q: dim 1 "D"` is 3
          at user.py:5
            5 | scores(ts.ones((2, 3)), ts.ones((2, 4)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a dim is what its annotation says, and a name is one size in all of them
          `q` is Tensor["S", "D"] at user.py:2
          `k` is Tensor["T", "D"] at user.py:2
          fix: pass arrays whose dims agree, or give the dims other names
        """,
    )


def test_a_size_in_a_tree() -> None:
    expect(
        """
        @ts.jit
        def f(params: {"attn": {"q": ts.Tensor["D", "D"]}}, x: ts.Tensor["S", "D"]):
            return x @ params["attn"]["q"]

        f({"attn": {"q": ts.ones((4, 4))}}, ts.ones((2, 3)))
        """,
        """
        ShapeError: f: `x: dim 1 "D"` is 3, but `params['attn']['q']: dim 0 "D"` is 4
          at user.py:5
            5 | f({"attn": {"q": ts.ones((4, 4))}}, ts.ones((2, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a dim is what its annotation says, and a name is one size in all of them
          `params['attn']['q']` is Tensor["D", "D"] at user.py:2
          `x` is Tensor["S", "D"] at user.py:2
          fix: pass arrays whose dims agree, or give the dims other names
        """,
    )


def test_a_size_that_is_a_number() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B", 128]):
            return x

        f(ts.ones((2, 100)))
        """,
        """
        ShapeError: f: `x: dim 1` is 100, not 128
          at user.py:5
            5 | f(ts.ones((2, 100)))
              | ^^^^^^^^^^^^^^^^^^^^
          rule: a dim is what its annotation says, and a name is one size in all of them
          `x` is Tensor["B", 128] at user.py:2
          fix: pass an array with 128, or name the dim, as in `ts.Tensor["N"]`
        """,
    )


def test_too_many_dims() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B", "D"]):
            return x

        f(ts.ones((2, 3, 4)))
        """,
        """
        ShapeError: f: `x` has shape [2, 3, 4], of 3 dims
          at user.py:5
            5 | f(ts.ones((2, 3, 4)))
              | ^^^^^^^^^^^^^^^^^^^^^
          rule: its annotation has 2 dims
          `x` is Tensor["B", "D"] at user.py:2
        """,
    )


def test_an_expression() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["S", "D"], y: ts.Tensor["S//2", "D"]):
            return ts.concat([x, y])

        f(ts.ones((8, 3)), ts.ones((5, 3)))
        """,
        """
        ShapeError: f: `y: dim 0 "S // 2"` is 5, but S // 2 is 4: S is 8 (`x: dim 0 "S"`)
          at user.py:5
            5 | f(ts.ones((8, 3)), ts.ones((5, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a dim is what its annotation says, and a name is one size in all of them
          `x` is Tensor["S", "D"] at user.py:2
          `y` is Tensor["S // 2", "D"] at user.py:2
          fix: pass arrays whose dims agree, or give the dims other names
        """,
    )


def test_a_dtype() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B", ts.float32]):
            return x

        f(ts.ones(2, dtype=ts.float64))
        """,
        """
        DTypeError: f: `x` has dtype float64
          at user.py:5
            5 | f(ts.ones(2, dtype=ts.float64))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: its annotation says float32; arguments are not converted
          `x` is Tensor["B", f32] at user.py:2
          fix: convert it: `x.astype(ts.float32)`
        """,
    )


def test_a_condition() -> None:
    expect(
        """
        @ts.jit
        @ts.constrain("D % 8 == 0", "B in 1..=4096")
        def f(x: ts.Tensor["B", "D"]):
            return x

        f(ts.ones((2, 12)))
        """,
        """
        ShapeError: f: D is 12 (`x: dim 1 "D"`)
          at user.py:6
            6 | f(ts.ones((2, 12)))
              | ^^^^^^^^^^^^^^^^^^^
          rule: D % 8 == 0, asked for at user.py:2:2
          `x` is Tensor["B", "D"] at user.py:3
          fix: pass arrays of sizes for which it holds
        """,
    )


def test_an_empty_dim() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B"]):
            return x

        f(ts.ones(0))
        """,
        """
        ShapeError: f: B is 0 (`x: dim 0 "B"`)
          at user.py:5
            5 | f(ts.ones(0))
              | ^^^^^^^^^^^^^
          rule: B >= 1, as long as nobody says B >= 0
          `x` is Tensor["B"] at user.py:2
          fix: pass arrays of sizes for which it holds, or write `@ts.constrain("B >= 0")`
        """,
    )


def test_names_that_are_not_known_to_be_equal() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B", "S"], y: ts.Tensor["B", "T"]):
            return x + y

        f(ts.ones((2, 3)), ts.ones((2, 3)))
        """,
        """
        ShapeError: add: got f32[B, S] and f32[B, T], which differ in dim -1: S and T
          at user.py:3 in f
            3 |     return x + y
              |            ^^^^^
          called from user.py:5
            5 | f(ts.ones((2, 3)), ts.ones((2, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: counted from the last, dims are equal, or one of them is 1 or missing
          S is any size: that of `x: dim 1 "S"`
          T is any size: that of `y: dim 1 "T"`
          `x` is Tensor["B", "S"] at user.py:2
          `y` is Tensor["B", "T"] at user.py:2
          fix: if these are one size, use one name, or say so: `@ts.constrain("S == T")`
        """,
    )


def test_a_product_of_other_sizes() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B", "D"], w: ts.Tensor[128, "E"]):
            return x @ w

        f(ts.ones((2, 128)), ts.ones((128, 3)))
        """,
        """
        ShapeError: matmul: x1 is f32[B, D], x2 is f32[128, E]; dim 1 of x1 is D, but dim 0 of x2 is 128
          at user.py:3 in f
            3 |     return x @ w
              |            ^^^^^
          called from user.py:5
            5 | f(ts.ones((2, 128)), ts.ones((128, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the dims that are summed over have equal lengths
          D is any size: that of `x: dim 1 "D"`
          `x` is Tensor["B", "D"] at user.py:2
          fix: if these are one size, write 128 in the place of D, or say so: `@ts.constrain("D == 128")`
        """,
    )


def test_a_reshape_that_is_not_proved() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B", "D"]):
            B, D = x.shape
            return ts.reshape(x, (B, 8, D // 8))

        f(ts.ones((2, 16)))
        """,
        """
        ShapeError: reshape: f32[B, D] has B*D elements, which do not make the shape [B, 8, D // 8]
          at user.py:4 in f
            4 |     return ts.reshape(x, (B, 8, D // 8))
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:6
            6 | f(ts.ones((2, 16)))
              | ^^^^^^^^^^^^^^^^^^^
          rule: reshaping keeps the number of elements; one dim may be -1, for what is left
          B is any size: that of `x: dim 0 "B"`
          D is any size: that of `x: dim 1 "D"`
          `x` is Tensor["B", "D"] at user.py:2
          fix: if 8 divides D, say so: `@ts.constrain("D % 8 == 0")`
        """,
    )


def test_a_result() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B", "D"]) -> ts.Tensor["D", "B"]:
            y = x * 2
            return y

        f(ts.ones((2, 2)))
        """,
        """
        ShapeError: f: `result: dim 0 "D"` is B, but `x: dim 1 "D"` is D
          at user.py:3 in f
            3 |     y = x * 2
              |         ^^^^^
          called from user.py:6
            6 | f(ts.ones((2, 2)))
              | ^^^^^^^^^^^^^^^^^^
          rule: a dim is what its annotation says, and a name is one size in all of them
          `x` is Tensor["B", "D"] at user.py:2
          `result` is Tensor["D", "B"] at user.py:2
          fix: change the result, or its annotation
        """,
    )


def test_a_guard() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B", "D"]):
            return x[4]

        f(ts.ones((5, 2)))
        f(ts.ones((4, 2)))
        """,
        """
        ShapeError: f: B is 4 (`x: dim 0 "B"`)
          at user.py:6
            6 | f(ts.ones((4, 2)))
              | ^^^^^^^^^^^^^^^^^^
          rule: B >= 5, asked for at user.py:3:12
          `x` is Tensor["B", "D"] at user.py:2
          fix: pass arrays of sizes for which it holds
        """,
    )


def test_a_decision() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B"]):
            return x if x.shape[0] < 4 else x * 2

        f(ts.ones(5))
        """,
        """
        ConcretizationError: whether B < 4 is not known
          at user.py:3 in f
            3 |     return x if x.shape[0] < 4 else x * 2
              |                 ^^^^^^^^^^^^^^
          called from user.py:5
            5 | f(ts.ones(5))
              | ^^^^^^^^^^^^^
          rule: a dim with a name is any size, for which a program is traced once
          fix: if it holds for all sizes, state it: `@ts.constrain("B < 4")`; or write what does for both
        """,
    )


def test_a_loop_over_a_dim() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B"]):
            return sum(x[k] for k in range(x.shape[0]))

        f(ts.ones(5))
        """,
        """
        ConcretizationError: use of the dim B as a Python integer
          at user.py:3 in f
            3 |     return sum(x[k] for k in range(x.shape[0]))
              |                              ^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | f(ts.ones(5))
              | ^^^^^^^^^^^^^
          rule: it is any size, and has no number while the function is traced
          fix: use an array, `ts.asarray(x.shape[0])`, which has the size of each call; loop with `ts.fori_loop`; or write a number into the annotation
        """,
    )


def test_conditions_that_contradict_each_other() -> None:
    expect(
        """
        @ts.jit
        @ts.constrain("S % 8 == 0", "S < 8")
        def f(x: ts.Tensor["S"]):
            return x

        f(ts.ones(8))
        """,
        """
        OptionError: f: no sizes satisfy S % 8 == 0 and S < 8 and S >= 1
          at user.py:2
            2 | @ts.constrain("S % 8 == 0", "S < 8")
              |  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: some sizes satisfy all conditions; a dim is 1 or more unless they say `S >= 0`
          fix: leave one of them out
        """,
    )


def test_max_specializations() -> None:
    expect(
        """
        @ts.jit(max_specializations=1)
        def f(x: ts.Tensor[ts.dim("S", 1, 512, tile=16), "D"]):
            return x

        f(ts.ones((32, 2)))
        f(ts.ones((5, 2)))
        """,
        """
        RetraceError: jit: f would be compiled once more, for all other sizes, by a call with f32[5, 2]
          at user.py:6
            6 | f(ts.ones((5, 2)))
              | ^^^^^^^^^^^^^^^^^^
          rule: it was made with max_specializations=1
          compiled before: S % 16 == 0
          fix: call it with sizes of these classes, or raise `max_specializations`; `f.specializations()` lists all
        """,
    )


def test_names_out_of_reach() -> None:
    expect(
        """
        from __future__ import annotations

        def make():
            def f(x: ts.Tensor[S]):
                return x

            S = ts.dim("S", 1, 9)

            return f

        ts.jit(make())(ts.ones(3))
        """,
        """
        OptionError: Tensor: the annotation of `x` cannot be evaluated: name 'S' is not defined
          at user.py:4
            4 |     def f(x: ts.Tensor[S]):
          rule: its names are those of the module, of the function around, or what it uses
          fix: define them there, or leave out `from __future__ import annotations`
        """,
    )


def test_a_dtype_that_is_text() -> None:
    expect(
        """
        ts.Tensor["B", "f32"]
        """,
        """
        OptionError: Tensor: the last dim is 'f32', the name of a dtype
          at user.py:1
            1 | ts.Tensor["B", "f32"]
              | ^^^^^^^^^^^^^^^^^^^^^
          rule: strings are dims, dtypes are objects
          fix: write `ts.float32`
        """,
    )


def test_a_list() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B"]):
            return x

        f([1.0, 2.0])
        """,
        """
        LeafError: f: `x` is of type list, and no array
          at user.py:5
            5 | f([1.0, 2.0])
              | ^^^^^^^^^^^^^
          rule: its annotation is that of one array
          `x` is Tensor["B"] at user.py:2
          fix: make an array of it with `ts.asarray`
        """,
    )


def test_a_result_that_is_shorter() -> None:
    expect(
        """
        @ts.jit
        def f(x: ts.Tensor["B"]) -> dict[str, ts.Tensor["B"]]:
            return {"next": x[1:]}

        f(ts.ones(2))
        """,
        """
        ShapeError: f: `result['next']: dim 0 "B"` is B - 1, but `x: dim 0 "B"` is B
          at user.py:3 in f
            3 |     return {"next": x[1:]}
              |                     ^^^^^
          called from user.py:5
            5 | f(ts.ones(2))
              | ^^^^^^^^^^^^^
          rule: a dim is what its annotation says, and a name is one size in all of them
          `x` is Tensor["B"] at user.py:2
          `result['next']` is Tensor["B"] at user.py:2
          fix: change the result, or its annotation
        """,
    )


def test_a_dim_that_cannot_be_read() -> None:
    expect(
        """
        ts.Tensor["B", "S +"]
        """,
        """
        OptionError: Tensor: the dim 'S +' cannot be read: index expression 'S +', column 4: expected a number, a name, '-' or '('
          at user.py:1
            1 | ts.Tensor["B", "S +"]
              | ^^^^^^^^^^^^^^^^^^^^^
          rule: a dim is an int, a name, or an expression of these with + - * // % min max
          fix: as in `ts.Tensor["B", "S//2", "H*64"]`
        """,
    )


def test_a_condition_about_a_name_that_nothing_says() -> None:
    expect(
        """
        @ts.jit
        @ts.constrain("D == 64*H", "Q > 10")
        def f(x: ts.Tensor["B", "D"]):
            return x

        f(ts.ones((2, 64)))
        """,
        """
        OptionError: f: nothing says what Q is, in Q > 10
          at user.py:2
            2 | @ts.constrain("D == 64*H", "Q > 10")
              |  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a condition is about names of the function's annotations, or gives a name by these, as `H == D // 64` does
          fix: its annotations name B, D; or name a dim so: `ts.Tensor["Q"]`
        """,
    )


def test_a_condition_on_a_name_that_an_equation_gives() -> None:
    expect(
        """
        @ts.jit
        @ts.constrain("D == 64*H", "H <= 4")
        def f(x: ts.Tensor["B", "D"]):
            return x

        f(ts.ones((2, 320)))
        """,
        """
        ShapeError: f: H is 5 (H in `D == 64*H`)
          at user.py:6
            6 | f(ts.ones((2, 320)))
              | ^^^^^^^^^^^^^^^^^^^^
          rule: H <= 4, asked for at user.py:2:2
          fix: pass arrays of sizes for which it holds
        """,
    )


def test_a_condition_on_the_result() -> None:
    expect(
        """
        @ts.jit
        @ts.constrain("M <= 4")
        def f(x: ts.Tensor["N"]) -> ts.Tensor["M"]:
            return ts.concat([x, x])

        f(ts.ones(3))
        """,
        """
        ShapeError: f: N is 3 (`x: dim 0 "N"`)
          at user.py:6
            6 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: M <= 4, asked for at user.py:2:2
          `x` is Tensor["N"] at user.py:3
          fix: pass arrays of sizes for which it holds
        """,
    )


def test_a_result_that_is_not_what_an_equation_says() -> None:
    expect(
        """
        @ts.jit
        @ts.constrain("M == 2*N")
        def f(x: ts.Tensor["N"]) -> ts.Tensor["M"]:
            return ts.concat([x, x, x])

        f(ts.ones(3))
        """,
        """
        ShapeError: f: `result: dim 0 "M"` is 3*N, but M in `M == 2*N` is 2*N
          at user.py:4 in f
            4 |     return ts.concat([x, x, x])
              |            ^^^^^^^^^^^^^^^^^^^^
          called from user.py:6
            6 | f(ts.ones(3))
              | ^^^^^^^^^^^^^
          rule: a dim is what its annotation says, and a name is one size in all of them
          `result` is Tensor["M"] at user.py:3
          fix: change the result, or its annotation
        """,
    )


def test_a_result_is_checked_where_each_size_has_a_program_of_its_own() -> None:
    expect(
        """
        @ts.jit(memory_budget="1GB")
        def f(x: ts.Tensor["N"]) -> ts.Tensor["N"]:
            return ts.concat([x, x])

        f(ts.ones(4))
        """,
        """
        ShapeError: f: `result: dim 0 "N"` is 8, but `x: dim 0 "N"` is 4
          at user.py:3 in f
            3 |     return ts.concat([x, x])
              |            ^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | f(ts.ones(4))
              | ^^^^^^^^^^^^^
          rule: a dim is what its annotation says, and a name is one size in all of them
          `x` is Tensor["N"] at user.py:2
          `result` is Tensor["N"] at user.py:2
          fix: change the result, or its annotation
        """,
    )
