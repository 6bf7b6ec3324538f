"""Moves buffers that wait long for somebody to the memory of the host, and back in time.

    %x = kernel ...                         %x = kernel ...
    %a = kernel(%x)                         %a = kernel(%x)
    ... much memory is needed here ...      %h = schedule.offload(%x)
    %b = kernel(%a, %x)                     schedule.wait(%h, [%x])
                                      ==>   ... %x is gone ...
                                            %y = schedule.fetch(%h)
                                            schedule.wait(%y, [])
                                            %b = kernel(%a, %y)

In: a program with tiles, without places. Out: one with the same kernels, so with the same bits,
whose plan needs less memory of the device.

Each step finds the op that runs when most memory is needed, and moves one buffer that waits
meanwhile: one that is on the host anyhow, or else the one that waits longest for its bytes. Steps
do not depend on a budget. Only buffers between kernels are moved: not arguments and results, which
are the caller's, nor what lives inside of loops and branches.

Copies run beside kernels where there is room for it: what is copied to the host is kept for as
long as the copy takes, and what comes back is asked for so much earlier, but not while kernels run
that leave no room.

After Rhu et al., "vDNN: virtualized deep neural networks for scalable, memory-efficient neural
network design", 2016; what is moved follows from the plan, not from layers.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.walk import clone_op, free_values
from tessera.schedule import ops
from tessera.schedule.copy_ops import Fetch, Offload, Wait
from tessera.schedule.duration import Device, of_copy, of_op
from tessera.schedule.plan import byte_size
from tessera.schedule.types import BufType

OFFLOAD = "offload"
"""The attribute of a Graph that says how many buffers are moved, and in how many bytes copies may
run beside kernels: `12, 4096`."""

LEAST = 1 << 10
"""Bytes of a buffer that is worth a copy."""


@dataclass(frozen=True)
class Gap:
    """A time in which nobody needs a buffer.

    Attributes:
        value: the buffer.
        start: the last op that needs it, by its place in the program.
        end: the next one that does.
    """

    value: Value
    start: int
    end: int


class Offloading:
    """A program of which buffers are moved, one after the other.

    Args:
        program: with tiles, without places.
        device: what it is for.

    Attributes:
        seconds: what the copies take so far.
        gaps: what is moved so far.
    """

    def __init__(self, program: Func, device: Device) -> None:
        self.program = program
        self.device = device
        self.code = program.body.ops
        self.seconds = 0.0
        self.gaps: list[Gap] = []
        self.times = list(accumulate([of_op(op, device) for op in self.code], initial=0.0))
        self.uses = _uses(program.body)
        self.sizes = {v: _size(v) for v in self.uses}
        self.free = [
            Gap(value, before, after)
            for value, uses in self.uses.items()
            for before, after in pairwise(uses)
            if after - before > 1 and self.sizes[value] >= LEAST and _is_movable(value)
        ]
        self.on_host: dict[Value, list[int]] = {}
        self.need = _need(program.body)

    @property
    def between(self) -> int:
        """Bytes that are needed in between, at least."""
        return max(self.need, default=0)

    def step(self) -> bool:
        """Moves one more buffer; whether there was one."""
        if not self.code:
            return False
        at = self.need.index(max(self.need))
        waiting = [gap for gap in self.free if gap.start < at < gap.end]
        if not waiting:
            return False
        gap = min(waiting, key=self._price)
        self.seconds += of_copy(self.sizes[gap.value], self.device)
        if gap.value not in self.on_host:
            self.seconds += of_copy(self.sizes[gap.value], self.device)
        insort(self.on_host.setdefault(gap.value, []), gap.start)
        self.free.remove(gap)
        self.gaps.append(gap)
        for k in range(gap.start + 1, gap.end):
            self.need[k] -= self.sizes[gap.value]
        return True

    def _price(self, gap: Gap) -> tuple[object, ...]:
        """Lower for what is moved first."""
        known = self.on_host.get(gap.value)
        is_copied = known is not None and known[0] <= gap.start
        time = self.times[gap.end] - self.times[gap.start + 1]
        return not is_copied, -self.sizes[gap.value] * time, gap.start

    # --- the program --------------------------------------------------------------------------

    def moved(self, room: int = 0) -> Func:
        """The program with its copies.

        Args:
            room: bytes in between that may be needed where copies run beside kernels.
        """
        begins, ends = self._times(room)
        awaited: dict[int, list[Gap]] = {}
        fetched: dict[int, list[Gap]] = {}
        offloaded: dict[int, list[Value]] = {}
        kept: dict[int, list[Value]] = {}
        for value, starts in self.on_host.items():
            offloaded.setdefault(starts[0], []).append(value)
            kept.setdefault(ends[value], []).append(value)
        for gap in self.gaps:
            fetched.setdefault(begins[gap], []).append(gap)
            awaited.setdefault(gap.end, []).append(gap)
        code: list[Op] = []
        env: dict[Value, Value] = {}
        host: dict[Value, Value] = {}
        device: dict[Gap, Value] = {}
        for k, op in enumerate(self.code):
            for gap in fetched.get(k, ()):
                fetch = Fetch(host[gap.value], loc=_op(gap.value).loc)
                code.append(fetch)
                device[gap] = fetch.result
            for gap in awaited.get(k, ()):
                code.append(Wait(device[gap], (), loc=_op(gap.value).loc))
                env[gap.value] = device[gap]
            if env.keys().isdisjoint(_read(op)):
                code.append(op)
            else:
                code.append(_with(op, env))
                env.update(zip(op.results, code[-1].results, strict=True))
            for value in offloaded.get(k, ()):
                offload = Offload(env.get(value, value), loc=_op(value).loc)
                code.append(offload)
                host[value] = offload.result
            for value in kept.get(k, ()):
                source = host[value].op
                assert isinstance(source, Offload)
                code.append(Wait(host[value], (source.x,), loc=source.loc))
        outputs = [env.get(v, v) for v in self.program.outputs]
        return self.program.with_body(Block(self.program.args, code, outputs))

    def _times(self, room: int) -> tuple[dict[Gap, int], dict[Value, int]]:
        """For each time that a buffer is fetched, the op before which that begins; and for each
        that is copied to the host, the op behind which that has ended.
        """
        need = list(self.need)
        ends: dict[Value, int] = {}
        begins: dict[Gap, int] = {}
        done = 0.0
        firsts = [gap for gap in self.gaps if self.on_host[gap.value][0] == gap.start]
        for gap in sorted(firsts, key=lambda gap: gap.start):
            size = self.sizes[gap.value]
            at, done = gap.start, max(done, self.times[gap.start + 1]) + of_copy(size, self.device)
            while at + 1 < gap.end and self.times[at + 1] < done and need[at + 1] + size <= room:
                at += 1
                need[at] += size
            ends[gap.value] = at
        due = self.times[-1]
        for gap in sorted(self.gaps, key=lambda gap: -gap.end):
            size = self.sizes[gap.value]
            at, due = gap.end, min(due, self.times[gap.end]) - of_copy(size, self.device)
            first = max(gap.start, ends[gap.value] if gap in firsts else 0) + 1
            while at > first and self.times[at] > due and need[at - 1] + size <= room:
                at -= 1
                need[at] += size
            begins[gap] = at
        return begins, ends


def moved(program: Func, device: Device, text: str) -> Func:
    """The program as the attribute of its Graph says.

    Args:
        program: with tiles, without places.
        device: what it is for.
        text: the attribute.
    """
    steps, room = map(int, text.split(", "))
    found = Offloading(program, device)
    for _ in range(steps):
        found.step()
    return found.moved(room)


def copied(program: Func) -> list[tuple[Offload, int]]:
    """What a program moves to the host, and how often it fetches each."""
    fetches = [op.x for op in program.ops if isinstance(op, Fetch)]
    return [(op, fetches.count(op.result)) for op in program.ops if isinstance(op, Offload)]


def _need(block: Block) -> list[int]:
    """The bytes in between that are needed while each op of a program runs, at least: what it gives
    may lie on what it is the last to need, and what a region yields on what its op gives."""
    ending, starting, inside = [[0] * len(block.ops) for _ in range(3)]
    changes = [0] * (len(block.ops) + 1)
    for value, uses in _uses(block).items():
        size = _size(value)
        starting[uses[0]] += size
        if len(uses) > 1:
            ending[uses[-1]] += size
            changes[uses[0] + 1] += size
            changes[uses[-1]] -= size
    for k, op in enumerate(block.ops):
        if not isinstance(op, ops.Kernel):
            inside[k] = max([need for region in op.regions for need in _need(region)], default=0)
    through = accumulate(changes)
    parts = zip(through, ending, starting, inside, strict=False)
    return [here + max(before, after) + more for here, before, after, more in parts]


def _uses(block: Block) -> dict[Value, list[int]]:
    """Of the buffers between kernels, where each is made, and then read; in order."""
    outputs = set(block.outputs)
    found: dict[Value, list[int]] = {}
    for k, op in enumerate(block.ops):
        for value in _read(op):
            if value in found and found[value][-1] != k:
                found[value].append(k)
        found.update({v: [k] for v in op.results if v not in outputs})
    return found


def _read(op: Op) -> dict[Value, None]:
    """What an op reads, also in its regions."""
    inner = [] if isinstance(op, ops.Kernel) else [
        v for region in op.regions for v in free_values(region)
    ]  # fmt: skip
    return dict.fromkeys([*op.operands, *inner])


def _with(op: Op, env: dict[Value, Value]) -> Op:
    """An op on other buffers."""
    if isinstance(op, ops.Kernel):
        return op.rebuild([env.get(v, v) for v in op.operands])
    return clone_op(op, dict(env))


def _is_movable(value: Value) -> bool:
    """Whether a buffer's content may be copied: a kernel's room to work in, and memory that a loop
    is going to fill, have none."""
    op = value.op
    if isinstance(op, ops.Kernel):
        return not op.is_unwritten and op.results.index(value) < len(op.types) - op.temps
    return op is not None


def _size(value: Value) -> int:
    assert isinstance(value.type, BufType)
    size = byte_size(value.type)
    return size if isinstance(size, int) else 0


def _op(value: Value) -> Op:
    assert value.op is not None
    return value.op
