"""Loops over time: recurrent networks, linear recurrences, the selective scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cpu.elementwise import TRANSCENDENTAL
from cpu.program import (
    F32,
    Build,
    Cost,
    Program,
    gradient_view,
    normal,
    numba_program,
    slopes,
    torch_program,
    transformed,
)


def python_scan(f: Any, init: Any, xs: Any) -> Any:
    """What a scan means."""
    carry, ys = init, []
    for k in range(len(xs[0] if isinstance(xs, tuple) else xs)):
        carry, y = f(carry, tuple(x[k] for x in xs) if isinstance(xs, tuple) else xs[k])
        ys.append(y)
    return carry, np.stack(ys)


def rnn(xp: Any, scan: Any) -> Any:
    """A recurrent cell: one product, one `tanh`."""

    def f(w: Any, x: Any) -> Any:
        def cell(h: Any, row: Any) -> Any:
            h = xp.tanh(h @ w + row)
            return h, h

        return scan(cell, xp.zeros_like(x[0]), x)[1]

    return f


def lstm(xp: Any, scan: Any, is_plain: bool = False) -> Any:
    """LSTM (Hochreiter and Schmidhuber, 1997): inputs [time, batch, features], gates i, f, g, o.

    Args:
        xp: arrays.
        scan: loops over their first axis.
        is_plain: whether each step multiplies its own input, as the formula is written.
    """

    def sigmoid(x: Any) -> Any:
        return 0.5 * xp.tanh(0.5 * x) + 0.5

    def f(p: Any, x: Any) -> Any:
        n = p["recur"].shape[0]

        def given(x: Any) -> Any:
            return x @ p["input"] + p["bias"]

        def cell(state: Any, row: Any) -> Any:
            h, c = state
            z = h @ p["recur"] + (given(row) if is_plain else row)
            i, f, o = sigmoid(z[:, :n]), sigmoid(z[:, n : 2 * n]), sigmoid(z[:, 3 * n :])
            c = f * c + i * xp.tanh(z[:, 2 * n : 3 * n])
            h = o * xp.tanh(c)
            return (h, c), h

        rows = x if is_plain else given(x)
        zero = xp.zeros_like(rows[0, :, :n])
        return scan(cell, (zero, zero), rows)[1]

    return f


def plain_lstm(xp: Any, scan: Any) -> Any:
    """The same with all products in its steps."""
    return lstm(xp, scan, is_plain=True)


def recurrence(xp: Any, scan: Any) -> Any:
    """h = w h + x: memory and the cost of a step."""

    def f(w: Any, x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            h = w * h + row
            return h, h

        return scan(step, xp.zeros_like(x[0]), x)[1]

    return f


def selective(xp: Any, scan: Any) -> Any:
    """The selective scan of Mamba (Gu and Dao, 2023), time first: [time, batch, features]."""

    def f(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            x, d, b, c = row
            h = xp.exp(d[:, :, None] * a) * h + (d * x)[:, :, None] * b[:, None, :]
            return h, xp.sum(h * c[:, None, :], axis=-1)

        zero = xp.zeros_like(x[0][:, :, None] * a)
        return scan(step, zero, (x, delta, b, c))[1]

    return f


def _forward(body: Callable[..., Any]) -> dict[str, Build]:
    return {
        **transformed(lambda lib, **size: body(lib.xp, lib.scan)),
        "numpy": lambda lib, **size: body(np, python_scan),
    }


def _trained(body: Callable[..., Any]) -> dict[str, Build]:
    """The mean square of the result and its gradient for the first argument."""

    def program(lib: Any, **size: Any) -> Any:
        f, xp = body(lib.xp, lib.scan), lib.xp
        return lib.value_and_grad(lambda *args: xp.mean(f(*args) ** 2))

    return transformed(program)


def _loss(body: Callable[..., Any]) -> Any:
    return slopes(lambda *args: np.mean(body(np, python_scan)(*args) ** 2))


def _rnn_torch(torch: Any, **size: Any) -> Any:
    def f(w: Any, x: Any) -> Any:
        h, out = torch.zeros_like(x[0]), []
        for row in x:
            h = torch.tanh(torch.addmm(row, h, w))
            out.append(h)
        return torch.stack(out)

    return f


def _recurrence_torch(torch: Any, **size: Any) -> Any:
    def f(w: Any, x: Any) -> Any:
        h, out = torch.zeros_like(x[0]), []
        for row in x:
            h = w * h + row
            out.append(h)
        return torch.stack(out)

    return f


def _lstm_torch(grad: bool) -> Callable[..., Any]:
    def build(lib: Any, time: int, batch: int, features: int) -> Any:
        torch = lib.module
        layer = torch.nn.LSTM(features, features)
        params = dict(layer.named_parameters())
        names = {"weight_ih_l0": "input", "weight_hh_l0": "recur"}

        def setup(p: Any) -> None:
            with torch.no_grad():
                for mine, theirs in names.items():
                    params[mine].copy_(p[theirs].T)
                params["bias_ih_l0"].copy_(p["bias"])
                params["bias_hh_l0"].zero_()

        ready: list[bool] = []

        def run(p: Any, x: Any) -> Any:
            # The layer owns its weights: they are given to it once.
            if not ready:
                setup(p)
                ready.append(True)
            if not grad:
                with torch.no_grad():
                    return layer(x)[0]
            for w in layer.parameters():
                w.grad = None
            loss = (layer(x)[0] ** 2).mean()
            loss.backward()
            grads = {
                "bias": params["bias_ih_l0"].grad,
                "input": params["weight_ih_l0"].grad.T,
                "recur": params["weight_hh_l0"].grad.T,
            }
            return loss.detach(), grads

        return run

    return build


def _recurrence_numba(numba: Any, **size: Any) -> Any:
    @numba.njit(fastmath=True)
    def f(w: Any, x: Any) -> Any:
        out = np.empty_like(x)
        h = np.zeros_like(x[0])
        for t in range(x.shape[0]):
            for k in range(x.shape[1]):
                h[k] = w[k] * h[k] + x[t, k]
                out[t, k] = h[k]
        return out

    return f


def _selective_torch(torch: Any, **size: Any) -> Any:
    def f(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
        h, out = torch.zeros(*x.shape[1:], a.shape[1]), []
        for t in range(x.shape[0]):
            d = delta[t]
            h = torch.exp(d[:, :, None] * a) * h + (d * x[t])[:, :, None] * b[t][:, None, :]
            out.append((h * c[t][:, None, :]).sum(-1))
        return torch.stack(out)

    return f


def _selective_numba(numba: Any, **size: Any) -> Any:
    @numba.njit(parallel=True, fastmath=True)
    def f(x: Any, delta: Any, a: Any, b: Any, c: Any) -> Any:
        time, batch, features = x.shape
        out = np.empty_like(x)
        states = a.shape[1]
        for item in numba.prange(batch * features):
            n, k = item // features, item % features
            h = np.zeros(states, x.dtype)
            for t in range(time):
                d, total = delta[t, n, k], F32(0)
                for s in range(states):
                    h[s] = np.exp(d * a[k, s]) * h[s] + d * x[t, n, k] * b[t, n, s]
                    total += h[s] * c[t, n, s]
                out[t, n, k] = total
        return out

    return f


def _cells(rng: np.random.Generator, time: int, batch: int, features: int) -> tuple[Any, ...]:
    bound = features**-0.5
    return (
        rng.uniform(-bound, bound, (features, features)).astype(F32),
        normal(rng, time, batch, features),
    )


def _gates(rng: np.random.Generator, time: int, batch: int, features: int) -> tuple[Any, ...]:
    bound = features**-0.5
    params = {
        name: rng.uniform(-bound, bound, shape).astype(F32)
        for name, shape in (
            ("input", (features, 4 * features)),
            ("recur", (features, 4 * features)),
            ("bias", (4 * features,)),
        )
    }
    return params, normal(rng, time, batch, features)


def _line(rng: np.random.Generator, time: int, features: int) -> tuple[Any, ...]:
    return rng.uniform(-1, 1, features).astype(F32), normal(rng, time, features)


def _states(
    rng: np.random.Generator, time: int, batch: int, features: int, states: int
) -> tuple[Any, ...]:
    return (
        normal(rng, time, batch, features),
        rng.uniform(0.001, 0.1, (time, batch, features)).astype(F32),
        -rng.uniform(0.5, 8, (features, states)).astype(F32),
        *(normal(rng, time, batch, states) for _ in range(2)),
    )


def _lstm_cost(time: int, batch: int, features: int) -> Cost:
    step = 16 * batch * features**2 + (5 * TRANSCENDENTAL + 9) * batch * features
    return Cost(8 * time * batch * features + 32 * features**2, time * step)


def _scaled(cost: Callable[..., Cost], by: float) -> Callable[..., Cost]:
    def scaled(**size: int) -> Cost:
        found = cost(**size)
        return Cost(2 * found.bytes, by * found.operations, found.kind)

    return scaled


def _rnn_cost(time: int, batch: int, features: int) -> Cost:
    step = 2 * batch * features**2 + TRANSCENDENTAL * batch * features
    return Cost(8 * time * batch * features, time * step)


def _line_cost(time: int, features: int) -> Cost:
    return Cost(8 * time * features, 2 * time * features)


def _states_cost(time: int, batch: int, features: int, states: int) -> Cost:
    count = time * batch * features
    return Cost(12 * count + 8 * time * batch * states, (TRANSCENDENTAL + 6) * count * states)


CELLS = [{"time": 100, "batch": 32, "features": 128}, {"time": 200, "batch": 1, "features": 32}]
PLAIN = [{"time": 100, "batch": 1, "features": 128}, {"time": 100, "batch": 8, "features": 128}]
TINY = {"time": 4, "batch": 2, "features": 3}

PROGRAMS = [
    Program(
        "rnn", _cells, {**_forward(rnn), **torch_program(_rnn_torch)}, _rnn_cost, CELLS, TINY
    ),
    Program(
        "rnn gradient", _cells, _trained(rnn), _scaled(_rnn_cost, 3), CELLS, TINY,
        reference=_loss(rnn), view=gradient_view(), tolerance=1e-3,
    ),
    Program(
        "lstm", _gates, {**_forward(lstm), "torch": _lstm_torch(False)}, _lstm_cost, CELLS[:1], TINY
    ),
    Program(
        "lstm gradient", _gates, {**_trained(lstm), "torch": _lstm_torch(True)},
        _scaled(_lstm_cost, 3), CELLS[:1], TINY,
        reference=_loss(lstm), view=gradient_view(), tolerance=1e-3,
    ),
    Program(
        "plain lstm", _gates, {**_forward(plain_lstm), "torch": _lstm_torch(False)}, _lstm_cost,
        PLAIN, TINY,
    ),
    Program(
        "plain lstm gradient", _gates, {**_trained(plain_lstm), "torch": _lstm_torch(True)},
        _scaled(_lstm_cost, 3), PLAIN, TINY,
        reference=_loss(plain_lstm), view=gradient_view(), tolerance=1e-3,
    ),
    Program(
        "linear recurrence", _line,
        {**_forward(recurrence), **torch_program(_recurrence_torch),
         **numba_program(_recurrence_numba)},
        _line_cost,
        [{"time": 4096, "features": 256}, {"time": 1024, "features": 1024},
         {"time": 64, "features": 65536}, {"time": 16384, "features": 1}],
        {"time": 5, "features": 3},
    ),
    Program(
        "linear recurrence gradient", _line, _trained(recurrence), _scaled(_line_cost, 3),
        [{"time": 4096, "features": 256}], {"time": 5, "features": 3},
        reference=_loss(recurrence), view=gradient_view(), tolerance=1e-3,
    ),
    Program(
        "selective scan", _states,
        {**_forward(selective), **torch_program(_selective_torch),
         **numba_program(_selective_numba)},
        _states_cost, [{"time": 1024, "batch": 2, "features": 256, "states": 16}],
        {"time": 5, "batch": 2, "features": 3, "states": 4},
    ),
    Program(
        "selective scan gradient", _states, _trained(selective), _scaled(_states_cost, 3),
        [{"time": 1024, "batch": 2, "features": 256, "states": 16}],
        {"time": 5, "batch": 2, "features": 3, "states": 4},
        reference=_loss(selective), view=gradient_view(), tolerance=1e-3,
    ),
]
