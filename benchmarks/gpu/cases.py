"""What is compared: programs, data, contenders, and what bounds each case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import programs
import torch
import triton_kernels

import tessera as ts

Bind = Callable[..., Callable[[], Any]]
BF16, F32 = torch.bfloat16, torch.float32


@dataclass
class Case:
    """One comparison.

    Attributes:
        name: what is computed, and its size.
        make: makes the arguments, torch tensors.
        contenders: name -> given the arguments, a function that queues one run.
        reference: the result in float64, for the check.
        bytes: the fewest that must move.
        flops: operations.
    """

    name: str
    make: Callable[[], Sequence[torch.Tensor]]
    contenders: dict[str, Bind]
    reference: Callable[..., Any] | None
    bytes: float
    flops: float = 0.0


def random(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape, device="cuda").to(dtype)


def ours(fn: Callable[..., Any]) -> Bind:
    """A Tessera program on the same memory."""
    compiled = ts.jit(fn)

    def bind(*args: torch.Tensor) -> Callable[[], Any]:
        arrays = [ts.from_dlpack(a.contiguous()) for a in args]
        return lambda: compiled(*arrays)

    return bind


def on_caches(fn: Callable[..., Any], kind: str) -> Bind:
    """A Tessera program whose first two arguments and results are caches. It gives the others.

    Args:
        fn: the program.
        kind: `ref`, `donated`, or `copied`: a call keeps its arguments.
    """
    donate = {"donate_argnums": (0, 1)} if kind == "donated" else {}
    compiled = ts.jit(fn, **donate)

    def update(ref: ts.Ref, *rest: Any) -> Any:
        keys, values, *others = fn(*ref.get(), *rest)
        ref.set((keys, values))
        return others

    on_ref = ts.jit(update)

    def bind(*args: torch.Tensor) -> Callable[[], Any]:
        held = [ts.from_dlpack(a.clone()) for a in args]
        if kind == "ref":
            ref = ts.Ref(tuple(held[:2]))
            return lambda: on_ref(ref, *held[2:])

        def run() -> Any:
            held[0], held[1], *others = compiled(*held)
            return others

        return run

    return bind


def xla_on_caches(fn: Callable[..., Any]) -> Bind:
    """The same in JAX, donated."""
    compiled = jax.jit(fn, donate_argnums=(0, 1))

    def bind(*args: torch.Tensor) -> Callable[[], Any]:
        narrow = [a.int() if a.dtype is torch.int64 else a for a in args]
        held = [jnp.array(jnp.from_dlpack(a.contiguous()), copy=True) for a in narrow]

        def run() -> Any:
            held[0], held[1], *others = compiled(*held)
            return others

        return run

    return bind


def torch_on_caches(fn: Callable[..., Any]) -> Bind:
    """The same in torch, in place."""

    def bind(*args: torch.Tensor) -> Callable[[], Any]:
        held = [a.clone() for a in args]
        return lambda: list(fn(*held)[2:])

    return bind


def alone(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A Tessera program whose rows do not depend on their batch."""
    return ts.deterministic(batch_invariant=True)(fn)


def xla(fn: Callable[..., Any]) -> Bind:
    """A JAX program on the same memory; 64-bit integers are narrowed, as JAX does."""
    compiled = jax.jit(fn)

    def bind(*args: torch.Tensor) -> Callable[[], Any]:
        narrow = [a.int() if a.dtype is torch.int64 else a for a in args]
        arrays = [jnp.from_dlpack(a.contiguous()) for a in narrow]
        return lambda: compiled(*arrays)

    return bind


def plain(fn: Callable[..., Any]) -> Bind:
    """A torch function as it is."""
    return lambda *args: lambda: fn(*args)


def inductor(fn: Callable[..., Any]) -> Bind:
    """A torch function compiled."""

    def bind(*args: torch.Tensor) -> Callable[[], Any]:
        compiled = torch.compile(fn)
        return lambda: compiled(*args)

    return bind


def everyone(fn: Callable[..., Any], torch_fn: Callable[..., Any]) -> dict[str, Bind]:
    """All but Triton; `fn(xp, ...)` is array code."""
    return {
        "tessera": ours(partial(fn, ts)),
        "torch": plain(torch_fn),
        "compile": inductor(torch_fn),
        "jax": xla(partial(fn, jnp)),
    }


def double(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A torch function in float64."""
    return lambda *args: fn(*[a.double() if a.is_floating_point() else a for a in args])


def vjp(fn: Callable[..., Any], xp: Any) -> Callable[..., Any]:
    """(cotangent, arguments) -> gradients of array code."""
    pull = ts.vjp if xp is ts else jax.vjp

    def gradients(g: Any, *args: Any) -> Any:
        return pull(partial(fn, xp), *args)[1](g)

    return gradients


def torch_vjp(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same in torch."""

    def gradients(g: torch.Tensor, *args: torch.Tensor) -> Any:
        leaves = [a.detach().requires_grad_(a.is_floating_point()) for a in args]
        wanted = [a for a in leaves if a.requires_grad]
        return torch.autograd.grad(fn(*leaves), wanted, g)

    return gradients


@dataclass
class _Table:
    cases: list[Case] = field(default_factory=list[Case])

    def add(
        self,
        name: str,
        make: Callable[[], Sequence[torch.Tensor]],
        fn: Callable[..., Any],
        torch_fn: Callable[..., Any],
        moved: float,
        flops: float = 0.0,
        reference: Callable[..., Any] | None = None,
        **more: Bind,
    ) -> None:
        """A case of array code."""
        contenders = {**everyone(fn, torch_fn), **more}
        self.cases.append(
            Case(name, make, contenders, reference or double(torch_fn), moved, flops)
        )


def _elementwise(t: _Table) -> None:
    n = 1 << 27
    t.add("add f32 2^27", lambda: (random(n), random(n)), lambda xp, x, y: x + y,
          lambda x, y: x + y, 12 * n)
    t.add("chain f32 2^27", lambda: (random(n),), programs.chain, programs.torch_chain, 8 * n)
    t.add("gelu bf16 2^28", lambda: (random(2 * n, dtype=BF16),), programs.gelu,
          programs.torch_gelu, 8 * n)
    t.add("broadcast f32 32768x4096", lambda: (random(32768, 4096), random(4096)),
          lambda xp, x, b: x * b + b, lambda x, b: x * b + b, 8 * n)
    t.add("cast f32 to bf16 2^27", lambda: (random(n),),
          lambda xp, x: xp.astype(x, xp.bfloat16), lambda x: x.to(BF16), 6 * n)
    t.add("transpose f32 16384x8192", lambda: (random(16384, 8192),),
          lambda xp, x: xp.permute_dims(x, (1, 0)) + 0, lambda x: x.T.contiguous(), 8 * n)
    t.add("transpose bf16 16384x8192", lambda: (random(16384, 8192, dtype=BF16),),
          lambda xp, x: xp.permute_dims(x, (1, 0)) + 0, lambda x: x.T.contiguous(), 4 * n)
    t.add("concatenate f32 2 x 16384x4096", lambda: (random(16384, 4096), random(16384, 4096)),
          lambda xp, x, y: xp.concat([x, y], axis=1), lambda x, y: torch.cat([x, y], 1), 8 * n)
    t.add("adam f32 2^26", lambda: (random(n // 2), random(n // 2), random(n // 2).abs(),
                                    random(n // 2)),
          programs.adam, programs.torch_adam, 14 * n, triton=plain(triton_kernels.adam))


def _rows(t: _Table) -> None:
    for rows, columns in ((65536, 1024), (16384, 4096), (4096, 16384)):
        n = rows * columns
        shape = f"bf16 {rows}x{columns}"

        def make(*extra: int, rows: int = rows, columns: int = columns) -> Any:
            return (random(rows, columns, dtype=BF16), *[random(columns) for _ in extra])

        t.add(f"softmax {shape}", make, programs.softmax, programs.torch_softmax, 4 * n,
              triton=plain(triton_kernels.softmax))
        t.add(f"layernorm {shape}", partial(make, 1, 1), programs.layernorm,
              programs.torch_layernorm, 4 * n, triton=plain(triton_kernels.layernorm))
        t.add(f"rmsnorm {shape}", partial(make, 1), programs.rmsnorm, programs.torch_rmsnorm,
              4 * n, triton=plain(triton_kernels.rmsnorm))
        _backward(t, rows, columns)


def _backward(t: _Table, rows: int, columns: int) -> None:
    n = rows * columns

    def make(*extra: int) -> Any:
        x = random(rows, columns, dtype=BF16)
        return (random(rows, columns, dtype=BF16), x, *[random(columns) for _ in extra])

    for name, fn, torch_fn, extra in (
        ("layernorm", programs.layernorm, programs.torch_layernorm, (1, 1)),
        ("rmsnorm", programs.rmsnorm, programs.torch_rmsnorm, (1,)),
    ):
        centred = name == "layernorm"
        backward = {
            "tessera": ours(vjp(fn, ts)),
            "torch": plain(torch_vjp(torch_fn)),
            "compile": inductor(torch_vjp(torch_fn)),
            "jax": xla(vjp(fn, jnp)),
            "triton": plain(
                lambda g, x, w, *b, c=centred: triton_kernels.norm_backward(g, x, w, c)
            ),
        }
        t.cases.append(
            Case(f"{name} backward bf16 {rows}x{columns}", partial(make, *extra), backward,
                 double(torch_vjp(torch_fn)), 6 * n)
        )  # fmt: skip


def _reductions(t: _Table) -> None:
    n = 1 << 27
    x = lambda: (random(32768, 4096),)  # noqa: E731
    t.add("sum rows f32 32768x4096", x, lambda xp, x: xp.sum(x, axis=1), lambda x: x.sum(1), 4 * n)
    t.add("sum columns f32 32768x4096", x, lambda xp, x: xp.sum(x, axis=0), lambda x: x.sum(0),
          4 * n)
    t.add("sum all f32 2^28", lambda: (random(2 * n),), lambda xp, x: xp.sum(x),
          lambda x: x.sum(), 8 * n)
    t.add("max rows bf16 32768x4096", lambda: (random(32768, 4096, dtype=BF16),),
          lambda xp, x: xp.max(x, axis=1), lambda x: x.amax(1), 2 * n)
    t.add("argmax rows f32 32768x4096", x, lambda xp, x: xp.argmax(x, axis=1),
          lambda x: x.argmax(1), 4 * n)
    t.add("cumsum rows f32 16384x4096", lambda: (random(16384, 4096),),
          lambda xp, x: xp.cumsum(x, axis=1) if xp is jnp else xp.cumulative_sum(x, axis=1),
          lambda x: x.cumsum(1), 4 * n)
    t.add("cumsum rows, batch-invariant, f32 16384x4096", lambda: (random(16384, 4096),),
          lambda xp, x: xp.cumsum(x, axis=1) if xp is jnp else alone(lambda x: ts.cumsum(x, 1))(x),
          lambda x: x.cumsum(1), 4 * n)
    t.add("cumsum f32 2^28", lambda: (random(2 * n),),
          lambda xp, x: xp.cumsum(x) if xp is jnp else xp.cumulative_sum(x),
          lambda x: x.cumsum(0), 16 * n)
    t.add("sort rows f32 16384x1024", lambda: (random(16384, 1024),),
          lambda xp, x: xp.sort(x, axis=1), lambda x: x.sort(1).values, 8 * (n >> 3))
    t.add("sort rows f32 16384x4096", lambda: (random(16384, 4096),),
          lambda xp, x: xp.sort(x, axis=1), lambda x: x.sort(1).values, 8 * (n >> 1))
    t.add("argsort rows f32 16384x1024", lambda: (random(16384, 1024),),
          lambda xp, x: xp.argsort(x, axis=1), lambda x: x.argsort(1), 12 * (n >> 3))
    for rows, columns, k in ((16384, 1024, 8), (4096, 8192, 64)):
        def largest(xp: Any, x: Any, k: int = k) -> Any:
            return (ts.top_k(x, k) if xp is ts else jax.lax.top_k(x, k))[0]

        t.add(f"top {k} of rows f32 {rows}x{columns}",
              lambda rows=rows, columns=columns: (random(rows, columns),), largest,
              lambda x, k=k: torch.topk(x, k, 1).values, 4 * rows * (columns + k))


def _indexed(t: _Table) -> None:
    rows, width, picks = 131072, 1024, 65536

    def make() -> Any:
        ids = torch.randint(0, rows, (picks,), device="cuda")
        return random(rows, width, dtype=BF16), ids

    t.add("gather rows bf16 65536 of 131072x1024", make,
          lambda xp, x, i: xp.take(x, i, axis=0), lambda x, i: x[i], 4.0 * picks * width)

    def scatter(xp: Any, table: Any, ids: Any, values: Any) -> Any:
        return table.at[ids].add(values)

    t.add("scatter-add rows f32 65536 into 32768x1024",
          lambda: (random(32768, width), torch.randint(0, 32768, (picks,), device="cuda"),
                   random(picks, width)),
          scatter, lambda x, i, v: x.index_add(0, i, v),
          4.0 * width * (2 * 32768 + picks + 2 * 32768))

    def gradient(xp: Any, ids: Any, values: Any) -> Any:
        return xp.zeros((50000, 768), dtype=values.dtype).at[ids].add(values)

    t.add("embedding gradient f32 8192 into 50000x768",
          lambda: (torch.randint(0, 50000, (8192,), device="cuda"), random(8192, 768)), gradient,
          lambda i, v: v.new_zeros(50000, 768).index_add(0, i, v),
          4.0 * 768 * (50000 + 2 * 8192))


def _losses(t: _Table) -> None:
    rows, words = 4096, 128256
    n = rows * words

    def make() -> Any:
        labels = torch.randint(0, words, (rows,), device="cuda")
        return random(rows, words, dtype=BF16), labels

    t.add("cross-entropy bf16 4096x128256", make, programs.cross_entropy,
          programs.torch_cross_entropy, 2.0 * n, triton=plain(triton_kernels.cross_entropy))

    def torch_gradient(x: torch.Tensor, labels: torch.Tensor) -> Any:
        leaf = x.detach().requires_grad_()
        loss = programs.torch_cross_entropy(leaf, labels)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    contenders = {
        "tessera": ours(ts.value_and_grad(partial(programs.cross_entropy, ts))),
        "torch": plain(torch_gradient),
        "compile": inductor(torch_gradient),
        "jax": xla(jax.value_and_grad(partial(programs.cross_entropy, jnp))),
    }
    t.cases.append(
        Case("cross-entropy and gradient bf16 4096x128256", make, contenders, None, 4.0 * n)
    )


def _dropout(t: _Table) -> None:
    rows, columns = 16384, 4096
    n = rows * columns

    def tessera_block(x: Any, bias: Any, residual: Any, key: Any) -> Any:
        bits = ts.random_bits(key, x.shape)
        return programs.dropout_block(ts, x, bias, residual, bits)

    def jax_block(x: Any, bias: Any, residual: Any, key: Any) -> Any:
        bits = jax.random.bits(jax.random.wrap_key_data(key), x.shape, jnp.uint32)
        return programs.dropout_block(jnp, x, bias, residual, bits)

    def with_key(bind: Bind, make_key: Callable[[], Any]) -> Bind:
        def bound(*args: torch.Tensor) -> Callable[[], Any]:
            return bind(*args, make_key())

        return bound

    def key() -> torch.Tensor:
        return torch.tensor([1, 2], device="cuda", dtype=torch.int32).view(torch.uint32)

    make = lambda: (random(rows, columns, dtype=BF16), random(columns),  # noqa: E731
                    random(rows, columns, dtype=BF16))
    t.cases.append(
        Case("bias+gelu+dropout+residual bf16 16384x4096", make, {
            "tessera": with_key(ours(tessera_block), key),
            "torch": plain(programs.torch_dropout_block),
            "compile": inductor(programs.torch_dropout_block),
            "jax": with_key(xla(jax_block), key),
            "triton": plain(triton_kernels.dropout_block),
        }, None, 6 * n)
    )  # fmt: skip


def _quantized(t: _Table, kind: str, rows: int) -> None:
    """Few rows of bfloat16 times weights that take fewer bytes; the others have bfloat16."""
    n = 8192

    def bind(x: torch.Tensor, w: torch.Tensor) -> Callable[[], Any]:
        given, weights = (ts.from_dlpack(a.contiguous()) for a in (x, w))
        q: Any = weights
        if kind != "bf16":
            q = ts.quantize(weights, ts.int8 if kind == "int8" else ts.int4, axis=1)
            q = q.pack() if kind == "packed int4" else q
        compiled = ts.jit(lambda x, q: x @ q)
        return lambda: compiled(given, q)

    size = {"bf16": 2.0, "int8": 1.0, "int4": 1.0, "packed int4": 0.5}[kind]
    t.cases.append(
        Case(f"skinny product, {kind} weights, {rows}x{n}x{n}",
             lambda: (random(rows, n, dtype=BF16), random(n, n, dtype=BF16)),
             {"tessera": bind, "torch": plain(lambda x, w: x @ w), "jax": xla(lambda x, w: x @ w)},
             None, size * n * n + 4 * rows * n, 2.0 * rows * n * n)
    )  # fmt: skip


def _products(t: _Table) -> None:
    def add(name: str, a: tuple[int, ...], b: tuple[int, ...], fn: Any, dtype: torch.dtype,
            flops: float) -> None:
        size = torch.empty((), dtype=dtype).element_size()
        count = 1
        for n in a:
            count *= n
        moved = size * (count + b[0] * b[1])
        t.add(name, lambda: (random(*a, dtype=dtype), random(*b, dtype=dtype)),
              lambda xp, x, y: fn(x, y), fn, moved, flops)

    n = 4096
    turn = {"NN": lambda x, y: x @ y, "NT": lambda x, y: x @ y.mT, "TN": lambda x, y: x.mT @ y,
            "TT": lambda x, y: x.mT @ y.mT}
    for name, fn in turn.items():
        add(f"product {name} bf16 4096^3", (n, n), (n, n), fn, BF16, 2.0 * n**3)
    add("product NN f16 4096^3", (n, n), (n, n), turn["NN"], torch.float16, 2.0 * n**3)
    add("product NN bf16 8192^3", (2 * n, 2 * n), (2 * n, 2 * n), turn["NN"], BF16, 16.0 * n**3)
    add("product NN bf16 1024^3", (1024, 1024), (1024, 1024), turn["NN"], BF16, 2.0 * 1024**3)
    add("product NN bf16 1000x777x513", (1000, 777), (777, 513), turn["NN"], BF16,
        2.0 * 1000 * 777 * 513)
    add("product NN f32 4096^3", (n, n), (n, n), turn["NN"], F32, 2.0 * n**3)
    add("product NN f64 2048^3", (2048, 2048), (2048, 2048), turn["NN"], torch.float64,
        2.0 * 2048**3)
    for rows in (1, 8, 16):
        add(f"skinny product NN bf16 {rows}x8192x8192", (rows, 8192), (8192, 8192), turn["NN"],
            BF16, 2.0 * rows * 8192**2)
        add(f"skinny product NT bf16 {rows}x8192x8192", (rows, 8192), (8192, 8192), turn["NT"],
            BF16, 2.0 * rows * 8192**2)

    def invariant(turned: bool) -> Callable[..., Any]:
        promised = alone(turn["NT" if turned else "NN"])
        return lambda xp, x, y: promised(x, y) if xp is ts else x @ (y.mT if turned else y)

    for rows, dtype, word in ((1, F32, "f32"), (8, F32, "f32"), (n, F32, "f32"),
                              (1, BF16, "bf16"), (8, BF16, "bf16"), (n, BF16, "bf16")):
        for kind in ("NN", "NT"):
            t.add(f"product, batch-invariant, {kind} {word} {rows}x4096x4096",
                  lambda rows=rows, dtype=dtype: (random(rows, n, dtype=dtype),
                                                  random(n, n, dtype=dtype)),
                  invariant(kind == "NT"), turn[kind],
                  torch.empty((), dtype=dtype).element_size() * (2 * rows * n + n * n),
                  2.0 * rows * n * n)

    for rows in (1, 8):
        for kind in ("bf16", "int8", "int4", "packed int4"):
            _quantized(t, kind, rows)

    def epilogue(xp: Any, x: Any, w: Any, b: Any) -> Any:
        y = xp.astype(x @ w, xp.float32) + b
        return xp.astype(programs.gelu(xp, y), x.dtype)

    t.add("product + bias + gelu bf16 4096^3",
          lambda: (random(n, n, dtype=BF16), random(n, n, dtype=BF16) / 64, random(n)),
          epilogue,
          lambda x, w, b: torch.nn.functional.gelu(x @ w + b.to(x.dtype), approximate="tanh"),
          6 * n * n, 2.0 * n**3)


def _loops(t: _Table) -> None:
    """Loops whose steps are too small to be worth a launch each."""

    def steps(xp: Any, x: Any, w: Any) -> Any:
        loop = ts.fori_loop if xp is ts else jax.lax.fori_loop
        return loop(0, 64, lambda _, h: xp.tanh(h @ w) + x, x)

    def torch_steps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x
        for _ in range(64):
            h = torch.tanh(h @ w) + x
        return h

    def root(xp: Any, x: Any) -> Any:
        loop = ts.while_loop if xp is ts else jax.lax.while_loop
        return loop(lambda c: xp.max(xp.abs(c * c - x)) > 1e-3, lambda c: 0.5 * (c + x / c), x + 1)

    def torch_root(x: torch.Tensor) -> torch.Tensor:
        c = x + 1
        while (c * c - x).abs().max() > 1e-3:
            c = 0.5 * (c + x / c)
        return c

    both = lambda fn: {"tessera": ours(partial(fn, ts)), "jax": xla(partial(fn, jnp))}  # noqa: E731
    t.cases.append(
        Case("loop of 64 steps f32 16x64", lambda: (random(16, 64), random(64, 64) / 8),
             {**both(steps), "torch": plain(torch_steps)}, double(torch_steps),
             4.0 * (2 * 16 * 64 + 64 * 64), 64 * 2.0 * 16 * 64 * 64)
    )  # fmt: skip
    t.cases.append(
        Case("loop until f32 256", lambda: (random(256).abs() + 0.5,),
             {**both(root), "torch": plain(torch_root)}, double(torch_root), 8.0 * 256)
    )  # fmt: skip


def _caches(t: _Table) -> None:
    """One token more in caches of keys and values of 256 MB together, in place and copied."""
    heads, tokens, width = 32, 16384, 128
    n = heads * tokens * width
    shape = f"bf16 2 x {heads}x{tokens}x{width}"

    def make(*queries: tuple[int, ...]) -> Any:
        rows = [random(heads, width, dtype=BF16) for _ in range(2)]
        caches = [random(heads, tokens, width, dtype=BF16) for _ in range(2)]
        place = torch.tensor(tokens - 1, device="cuda")
        return *caches, place, *rows, *[random(*query, dtype=BF16) for query in queries]

    for name, fn, torch_fn, extra, moved in (
        ("append to caches", programs.append, programs.torch_append, (), 8.0 * heads * width),
        ("decode step", programs.decode, programs.torch_decode, ((heads, width),), 4.0 * n),
    ):
        contenders = {
            "tessera": on_caches(partial(fn, ts), "ref"),
            "tessera donated": on_caches(partial(fn, ts), "donated"),
            "tessera copied": on_caches(partial(fn, ts), "copied"),
            "torch": torch_on_caches(torch_fn),
            "jax": xla_on_caches(partial(fn, jnp)),
        }
        reference = torch_on_caches(double(torch_fn)) if extra else None
        check = None if reference is None else lambda *args, r=reference: r(*args)()
        t.cases.append(Case(f"{name} {shape}", partial(make, *extra), contenders, check, moved))


def _all() -> list[Case]:
    table = _Table()
    for group in (_elementwise, _rows, _reductions, _indexed, _losses, _dropout, _products,
                  _loops, _caches):
        group(table)
    return table.cases


CASES = _all()
