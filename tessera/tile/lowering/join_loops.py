"""Loops of a program for a GPU whose bodies are small become kernels of one block.

    while cond: launch f        ==>        launch loop_0, which runs: while cond: f
    (conditions read back)                 (conditions read by the block)

A host's loop costs a launch for each kernel of the body and a way back to the host for each
condition, however little there is to do. One block that takes the programs of each grid in turn
loses the other multiprocessors, but none of that. The kernels' places in the arena may overlap, so
the joined kernel gets the arena as one memory, of which its tiles' memories are parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tessera.dtypes import int64, uint8
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.walk import clone_op, free_values, walk
from tessera.tile import ops as t
from tessera.tile.entry_ops import COPIES
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.types import MemType

MAX_LAUNCHES = 32
"""Launches of a loop whose kernels are joined; each is a copy of its kernel's code."""

SPARED = 2
"""Programs that one block runs in the time of one launch."""

SPARED_CONDITION = 6
"""Programs that one block runs while a condition would be read back."""

Env = dict[Value, Value]


def join_loops(module: Module) -> Module:
    """The module with its small loops as kernels of their own.

    Args:
        module: a program for a GPU.

    Returns:
        A module whose entry launches the joined kernels; those that nobody else launches are gone.
    """
    return _Joining(module).run()


class _Joining:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.funcs = dict(module.funcs)
        self.count = 0

    def run(self) -> Module:
        """The module, or the same one if it has no such loop."""
        assert self.module.main is not None
        main = self.module.entry
        body = self.block(main.body)
        if not self.count:
            return self.module
        launched = {op.kernel for op in walk(body) if isinstance(op, t.Launch)}
        funcs = {n: f for n, f in self.funcs.items() if n in launched}
        return Module({**funcs, main.name: main.with_body(body)}, main.name)

    def block(self, block: Block) -> Block:
        """A block of the entry, its outermost small loops replaced."""
        ops: list[Op] = []
        env: Env = {}
        for op in block.ops:
            if isinstance(op, t.While) and self.is_small(op):
                ops += self.join(op, env)
            elif op.regions:
                operands = [env.get(v, v) for v in op.operands]
                new = op.rebuild(operands, [self.block(r) for r in op.regions])
                env.update(zip(op.results, new.results, strict=True))
                ops.append(new)
            else:
                ops.append(clone_op(op, env) if env else op)
        return Block(block.args, ops, [env.get(v, v) for v in block.outputs])

    # --- which ----------------------------------------------------------------------------------

    def is_small(self, loop: t.While) -> bool:
        """Whether one block does the work sooner than the launches would."""
        if loop.init:
            return False
        launches, programs, conditions = 0, 0, 1
        for op in _inside(loop):
            if isinstance(op, t.Launch):
                found = self.programs(op)
                if found is None:
                    return False
                launches += 1
                programs += found
            elif isinstance(op, (t.While, t.If)):
                conditions += 1
            elif not self.is_possible(op):
                return False
        most = SPARED * launches + SPARED_CONDITION * conditions
        outside = [_origin(v) for region in loop.regions for v in free_values(region)]
        return all(outside) and launches <= MAX_LAUNCHES and programs <= most

    def is_possible(self, op: Op) -> bool:
        """Whether a kernel can do what the host would."""
        if isinstance(op, t.Arena):
            return isinstance(op.offset, int)
        return not isinstance(op, (t.HostCall, *COPIES))

    def programs(self, op: t.Launch) -> int | None:
        """The programs of a launch; None if one block cannot run them."""
        total = 1
        for extent in op.grid:
            if not isinstance(extent, int):
                return None
            total *= extent
        for inner in walk(self.funcs[op.kernel].body):
            # What is changed atomically is not known to be the same for all threads that read it.
            if isinstance(inner, t.Scatter) and inner.combine is not None:
                return None
        for arg in op.args:
            if isinstance(arg.op, t.Arena) and not isinstance(arg.op.offset, int):
                return None
        return total

    # --- how ------------------------------------------------------------------------------------

    def join(self, loop: t.While, env: Env) -> list[Op]:
        """The ops that take the loop's place."""
        launches = [op for op in _inside(loop) if isinstance(op, t.Launch)]
        memories = [m for m in _memories(loop) if not isinstance(m.op, t.Arena)]
        dims = sorted({name for op in launches for name in self.funcs[op.kernel].dims})
        arena = t.Arena(0, uint8, loc=loop.loc)
        args = [env.get(m, m) for m in memories]
        em = Emitter(dims, [*[m.type for m in memories], arena.result.type])
        em.loc = loop.loc
        inner: Env = dict(zip(memories, em.args, strict=False))
        for memory in _memories(loop):
            if isinstance(memory.op, t.Arena):
                assert isinstance(memory.type, MemType)
                part = em.pure(t.Part, em.args[-1], memory.op.offset, memory.type.dtype)
                inner[memory] = part
        for region in loop.regions:
            for value in free_values(region):
                _bring(em, value, inner)
        self.loop(em, loop, inner)
        name = f"loop_{self.count}"
        while name in self.funcs:
            name = f"{name}_"
        self.count += 1
        self.funcs[name] = Func(name, em.close(), dims)
        warps = max(op.warps for op in launches)
        launch = t.Launch((*args, arena.result), name, (), warps, loc=loop.loc)
        return [arena, launch]

    def loop(self, em: Emitter, op: t.While, env: Env) -> None:
        """A loop of the entry, inside the kernel."""

        def cond(_: list[Value]) -> Value:
            self.inline(em, op.cond, env)
            return env[op.cond.outputs[0]]

        def body(_: list[Value]) -> tuple[Value, ...]:
            self.inline(em, op.body, env)
            return ()

        em.repeat((), cond, body)

    def inline(self, em: Emitter, block: Block, env: Env) -> None:
        """A region of the entry, inside the kernel."""
        for op in block.ops:
            em.loc = op.loc
            if isinstance(op, t.Launch):
                self.launch(em, op, env)
            elif isinstance(op, t.While):
                self.loop(em, op, env)
            elif isinstance(op, t.If):
                self.branch(em, op, env)
            elif not isinstance(op, t.Arena):
                em.add(clone_op(op, env))

    def branch(self, em: Emitter, op: t.If, env: Env) -> None:
        """A branch of the entry, inside the kernel."""

        def run(block: Block) -> tuple[Value, ...]:
            self.inline(em, block, env)
            return tuple([env[v] for v in block.outputs])

        results = em.when(env[op.pred], lambda: run(op.then), lambda: run(op.otherwise))
        env.update(zip(op.results, results, strict=True))

    def launch(self, em: Emitter, op: t.Launch, env: Env) -> None:
        """The programs of a launch, one after the other."""
        kernel = self.funcs[op.kernel]
        zero, one = em.const(0, int64), em.const(1, int64)

        def run(ids: Mapping[int, Value], axis: int) -> None:
            if axis < len(op.grid):
                extent = op.grid[axis]
                assert isinstance(extent, int)
                if extent == 1:
                    run({**ids, axis: zero}, axis + 1)
                    return

                def body(i: Value, _: list[Value]) -> tuple[Value, ...]:
                    run({**ids, axis: i}, axis + 1)
                    return ()

                em.loop((zero, em.const(extent, int64), one), (), body)
                return
            own: Env = {a: env[v] for a, v in zip(kernel.args, op.args, strict=True)}
            _clone(em, kernel.body.ops, own, ids)

        run({}, 0)


def _clone(em: Emitter, ops: Iterable[Op], env: Env, ids: Mapping[int, Value]) -> None:
    """Copies ops, program ids being values of their own."""
    for op in ops:
        if isinstance(op, t.ProgramId):
            env[op.result] = ids[op.axis]
        elif op.regions and any(isinstance(x, t.ProgramId) for r in op.regions for x in walk(r)):
            for region in op.regions:
                for inner in walk(region):
                    if isinstance(inner, t.ProgramId):
                        env[inner.result] = ids[inner.axis]
            em.add(clone_op(op, env))
        else:
            em.add(clone_op(op, env))


def _inside(loop: t.While) -> Iterable[Op]:
    for region in loop.regions:
        yield from walk(region)


def _memories(loop: t.While) -> list[Value]:
    """The memories of a loop's launches and views, in order of first use."""
    found: dict[Value, None] = {}
    for op in _inside(loop):
        if isinstance(op, t.Launch):
            found.update(dict.fromkeys(op.args))
        elif isinstance(op, t.View):
            found[op.mem] = None
    for region in loop.regions:
        for value in free_values(region):
            if isinstance(value.op, t.View):
                found[value.op.mem] = None
    return list(found)


def _origin(value: Value) -> bool:
    """Whether a value from outside of a loop can be computed again inside of a kernel."""
    if isinstance(value.type, MemType):
        return value.op is None or (
            isinstance(value.op, t.Arena) and isinstance(value.op.offset, int)
        )
    if isinstance(value.op, t.View):
        return all(_origin(v) for v in value.op.operands)
    return isinstance(value.op, t.Const)


def _bring(em: Emitter, value: Value, env: Env) -> None:
    """Computes a value from outside again, in the kernel's body."""
    if value in env:
        return
    op = value.op
    assert op is not None
    for operand in op.operands:
        _bring(em, operand, env)
    em.add(clone_op(op, env))
