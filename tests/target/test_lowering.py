"""Small Tile kernels through every rule of the CPU lowering: the Tile interpreter, the Target
interpreter before and after legalization, and compiled code agree.

A case is the body of one kernel, in which `%i0` to `%i32` are index constants, `%n` and `%m` the
dims N and M, and `%p`, `%q`, `%r` the program ids. Its arguments are inputs, then outputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from tessera.dtypes import DType, dtype_of
from tests.target.running import ALL_LEVELS, HOWS, Array, run, sample, ulps

INDICES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 32)
DIMS = {"N": 21, "M": 13}


@dataclass(frozen=True)
class Case:
    """One kernel.

    Attributes:
        name: of the test.
        inputs: arrays, or what `sample` makes one of: dtype and shape.
        outputs: dtype and number of elements of each output.
        body: Tile IR; types of results are left out where `typed` can tell them.
        grid: the grid.
        arrays: inputs that are not random, by position.
        units: allowed difference of floats.
        untouched: output elements that nothing writes.
    """

    name: str
    inputs: Sequence[tuple[str, tuple[int, ...]]]
    outputs: Sequence[tuple[str, int]]
    body: str
    grid: Sequence[str] = ("1",)
    arrays: Mapping[int, Array] = field(default_factory=dict)
    units: float = 4
    untouched: int = 0


def text(case: Case) -> str:
    """The module of a case."""
    types = [t for t, _ in case.inputs] + [t for t, _ in case.outputs]
    args = ", ".join(f"%x{k}: mem<{t}>" for k, t in enumerate(types))
    names = ", ".join(f"%x{k}" for k in range(len(types)))
    lines = [f"func @k[N, M]({args}) {{"]
    lines += [
        f"%i{k} = tile.const() {{value={k}, dtype=i64}} : tile<i64[]>"
        for k in INDICES
        if f"%i{k}" in case.body
    ]
    for name, dim in (("n", "N"), ("m", "M")):
        lines.append(f"%{name} = tile.dim() {{expr={dim}}} : tile<i64[]>")
    for axis, name in zip(range(len(case.grid)), "pqr", strict=False):
        lines.append(f"%{name} = tile.program_id() {{axis={axis}}} : tile<i64[]>")
    launch = f'tile.launch([{names}]) {{kernel="k", grid=[{", ".join(case.grid)}]}}'
    # A view over a whole row of n elements is so common that it has a short form.
    body = re.sub(
        r"row\((%\w+)\) : (\w+)", r"tile.view(\1, %i0, [%n], [%i1]) : view<\2, 1>", case.body
    )
    if "row(" in case.body:
        for k in (0, 1):
            line = f"%i{k} = tile.const() {{value={k}, dtype=i64}} : tile<i64[]>"
            if line not in lines:
                lines.insert(1, line)
    return "\n".join([*lines, body, "return }", f"func @main[N, M]({args}) {{ {launch} return }}"])


def dtype(name: str) -> DType:
    return dtype_of(name)


def inputs_of(case: Case) -> list[Array]:
    return [
        case.arrays[k] if k in case.arrays else sample(dtype(t), shape, k)
        for k, (t, shape) in enumerate(case.inputs)
    ]


def result(case: Case, how: str) -> list[Array]:
    outputs = [np.empty(count, dtype(t).np) for t, count in case.outputs]
    run(text(case), how, inputs_of(case), outputs, DIMS)
    return outputs


CASES: list[Case] = []


def case(name: str, *args: object, **more: object) -> None:
    CASES.append(Case(name, *args, **more))  # type: ignore[arg-type]


# --- memory ---------------------------------------------------------------------------------------

for element in ("f32", "f64", "f16", "bool", "i4", "i8", "u16", "i64"):
    case(
        f"copy with a tail, {element}",
        [(element, (21,))],
        [(element, 21)],
        f"""
        %c = tile.map([%p, %i8]) {{fn=mul}} : tile<i64[]>
        %v = row(%x0) : {element}
        %w = row(%x1) : {element}
        %a = tile.load(%v, [%c], []) {{shape=[8], check=[0]}} : tile<{element}[8]>
        tile.store(%w, %a, [%c], []) {{check=[0]}}
        """,
        ["(N + 7) // 8"],
    )

case(
    "fill of masked lanes, a chunk that lies behind the end",
    [("f32", (21,))],
    [("f32", 32)],
    """
    %c = tile.map([%p, %i8]) {fn=mul} : tile<i64[]>
    %v = row(%x0) : f32
    %w = tile.view(%x1, %i0, [%i32], [%i1]) : view<f32, 1>
    %a = tile.load(%v, [%c], []) {shape=[8], check=[0], fill=-2.5} : tile<f32[8]>
    tile.store(%w, %a, [%c], [])
    """,
    ["4"],
)

case(
    "a mask that is false in the upper half of a wide load",
    [("f32", (21,))],
    [("f32", 48)],
    """
    %c = tile.map([%p, %i16]) {fn=mul} : tile<i64[]>
    %early = tile.map([%p, %i2]) {fn=lt} : tile<bool[]>
    %all = tile.broadcast(%early) {shape=[16]} : tile<bool[16]>
    %lane = tile.iota() {shape=[16], axis=0} : tile<i64[16]>
    %end = tile.broadcast(%i4) {shape=[16]} : tile<i64[16]>
    %low = tile.map([%lane, %end]) {fn=lt} : tile<bool[16]>
    %mask = tile.map([%all, %low]) {fn=and} : tile<bool[16]>
    %v = row(%x0) : f32
    %w = tile.view(%x1, %c, [%i16], [%i1]) : view<f32, 1>
    %a = tile.load(%v, [%i0], [%mask]) {shape=[16], fill=0.0} : tile<f32[16]>
    %b = tile.map([%a, %a]) {fn=add} : tile<f32[16]>
    tile.store(%w, %b, [%i0], [])
    """,
    ["3"],
)

case(
    "two dims, both masked, row stride",
    [("f32", (13, 21))],
    [("f32", 13 * 21)],
    """
    %r0 = tile.map([%p, %i4]) {fn=mul} : tile<i64[]>
    %c0 = tile.map([%q, %i8]) {fn=mul} : tile<i64[]>
    %v = tile.view(%x0, %i0, [%m, %n], [%n, %i1]) : view<f32, 2>
    %w = tile.view(%x1, %i0, [%m, %n], [%n, %i1]) : view<f32, 2>
    %a = tile.load(%v, [%r0, %c0], []) {shape=[4, 8], check=[0, 1]} : tile<f32[4, 8]>
    %b = tile.map([%a, %a]) {fn=mul} : tile<f32[4, 8]>
    tile.store(%w, %b, [%r0, %c0], []) {check=[0, 1]}
    """,
    ["(M + 3) // 4", "(N + 7) // 8"],
)

case(
    "a transposed view: strided lanes in and out",
    [("f32", (21, 13))],
    [("f32", 13 * 21), ("f32", 21 * 13)],
    """
    %c0 = tile.map([%p, %i8]) {fn=mul} : tile<i64[]>
    %v = tile.view(%x0, %i0, [%m, %n], [%i1, %m]) : view<f32, 2>
    %w = tile.view(%x1, %i0, [%m, %n], [%n, %i1]) : view<f32, 2>
    %u = tile.view(%x2, %i0, [%m, %n], [%i1, %m]) : view<f32, 2>
    tile.for(%i0, %m, %i1, []) body(%j: tile<i64[]>) {
      %a = tile.load(%v, [%j, %c0], []) {shape=[1, 8], check=[1]} : tile<f32[1, 8]>
      tile.store(%w, %a, [%j, %c0], []) {check=[1]}
      tile.store(%u, %a, [%j, %c0], []) {check=[1]}
      yield
    }
    """,
    ["(N + 7) // 8"],
)

for element, rows, columns in (("f32", 5, 8), ("f64", 7, 16), ("i8", 16, 4), ("f32", 12, 4)):
    case(
        f"a block that is turned as it is stored, {element}[{rows}, {columns}]",
        [(element, (13, 21))],
        [(element, 21 * 13)],
        f"""
        %h = tile.const() {{value={rows}, dtype=i64}} : tile<i64[]>
        %l = tile.const() {{value={columns}, dtype=i64}} : tile<i64[]>
        %r0 = tile.map([%p, %h]) {{fn=mul}} : tile<i64[]>
        %c0 = tile.map([%q, %l]) {{fn=mul}} : tile<i64[]>
        %v = tile.view(%x0, %i0, [%m, %n], [%n, %i1]) : view<{element}, 2>
        %w = tile.view(%x1, %i0, [%m, %n], [%i1, %m]) : view<{element}, 2>
        %a = tile.load(%v, [%r0, %c0], []) {{shape=[{rows}, {columns}], check=[0, 1]}}
          : tile<{element}[{rows}, {columns}]>
        tile.store(%w, %a, [%r0, %c0], []) {{check=[0, 1]}}
        """,
        [f"(M + {rows - 1}) // {rows}", f"(N + {columns - 1}) // {columns}"],
    )

case(
    "parts that are stored one element of each after the other",
    [("f32", (2, 13, 21))],
    [("f32", 13 * 21 * 2)],
    """
    %r0 = tile.map([%p, %i4]) {fn=mul} : tile<i64[]>
    %c0 = tile.map([%q, %i8]) {fn=mul} : tile<i64[]>
    %mn = tile.map([%m, %n]) {fn=mul} : tile<i64[]>
    %n2 = tile.map([%n, %i2]) {fn=mul} : tile<i64[]>
    %v = tile.view(%x0, %i0, [%i2, %m, %n], [%mn, %n, %i1]) : view<f32, 3>
    %w = tile.view(%x1, %i0, [%i2, %m, %n], [%i1, %n2, %i2]) : view<f32, 3>
    %a = tile.load(%v, [%i0, %r0, %c0], []) {shape=[2, 4, 8], check=[1, 2]} : tile<f32[2, 4, 8]>
    tile.store(%w, %a, [%i0, %r0, %c0], []) {check=[1, 2]}
    """,
    ["(M + 3) // 4", "(N + 7) // 8"],
)

case(
    "strides 2, 0 and -1, and an offset",
    [("i32", (32,))],
    [("i32", 8), ("i32", 8), ("i32", 8)],
    """
    %m1 = tile.const() {value=-1, dtype=i64} : tile<i64[]>
    %two = tile.view(%x0, %i3, [%i8], [%i2]) : view<i32, 1>
    %none = tile.view(%x0, %i5, [%i8], [%i0]) : view<i32, 1>
    %back = tile.view(%x0, %i16, [%i8], [%m1]) : view<i32, 1>
    %a = tile.load(%two, [%i0], []) {shape=[8]} : tile<i32[8]>
    %b = tile.load(%none, [%i0], []) {shape=[8]} : tile<i32[8]>
    %c = tile.load(%back, [%i0], []) {shape=[8]} : tile<i32[8]>
    %wa = tile.view(%x1, %i0, [%i8], [%i1]) : view<i32, 1>
    %wb = tile.view(%x2, %i0, [%i8], [%i1]) : view<i32, 1>
    %wc = tile.view(%x3, %i7, [%i8], [%m1]) : view<i32, 1>
    tile.store(%wa, %a, [%i0], [])
    tile.store(%wb, %b, [%i0], [])
    tile.store(%wc, %c, [%i0], [])
    """,
)

case(
    "one element in all lanes, which is not read where no lane wants it",
    [("f32", (3,)), ("bool", (21,))],
    [("f32", 21), ("f32", 8)],
    """
    %v = tile.view(%x0, %i2, [%n], [%i0]) : view<f32, 1>
    %none = tile.view(%x0, %i3, [%n], [%i0]) : view<f32, 1>
    %b = row(%x1) : bool
    %w = row(%x2) : f32
    %u = tile.view(%x3, %i0, [%i8], [%i1]) : view<f32, 1>
    tile.for(%i0, %n, %i8, []) body(%j: tile<i64[]>) {
      %k = tile.load(%b, [%j], []) {shape=[8], check=[0]} : tile<bool[8]>
      %a = tile.load(%v, [%j], [%k]) {shape=[8], check=[0], fill=-1.5} : tile<f32[8]>
      tile.store(%w, %a, [%j], []) {check=[0]}
      yield
    }
    %k0 = tile.load(%b, [%i0], []) {shape=[8]} : tile<bool[8]>
    %not = tile.map([%k0]) {fn=not} : tile<bool[8]>
    %never = tile.map([%k0, %not]) {fn=and} : tile<bool[8]>
    %d = tile.load(%none, [%i0], [%never]) {shape=[8], fill=2.5} : tile<f32[8]>
    tile.store(%u, %d, [%i0], [])
    """,
)

for element in ("f32", "i8", "bf16", "f64"):
    case(
        f"every third and fourth up to the last, and downwards with a tail, {element}",
        [(element, (22,)), (element, (29,)), (element, (21,))],
        [(element, 8), (element, 8), (element, 21)],
        f"""
        %three = tile.view(%x0, %i0, [%i8], [%i3]) : view<{element}, 1>
        %four = tile.view(%x1, %i0, [%i8], [%i4]) : view<{element}, 1>
        %a = tile.load(%three, [%i0], []) {{shape=[8]}} : tile<{element}[8]>
        %b = tile.load(%four, [%i0], []) {{shape=[8]}} : tile<{element}[8]>
        %wa = tile.view(%x3, %i0, [%i8], [%i1]) : view<{element}, 1>
        %wb = tile.view(%x4, %i0, [%i8], [%i1]) : view<{element}, 1>
        tile.store(%wa, %a, [%i0], [])
        tile.store(%wb, %b, [%i0], [])
        %m1 = tile.const() {{value=-1, dtype=i64}} : tile<i64[]>
        %last = tile.map([%n, %m1]) {{fn=add}} : tile<i64[]>
        %down = tile.view(%x2, %last, [%n], [%m1]) : view<{element}, 1>
        %wc = tile.view(%x5, %last, [%n], [%m1]) : view<{element}, 1>
        tile.for(%i0, %n, %i8, []) body(%j: tile<i64[]>) {{
          %c = tile.load(%down, [%j], []) {{shape=[8], check=[0]}} : tile<{element}[8]>
          %d = tile.map([%c, %c]) {{fn=add}} : tile<{element}[8]>
          tile.store(%wc, %d, [%j], []) {{check=[0]}}
          yield
        }}
        """,
    )

case(
    "masks of loads and stores, alone and with a tail",
    [("f32", (21,)), ("bool", (21,))],
    [("f32", 21), ("f32", 24)],
    """
    %c = tile.map([%p, %i8]) {fn=mul} : tile<i64[]>
    %v = row(%x0) : f32
    %b = row(%x1) : bool
    %w = row(%x2) : f32
    %u = tile.view(%x3, %i0, [%i32], [%i1]) : view<f32, 1>
    %k = tile.load(%b, [%c], []) {shape=[8], check=[0]} : tile<bool[8]>
    %a = tile.load(%v, [%c], [%k]) {shape=[8], check=[0], fill=9} : tile<f32[8]>
    %f = tile.map([%k]) {fn=not} : tile<bool[8]>
    tile.store(%w, %a, [%c], [%k]) {check=[0]}
    tile.store(%u, %a, [%c], [%f])
    """,
    ["(N + 7) // 8"],
    untouched=1,
)

case(
    "lanes that are masked off may lie anywhere",
    [("f32", (8,))],
    [("f32", 8)],
    """
    %m3 = tile.const() {value=-3, dtype=i64} : tile<i64[]>
    %v = tile.view(%x0, %i0, [%i8], [%i1]) : view<f32, 1>
    %w = tile.view(%x1, %i0, [%i8], [%i1]) : view<f32, 1>
    %l = tile.iota() {shape=[8], axis=0} : tile<i64[8]>
    %three = tile.broadcast(%i3) {shape=[8]} : tile<i64[8]>
    %k = tile.map([%l, %three]) {fn=ge} : tile<bool[8]>
    %a = tile.load(%v, [%m3], [%k]) {shape=[8], fill=0} : tile<f32[8]>
    tile.store(%w, %a, [%i0], [])
    """,
)

case(
    "one element per row, guarded",
    [("f32", (21,)), ("bool", (21,))],
    [("f32", 21), ("f32", 21)],
    """
    %c = tile.map([%p, %i4]) {fn=mul} : tile<i64[]>
    %v = tile.view(%x0, %i0, [%n, %i1], [%i1, %i1]) : view<f32, 2>
    %b = tile.view(%x1, %i0, [%n, %i1], [%i1, %i1]) : view<bool, 2>
    %w = tile.view(%x2, %i0, [%n, %i1], [%i1, %i1]) : view<f32, 2>
    %k = tile.load(%b, [%c, %i0], []) {shape=[4, 1], check=[0, 1]} : tile<bool[4, 1]>
    %a = tile.load(%v, [%c, %i0], [%k]) {shape=[4, 1], check=[0], fill=4} : tile<f32[4, 1]>
    tile.store(%w, %a, [%c, %i0], []) {check=[0]}
    %s = tile.view(%x3, %i0, [%n, %i1], [%i1, %i1]) : view<f32, 2>
    tile.store(%s, %a, [%c, %i0], [%k]) {check=[0]}
    """,
    ["(N + 3) // 4"],
    untouched=1,
)

case(
    "scalars",
    [("f32", (21,)), ("bool", ())],
    [("f32", 21)],
    """
    %v = tile.view(%x0, %p, [], []) : view<f32, 0>
    %b = tile.view(%x1, %i0, [], []) : view<bool, 0>
    %w = tile.view(%x2, %p, [], []) : view<f32, 0>
    %k = tile.load(%b, [], []) {shape=[]} : tile<bool[]>
    %a = tile.load(%v, [], []) {shape=[]} : tile<f32[]>
    %n1 = tile.map([%a]) {fn=neg} : tile<f32[]>
    %r = tile.map([%k, %a, %n1]) {fn=select} : tile<f32[]>
    tile.store(%w, %r, [], [])
    """,
    ["N"],
)

case(
    "gather with and without mask",
    [("f32", (21,)), ("i64", (8,)), ("bool", (8,))],
    [("f32", 8), ("f32", 8), ("f32", 8)],
    """
    %vi = tile.view(%x1, %i0, [%i8], [%i1]) : view<i64, 1>
    %vb = tile.view(%x2, %i0, [%i8], [%i1]) : view<bool, 1>
    %i = tile.load(%vi, [%i0], []) {shape=[8]} : tile<i64[8]>
    %b = tile.load(%vb, [%i0], []) {shape=[8]} : tile<bool[8]>
    %far = tile.const() {value=-1000000, dtype=i64} : tile<i64[]>
    %fars = tile.broadcast(%far) {shape=[8]} : tile<i64[8]>
    %j = tile.map([%b, %i, %fars]) {fn=select} : tile<i64[8]>
    %g0 = tile.gather(%x0, %i, []) : tile<f32[8]>
    %g1 = tile.gather(%x0, %j, [%b]) {fill=0.5} : tile<f32[8]>
    %i81 = tile.reshape(%j) {shape=[8, 1]} : tile<i64[8, 1]>
    %b81 = tile.reshape(%b) {shape=[8, 1]} : tile<bool[8, 1]>
    %g2 = tile.gather(%x0, %i81, [%b81]) {fill=7} : tile<f32[8, 1]>
    %w0 = tile.view(%x3, %i0, [%i8], [%i1]) : view<f32, 1>
    %w1 = tile.view(%x4, %i0, [%i8], [%i1]) : view<f32, 1>
    %w2 = tile.view(%x5, %i0, [%i8, %i1], [%i1, %i1]) : view<f32, 2>
    tile.store(%w0, %g0, [%i0], [])
    tile.store(%w1, %g1, [%i0], [])
    tile.store(%w2, %g2, [%i0, %i0], [])
    """,
    arrays={1: np.array([3, 0, 20, 7, 7, 1, 19, 2])},
)

SPOTS = np.array([3, 0, 3, 7, 7, 1, 3, 2])

for element, fn in (
    ("f32", "none"),
    ("f32", "add"),
    ("i32", "max"),
    ("f16", "add"),
    ("bool", "or"),
):
    case(
        f"scatter to elements that meet, {element}, {fn}",
        [(element, (8,)), ("i64", (8,)), ("bool", (8,))],
        [(element, 8), (element, 8), (element, 8)],
        f"""
        %vx = tile.view(%x0, %i0, [%i8], [%i1]) : view<{element}, 1>
        %vi = tile.view(%x1, %i0, [%i8], [%i1]) : view<i64, 1>
        %vb = tile.view(%x2, %i0, [%i8], [%i1]) : view<bool, 1>
        %a = tile.load(%vx, [%i0], []) {{shape=[8]}} : tile<{element}[8]>
        %i = tile.load(%vi, [%i0], []) {{shape=[8]}} : tile<i64[8]>
        %b = tile.load(%vb, [%i0], []) {{shape=[8]}} : tile<bool[8]>
        %w0 = tile.view(%x3, %i0, [%i8], [%i1]) : view<{element}, 1>
        %w1 = tile.view(%x4, %i0, [%i8], [%i1]) : view<{element}, 1>
        %w2 = tile.view(%x5, %i0, [%i8], [%i1]) : view<{element}, 1>
        tile.store(%w0, %a, [%i0], [])
        tile.store(%w1, %a, [%i0], [])
        tile.store(%w2, %a, [%i0], [])
        tile.scatter(%x3, %i, %a, []) {{combine={fn}}}
        tile.scatter(%x4, %i, %a, [%b]) {{combine={fn}}}
        %i81 = tile.reshape(%i) {{shape=[8, 1]}} : tile<i64[8, 1]>
        %a81 = tile.reshape(%a) {{shape=[8, 1]}} : tile<{element}[8, 1]>
        %b81 = tile.reshape(%b) {{shape=[8, 1]}} : tile<bool[8, 1]>
        tile.scatter(%x5, %i81, %a81, [%b81]) {{combine={fn}}}
        """,
        arrays={1: SPOTS},
    )

# --- values ---------------------------------------------------------------------------------------

case(
    "iota along each axis",
    [],
    [("i64", 32), ("i64", 32), ("i64", 24)],
    """
    %a = tile.iota() {shape=[4, 8], axis=0} : tile<i64[4, 8]>
    %b = tile.iota() {shape=[4, 8], axis=1} : tile<i64[4, 8]>
    %c = tile.iota() {shape=[2, 3, 4], axis=1} : tile<i64[2, 3, 4]>
    %w0 = tile.view(%x0, %i0, [%i4, %i8], [%i8, %i1]) : view<i64, 2>
    %w1 = tile.view(%x1, %i0, [%i4, %i8], [%i8, %i1]) : view<i64, 2>
    %w2 = tile.view(%x2, %i0, [%i2, %i3, %i4], [%x12, %i4, %i1]) : view<i64, 3>
    tile.store(%w0, %a, [%i0, %i0], [])
    tile.store(%w1, %b, [%i0, %i0], [])
    tile.store(%w2, %c, [%i0, %i0, %i0], [])
    """.replace("%w2", "%x12 = tile.const() {value=12, dtype=i64} : tile<i64[]>\n%w2", 1),
)

case(
    "broadcasts",
    [("f32", (16,))],
    [("f32", 16)],
    """
    %col = tile.view(%x0, %i0, [%i2, %i1], [%i8, %i1]) : view<f32, 2>
    %line = tile.view(%x0, %i0, [%i1, %i8], [%i8, %i1]) : view<f32, 2>
    %point = tile.view(%x0, %i5, [], []) : view<f32, 0>
    %a = tile.load(%col, [%i0, %i0], []) {shape=[2, 1]} : tile<f32[2, 1]>
    %b = tile.load(%line, [%i0, %i0], []) {shape=[1, 8]} : tile<f32[1, 8]>
    %c = tile.load(%point, [], []) {shape=[]} : tile<f32[]>
    %one = tile.reshape(%c) {shape=[1, 1]} : tile<f32[1, 1]>
    %a2 = tile.broadcast(%a) {shape=[2, 8]} : tile<f32[2, 8]>
    %b2 = tile.broadcast(%b) {shape=[2, 8]} : tile<f32[2, 8]>
    %c2 = tile.broadcast(%c) {shape=[2, 8]} : tile<f32[2, 8]>
    %d2 = tile.broadcast(%one) {shape=[2, 8]} : tile<f32[2, 8]>
    %s = tile.map([%a2, %b2]) {fn=sub} : tile<f32[2, 8]>
    %t = tile.map([%c2, %d2]) {fn=mul} : tile<f32[2, 8]>
    %r = tile.map([%s, %t]) {fn=add} : tile<f32[2, 8]>
    %w = tile.view(%x1, %i0, [%i2, %i8], [%i8, %i1]) : view<f32, 2>
    tile.store(%w, %r, [%i0, %i0], [])
    """,
)

case(
    "reshapes and transposes",
    [("f32", (48,))],
    [("f32", 16), ("f32", 16), ("f32", 48), ("f32", 48)],
    """
    %v = tile.view(%x0, %i0, [%i2, %i8], [%i8, %i1]) : view<f32, 2>
    %a = tile.load(%v, [%i0, %i0], []) {shape=[2, 8]} : tile<f32[2, 8]>
    %b = tile.reshape(%a) {shape=[4, 4]} : tile<f32[4, 4]>
    %c = tile.transpose(%b) {perm=[1, 0]} : tile<f32[4, 4]>
    %d = tile.transpose(%a) {perm=[1, 0]} : tile<f32[8, 2]>
    %w0 = tile.view(%x1, %i0, [%i4, %i4], [%i4, %i1]) : view<f32, 2>
    %w1 = tile.view(%x2, %i0, [%i8, %i2], [%i2, %i1]) : view<f32, 2>
    tile.store(%w0, %c, [%i0, %i0], [])
    tile.store(%w1, %d, [%i0, %i0], [])
    %s = tile.map([%i3, %i8]) {fn=mul} : tile<i64[]>
    %u = tile.view(%x0, %i0, [%i2, %i3, %i8], [%s, %i8, %i1]) : view<f32, 3>
    %e = tile.load(%u, [%i0, %i0, %i0], []) {shape=[2, 3, 8]} : tile<f32[2, 3, 8]>
    %f = tile.transpose(%e) {perm=[1, 0, 2]} : tile<f32[3, 2, 8]>
    %g = tile.transpose(%e) {perm=[2, 0, 1]} : tile<f32[8, 2, 3]>
    %w2 = tile.view(%x3, %i0, [%i3, %i2, %i8], [%i16, %i8, %i1]) : view<f32, 3>
    %six = tile.map([%i3, %i2]) {fn=mul} : tile<i64[]>
    %w3 = tile.view(%x4, %i0, [%i8, %i2, %i3], [%six, %i3, %i1]) : view<f32, 3>
    tile.store(%w2, %f, [%i0, %i0, %i0], [])
    tile.store(%w3, %g, [%i0, %i0, %i0], [])
    """,
)

# --- reductions, scans, products ------------------------------------------------------------------


def reduce_case(element: str, fn: str, shape: tuple[int, int], units: float = 0) -> None:
    rows, cols = shape
    case(
        f"reduce {element}, {fn}, {rows} x {cols}",
        [(element, shape)],
        [(element, rows), (element, cols)],
        f"""
        %rows = tile.const() {{value={rows}, dtype=i64}} : tile<i64[]>
        %cols = tile.const() {{value={cols}, dtype=i64}} : tile<i64[]>
        %v = tile.view(%x0, %i0, [%rows, %cols], [%cols, %i1]) : view<{element}, 2>
        %a = tile.load(%v, [%i0, %i0], []) {{shape=[{rows}, {cols}]}}
          : tile<{element}[{rows}, {cols}]>
        %b = tile.reduce(%a) {{fn={fn}, axis=1}} : tile<{element}[{rows}]>
        %c = tile.reduce(%a) {{fn={fn}, axis=0}} : tile<{element}[{cols}]>
        %w0 = tile.view(%x1, %i0, [%rows], [%i1]) : view<{element}, 1>
        %w1 = tile.view(%x2, %i0, [%cols], [%i1]) : view<{element}, 1>
        tile.store(%w0, %b, [%i0], [])
        tile.store(%w1, %c, [%i0], [])
        """,
        units=units,
    )


for at, (element, fn) in enumerate(
    [
        ("f32", "add"),
        ("f32", "max"),
        ("f64", "mul"),
        ("i32", "add"),
        ("u8", "max"),
        ("i64", "min"),
        ("bool", "or"),
        ("bool", "and"),
        ("i4", "add"),
    ]
):
    reduce_case(element, fn, [(2, 8), (3, 7), (5, 4), (1, 16)][at % 4])
reduce_case("f32", "logaddexp", (3, 7), 16)
reduce_case("f16", "add", (3, 8), 4)
reduce_case("f16", "logaddexp", (2, 8), 4)
reduce_case("bf16", "max", (3, 8))

for element, fn in (("f32", "max"), ("f32", "min"), ("i32", "max"), ("f16", "min"), ("u8", "min")):
    values = np.array([[1, 3, 3, 2], [5, 5, 1, 1], [0, 2, 2, 9]], dtype_of(element).np)
    if element.startswith("f"):
        values[1, 2] = values[2, 0] = values[2, 3] = np.nan
    case(
        f"arg_reduce {element}, {fn}: ties and NaN",
        [(element, (3, 4))],
        [(element, 3), ("i64", 3), (element, 4), ("i64", 4)],
        f"""
        %v = tile.view(%x0, %i0, [%i3, %i4], [%i4, %i1]) : view<{element}, 2>
        %a = tile.load(%v, [%i0, %i0], []) {{shape=[3, 4]}} : tile<{element}[3, 4]>
        %i = tile.iota() {{shape=[3, 4], axis=1}} : tile<i64[3, 4]>
        %j = tile.iota() {{shape=[3, 4], axis=0}} : tile<i64[3, 4]>
        %b, %bi = tile.arg_reduce(%a, %i) {{fn={fn}, axis=1}} : (tile<{element}[3]>, tile<i64[3]>)
        %c, %ci = tile.arg_reduce(%a, %j) {{fn={fn}, axis=0}} : (tile<{element}[4]>, tile<i64[4]>)
        %w0 = tile.view(%x1, %i0, [%i3], [%i1]) : view<{element}, 1>
        %w1 = tile.view(%x2, %i0, [%i3], [%i1]) : view<i64, 1>
        %w2 = tile.view(%x3, %i0, [%i4], [%i1]) : view<{element}, 1>
        %w3 = tile.view(%x4, %i0, [%i4], [%i1]) : view<i64, 1>
        tile.store(%w0, %b, [%i0], [])
        tile.store(%w1, %bi, [%i0], [])
        tile.store(%w2, %c, [%i0], [])
        tile.store(%w3, %ci, [%i0], [])
        """,
        arrays={0: values},
    )

for element, fn in (("f32", "add"), ("i32", "mul"), ("f16", "max"), ("u8", "add")):
    case(
        f"scan {element}, {fn}, both axes and directions",
        [(element, (3, 8))],
        [(element, 24)] * 4,
        f"""
        %v = tile.view(%x0, %i0, [%i3, %i8], [%i8, %i1]) : view<{element}, 2>
        %a = tile.load(%v, [%i0, %i0], []) {{shape=[3, 8]}} : tile<{element}[3, 8]>
        """
        + "".join(
            f"""
        %s{k} = tile.scan(%a) {{fn={fn}, axis={k % 2}, reverse={"true" if k > 1 else "false"}}}
          : tile<{element}[3, 8]>
        %w{k} = tile.view(%x{k + 1}, %i0, [%i3, %i8], [%i8, %i1]) : view<{element}, 2>
        tile.store(%w{k}, %s{k}, [%i0, %i0], [])
        """
            for k in range(4)
        ),
        # Lanes are combined in a tree, and a sum of floats depends on the order.
        units=4 if (element, fn) == ("f32", "add") else 0,
    )

for element in ("f32", "u8", "i64", "bf16", "bool"):
    case(
        f"flipped bits of an index, {element}, both axes",
        [(element, (4, 8))],
        [(element, 32)] * 4,
        f"""
        %v = tile.view(%x0, %i0, [%i4, %i8], [%i8, %i1]) : view<{element}, 2>
        %a = tile.load(%v, [%i0, %i0], []) {{shape=[4, 8]}} : tile<{element}[4, 8]>
        """
        + "".join(
            f"""
        %s{k} = tile.flip_bits(%a) {{axis={axis}, mask={mask}}} : tile<{element}[4, 8]>
        %w{k} = tile.view(%x{k + 1}, %i0, [%i4, %i8], [%i8, %i1]) : view<{element}, 2>
        tile.store(%w{k}, %s{k}, [%i0, %i0], [])
        """
            for k, (axis, mask) in enumerate([(0, 1), (0, 3), (1, 2), (1, 7)])
        ),
        units=0,
    )

for a, b, acc, units in (
    ("f32", "f32", "f32", 64),
    ("f64", "f64", "f64", 64),
    ("i32", "i32", "i32", 0),
    ("f16", "f16", "f32", 64),
    ("bf16", "bf16", "f32", 64),
    ("i8", "i8", "i32", 0),
    ("u8", "i8", "i32", 0),
    ("f16", "f16", "f16", 64),
):
    case(
        f"dot {a} x {b} + {acc}",
        [(a, (4, 5)), (b, (5, 8)), (acc, (4, 8))],
        [(acc, 32)],
        f"""
        %va = tile.view(%x0, %i0, [%i4, %i5], [%i5, %i1]) : view<{a}, 2>
        %vb = tile.view(%x1, %i0, [%i5, %i8], [%i8, %i1]) : view<{b}, 2>
        %vc = tile.view(%x2, %i0, [%i4, %i8], [%i8, %i1]) : view<{acc}, 2>
        %a = tile.load(%va, [%i0, %i0], []) {{shape=[4, 5]}} : tile<{a}[4, 5]>
        %b = tile.load(%vb, [%i0, %i0], []) {{shape=[5, 8]}} : tile<{b}[5, 8]>
        %c = tile.load(%vc, [%i0, %i0], []) {{shape=[4, 8]}} : tile<{acc}[4, 8]>
        %d = tile.dot(%a, %b, %c) : tile<{acc}[4, 8]>
        %w = tile.view(%x3, %i0, [%i4, %i8], [%i8, %i1]) : view<{acc}, 2>
        tile.store(%w, %d, [%i0, %i0], [])
        """,
        units=units,
    )

# --- control --------------------------------------------------------------------------------------

case(
    "loops that carry tiles and scalars, nested, with steps and with nothing to do",
    [("f32", (13, 8))],
    [("f32", 8), ("i64", 3)],
    """
    %v = tile.view(%x0, %i0, [%m, %i8], [%i8, %i1]) : view<f32, 2>
    %z = tile.const() {value=0, dtype=f32} : tile<f32[]>
    %z8 = tile.broadcast(%z) {shape=[1, 8]} : tile<f32[1, 8]>
    %s, %k = tile.for(%i1, %m, %i3, [%z8, %i0]) : (tile<f32[1, 8]>, tile<i64[]>)
    body(%i: tile<i64[]>, %acc: tile<f32[1, 8]>, %count: tile<i64[]>) {
      %a = tile.load(%v, [%i, %i0], []) {shape=[1, 8]} : tile<f32[1, 8]>
      %next = tile.map([%acc, %a]) {fn=add} : tile<f32[1, 8]>
      %more = tile.for(%i0, %i, %i2, [%count]) : tile<i64[]>
      body(%j: tile<i64[]>, %c: tile<i64[]>) {
        %d = tile.map([%c, %j]) {fn=add} : tile<i64[]>
        yield %d
      }
      yield %next, %more
    }
    %none = tile.for(%i5, %i2, %i1, [%i7]) : tile<i64[]> body(%i: tile<i64[]>, %c: tile<i64[]>) {
      yield %i
    }
    %swap, %back = tile.for(%i0, %i3, %i1, [%i1, %i2]) : (tile<i64[]>, tile<i64[]>)
    body(%i: tile<i64[]>, %c: tile<i64[]>, %d: tile<i64[]>) {
      yield %d, %c
    }
    %w = tile.view(%x1, %i0, [%i1, %i8], [%i8, %i1]) : view<f32, 2>
    tile.store(%w, %s, [%i0, %i0], [])
    %u0 = tile.view(%x2, %i0, [], []) : view<i64, 0>
    %u1 = tile.view(%x2, %i1, [], []) : view<i64, 0>
    %u2 = tile.view(%x2, %i2, [], []) : view<i64, 0>
    tile.store(%u0, %k, [], [])
    tile.store(%u1, %none, [], [])
    tile.store(%u2, %swap, [], [])
    """,
    units=0,
)

case(
    "while, which swaps what it carries",
    [("f32", (8,))],
    [("f32", 8), ("i64", 1)],
    """
    %v = tile.view(%x0, %i0, [%i8], [%i1]) : view<f32, 1>
    %a = tile.load(%v, [%i0], []) {shape=[8]} : tile<f32[8]>
    %b = tile.map([%a]) {fn=neg} : tile<f32[8]>
    %r, %s, %k = tile.while([%a, %b, %i0]) : (tile<f32[8]>, tile<f32[8]>, tile<i64[]>)
    cond(%x: tile<f32[8]>, %y: tile<f32[8]>, %i: tile<i64[]>) {
      %go = tile.map([%i, %i7]) {fn=lt} : tile<bool[]>
      yield %go
    }
    body(%x: tile<f32[8]>, %y: tile<f32[8]>, %i: tile<i64[]>) {
      %j = tile.map([%i, %i2]) {fn=add} : tile<i64[]>
      %t = tile.map([%x, %x]) {fn=add} : tile<f32[8]>
      yield %y, %t, %j
    }
    %w = tile.view(%x1, %i0, [%i8], [%i1]) : view<f32, 1>
    tile.store(%w, %r, [%i0], [])
    %u = tile.view(%x2, %i0, [], []) : view<i64, 0>
    tile.store(%u, %k, [], [])
    """,
    units=0,
)

case(
    "branches with and without results",
    [("f32", (21,))],
    [("f32", 21), ("f32", 21)],
    """
    %v = tile.view(%x0, %p, [], []) : view<f32, 0>
    %w = tile.view(%x1, %p, [], []) : view<f32, 0>
    %u = tile.view(%x2, %p, [], []) : view<f32, 0>
    %a = tile.load(%v, [], []) {shape=[]} : tile<f32[]>
    %half = tile.map([%p, %i2]) {fn=mod} : tile<i64[]>
    %even = tile.map([%half, %i0]) {fn=eq} : tile<bool[]>
    %r, %q2 = tile.if(%even) : (tile<f32[]>, tile<i64[]>)
    then() {
      %x = tile.map([%a]) {fn=exp} : tile<f32[]>
      yield %x, %p
    }
    otherwise() {
      yield %a, %i7
    }
    %big = tile.map([%q2, %i8]) {fn=gt} : tile<bool[]>
    tile.store(%w, %r, [], [])
    tile.if(%big) then() {
      tile.store(%u, %a, [], [])
      yield
    }
    otherwise() {
      tile.store(%u, %r, [], [])
      yield
    }
    """,
    ["N"],
)

case(
    "a grid of three axes",
    [],
    [("i64", 4 * 3 * 21)],
    """
    %a = tile.map([%p, %i3]) {fn=mul} : tile<i64[]>
    %b = tile.map([%a, %q]) {fn=add} : tile<i64[]>
    %c = tile.map([%b, %n]) {fn=mul} : tile<i64[]>
    %d = tile.map([%c, %r]) {fn=add} : tile<i64[]>
    %w = tile.view(%x0, %d, [], []) : view<i64, 0>
    %e = tile.map([%d, %d]) {fn=mul} : tile<i64[]>
    tile.store(%w, %e, [], [])
    """,
    ["4", "3", "N"],
)

case(
    "no grid, and index expressions",
    [],
    [("i64", 6)],
    "".join(
        f"""
        %w{k} = tile.view(%x0, %i{k}, [], []) : view<i64, 0>
        %e{k} = tile.dim() {{expr={expr}}} : tile<i64[]>
        tile.store(%w{k}, %e{k}, [], [])
        """
        for k, expr in enumerate(
            ["(N - 40) // 8", "(M - N) % 5", "min(N, M + 3)", "max(N, 2*M)", "N*M*N - 7", "N"]
        )
    ),
    (),
)


# --- whole programs -------------------------------------------------------------------------------

PROGRAM = """
func @double[N](%x: mem<f32>, %y: mem<f32>) {
  %p = tile.program_id() {axis=0} : tile<i64[]>
  %n = tile.dim() {expr=N} : tile<i64[]>
  %zero = tile.const() {value=0, dtype=i64} : tile<i64[]>
  %one = tile.const() {value=1, dtype=i64} : tile<i64[]>
  %lanes = tile.const() {value=8, dtype=i64} : tile<i64[]>
  %c = tile.map([%p, %lanes]) {fn=mul} : tile<i64[]>
  %v = tile.view(%x, %zero, [%n], [%one]) : view<f32, 1>
  %w = tile.view(%y, %zero, [%n], [%one]) : view<f32, 1>
  %a = tile.load(%v, [%c], []) {shape=[8], check=[0]} : tile<f32[8]>
  %b = tile.map([%a, %a]) {fn=add} : tile<f32[8]>
  tile.store(%w, %b, [%c], []) {check=[0]}
  return
}

func @count(%n: mem<i32>, %going: mem<bool>) {
  %zero = tile.const() {value=0, dtype=i64} : tile<i64[]>
  %one = tile.const() {value=1, dtype=i32} : tile<i32[]>
  %v = tile.view(%n, %zero, [], []) : view<i32, 0>
  %w = tile.view(%going, %zero, [], []) : view<bool, 0>
  %a = tile.load(%v, [], []) {shape=[]} : tile<i32[]>
  %b = tile.map([%a, %one]) {fn=sub} : tile<i32[]>
  tile.store(%v, %b, [], [])
  %go = tile.map([%b, %one]) {fn=ge} : tile<bool[]>
  tile.store(%w, %go, [], [])
  return
}

func @start(%from: mem<i32>, %n: mem<i32>, %going: mem<bool>) {
  %zero = tile.const() {value=0, dtype=i64} : tile<i64[]>
  %none = tile.const() {value=0, dtype=i32} : tile<i32[]>
  %u = tile.view(%from, %zero, [], []) : view<i32, 0>
  %v = tile.view(%n, %zero, [], []) : view<i32, 0>
  %w = tile.view(%going, %zero, [], []) : view<bool, 0>
  %a = tile.load(%u, [], []) {shape=[]} : tile<i32[]>
  tile.store(%v, %a, [], [])
  %go = tile.map([%a, %none]) {fn=gt} : tile<bool[]>
  tile.store(%w, %go, [], [])
  return
}

func @main[N](%x: mem<f32>, %times: mem<i32>, %y: mem<f32>) {
  %there = tile.arena() {offset=64, dtype=f32} : mem<f32>
  %back = tile.arena() {offset=64*((N + 15) // 16) + 64, dtype=f32} : mem<f32>
  %n = tile.arena() {offset=0, dtype=i32} : mem<i32>
  %going = tile.arena() {offset=4, dtype=bool} : mem<bool>
  tile.launch([%x, %there]) {kernel="double", grid=[(N + 7) // 8]}
  tile.launch([%times, %n, %going]) {kernel="start", grid=[]}
  %zero = tile.const() {value=0, dtype=i64} : tile<i64[]>
  %v = tile.view(%going, %zero, [], []) : view<bool, 0>
  tile.while([]) cond() {
    %go = tile.load(%v, [], []) {shape=[]} : tile<bool[]>
    yield %go
  }
  body() {
    tile.launch([%there, %back]) {kernel="double", grid=[(N + 7) // 8]}
    tile.launch([%back, %there]) {kernel="double", grid=[(N + 7) // 8]}
    tile.launch([%n, %going]) {kernel="count", grid=[]}
    yield
  }
  tile.launch([%there, %y]) {kernel="double", grid=[(N + 7) // 8]}
  return
}
"""


@pytest.mark.parametrize("how", ["tile", *HOWS])
@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_program_with_scratch_memory_and_a_loop(how: str, times: int) -> None:
    x = sample(dtype("f32"), (21,))
    y = np.empty_like(x)
    run(PROGRAM, how, [x, np.array(times, np.int32)], [y], {"N": 21}, arena=64 * 5)
    np.testing.assert_array_equal(y, x * np.float32(4.0**times * 4))


# --- cases ----------------------------------------------------------------------------------------

EXPECTED: dict[str, list[Array]] = {}


def expected(one: Case) -> list[Array]:
    """What the Tile interpreter gives, computed once."""
    if one.name not in EXPECTED:
        EXPECTED[one.name] = result(one, "tile")
    return EXPECTED[one.name]


MORE = [pytest.param(x, marks=pytest.mark.long) for x in ALL_LEVELS if x not in HOWS]


@pytest.mark.parametrize("how", [*HOWS, *MORE])
@pytest.mark.parametrize("one", CASES, ids=lambda c: c.name.replace(" ", "_"))
def test_all_ways_agree(one: Case, how: str) -> None:
    for got, want in zip(result(one, how), expected(one), strict=True):
        assert ulps(got, want, 1.0 if one.units else 0.0).max(initial=0) <= one.units


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.name.replace(" ", "_"))
def test_everything_is_written(one: Case) -> None:
    # Poison is NaN in floats; cases whose inputs hold NaN say what they compare.
    if one.untouched or one.arrays:
        return
    for array in expected(one):
        if dtype_of(array.dtype).is_float:
            assert not np.isnan(array.astype(np.float64)).any()
