"""Kernels that are right, and the same kernels with one mistake each, which must be found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tessera.errors import VerifyError
from tessera.ir.core import Func
from tessera.ir.parser import parse_func
from tessera.ir.verify import verify
from tessera.target.check.kernel import check_kernel
from tessera.target.check.report import Outcome
from tessera.target.gpu import gpu
from tests.ir.layers import SPECS, op_classes

FOLDER = Path(__file__).resolve().parent / "corpus"
KERNELS = sorted(p.stem for p in FOLDER.glob("*.ir"))


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.ir").read_text()


def parsed(text: str) -> Func:
    op_classes()
    func = parse_func(text)
    verify(func, SPECS["target"])
    return func


@pytest.mark.parametrize("name", KERNELS)
def test_right_kernels_are_proved(name: str) -> None:
    report = check_kernel(parsed(text_of(name)), gpu("sm_90a"))
    report.raise_if_refuted()
    # The blocks of `bulk` all do the same work; it is for one block.
    left = [v for v in report.verdicts if (name, v.what) != ("bulk", "blocks")]
    assert {v.outcome for v in left} == {Outcome.PROVED}, str(report)


@dataclass(frozen=True)
class Mutant:
    """A kernel with a mistake.

    Attributes:
        what: the mistake.
        kernel: of which.
        old: text that stands there once.
        new: what replaces it.
        message: what the error must say.
        machine: for what.
    """

    what: str
    kernel: str
    old: str
    new: str
    message: str
    machine: str = "sm_90a"


IF_FIRST = "target.if(%first) then() {"

MUTANTS = (
    Mutant("no barrier after loading", "tree", "target.barrier() // loaded", "",
           r"races: shared object 'tile': no barrier is between target.store and target.load of "
           r"different threads \(threads \d+ and \d+, byte \d+\)"),
    Mutant("no barrier between steps", "tree", "target.barrier() // halved", "",
           "races: shared object 'tile'"),
    Mutant("no barrier before the end", "tree", "target.barrier() // quartered", "",
           "races: shared object 'tile'"),
    Mutant("a warp barrier for a block's", "tree", "target.barrier() // loaded",
           "target.warp_barrier()", "races: shared object 'tile'"),
    Mutant("a fence for a barrier", "tree", "target.barrier() // halved",
           'target.fence() {scope="block"}', "races: shared object 'tile'"),
    Mutant("a divergent barrier", "tree",
           "    target.store(%tile, %t, %s, [])\n    yield",
           "    target.store(%tile, %t, %s, [])\n    target.barrier()\n    yield",
           "G21: target.barrier under .* control; all threads of the block"),
    Mutant("one thread too many", "tree", "%low = target.map([%t, %c128]) {fn=lt}",
           "%low = target.map([%t, %c128]) {fn=le}",
           r"races: shared object 'tile'|bounds: shared object 'tile'"),
    Mutant("a step too far", "tree", "%j = target.map([%t, %c128]) {fn=add}",
           "%j = target.map([%t, %c256]) {fn=add}",
           r"bounds: shared object 'tile': target.load of 4 bytes is outside of its 1024 bytes "
           r"\(thread 0, byte 1024\)"),
    Mutant("the same element for all blocks' threads", "tree", "target.store(%tile, %t, %v, [])",
           "target.store(%tile, %zero, %v, [])",
           "no barrier is between target.store and target.store"),
    Mutant("rows too short", "transpose", "{bytes=4224,", "{bytes=4096,",
           "bounds: shared object 'tile': target.store of 4 bytes is outside of its 4096"),
    Mutant("rows overlap", "transpose", "%dst = target.map([%row, %c33])",
           "%dst = target.map([%row, %c31])", "target.store and target.store of different threads"),
    Mutant("no barrier between the loops", "transpose", "  target.barrier()\n", "",
           "no barrier is between target.store and target.load"),
    Mutant("a misaligned vector", "transpose", "target.store(%out, %to2, %w, [])",
           "%two = target.pack([%w, %w]) : vec<2 x f32>\n"
           "target.store(%out, %to2, %two, []) {align=8}",
           "G18: target.store at byte 4 in thread 1; it relies on a multiple of 8"),
    Mutant("a vector too wide", "transpose", "target.store(%out, %to2, %w, [])",
           "%many = target.splat(%w) {count=8} : vec<8 x f32>\n"
           "target.store(%out, %to2, %many, []) {align=4}",
           "G17: an access of 32 bytes"),
    Mutant("waits for too few groups", "pipeline", "{pending=1}", "{pending=2}",
           "races: shared object 'ring': .*(has not been waited for|target.async_copy and)"),
    Mutant("no wait", "pipeline", "target.async_wait() {pending=1}\n", "",
           "races: shared object 'ring'"),
    Mutant("no barrier after the wait", "pipeline", "target.barrier() // landed", "",
           "races: shared object 'ring'"),
    Mutant("no commit", "pipeline", "target.async_commit() // ahead", "",
           "G25: target.async_copy is never committed"),
    Mutant("a slot too few", "pipeline", "%f2 = target.map([%f1, %i3]) {fn=mod}",
           "%f2 = target.map([%f1, %i2]) {fn=mod}", "races: shared object 'ring'"),
    Mutant("two iterations ahead into the slot in use", "pipeline",
           "[%f0, %i0, %i2]", "[%f0, %i0, %i0]", "races: shared object 'ring'"),
    Mutant("a ring too small", "pipeline", "{bytes=6144,", "{bytes=4096,",
           "bounds: shared object 'ring': target.async_copy of 16 bytes is outside"),
    Mutant("async copies on an old machine", "pipeline", "threads=128", "threads=128, cluster=2",
           "G14: clusters of 2 blocks; sm_80 has at most 1", "sm_80"),
    Mutant("misaligned copies", "pipeline", "%mine = target.map([%t, %i4]) {fn=mul}",
           "%mine = target.map([%t, %i3]) {fn=mul}",
           "G18: target.async_copy at byte 12 in thread 1; it relies on a multiple of 16"),
    Mutant("a product that does not exist", "matrix", 'm=16, n=8, k=16, kind="bf16"',
           'm=16, n=8, k=16, kind="f16"', "G16: an operand of f16 is vec<8 x bf16>"),
    Mutant("a product of a newer machine", "product", "threads=32", "threads=32",
           "G16: sm_80 has no product m16n8k8 of f64 into f64; it has m8n8k4 f64", "sm_80"),
    Mutant("no wait for operands", "matrix", "  target.async_wait() {pending=0}\n", "",
           "the copy has not been waited for"),
    Mutant("no barrier for operands", "matrix", "  target.barrier()\n", "",
           "races: shared object '(lhs|rhs)'"),
    Mutant("objects share bytes", "matrix", 'offset=1024, label="rhs"', 'offset=512, label="rhs"',
           "races: shared object '(lhs|rhs)': shared object '.hs' and shared object '.hs' share"),
    Mutant("rows of a matrix out of range", "matrix",
           "%abyte = target.map([%ar, %i32]) {fn=mul}", "%abyte = target.map([%ar, %i64]) {fn=mul}",
           "bounds: shared object 'lhs': target.load_matrix of 16 bytes is outside"),
    Mutant("a product under divergent control", "matrix",
           '  %d = target.mma(%a, %bm, %c) {m=16, n=8, k=16, kind="bf16"} : vec<4 x f32>',
           "  %odd = target.map([%half, %i1]) {fn=eq} : bool\n"
           "  %d = target.if(%odd) : vec<4 x f32> then() {\n"
           '  %dd = target.mma(%a, %bm, %c) {m=16, n=8, k=16, kind="bf16"} : vec<4 x f32>\n'
           "  yield %dd } otherwise() { yield %c }",
           "G21: target.mma under divergent control; all threads of the warp must run it"),
    Mutant("a lane that does not exist", "warps", '{kind="xor"}', '{kind="xor", width=16}',
           "G23: xor 16 of lanes in groups of 16"),
    Mutant("a shuffle of some lanes", "warps", "%front = target.map([%t, %i32]) {fn=lt}",
           "%front = target.map([%t, %i8]) {fn=lt}", "G21: target.shuffle_lanes under divergent"),
    Mutant("all lanes store the warp's part", "warps",
           "target.store(%parts, %warp, %s16, [%leads])",
           "target.store(%parts, %warp, %s16, [])", "races: shared object 'parts'"),
    Mutant("more parts than there are", "warps", "%have = target.map([%t, %i8]) {fn=lt}",
           "%have = target.map([%t, %i16]) {fn=lt}", "bounds: shared object 'parts'"),
    Mutant("no barrier between warps", "warps", "  target.barrier()\n", "",
           "races: shared object 'parts'"),
    Mutant("no barrier after a warp stores", "exchange", "target.warp_barrier() // stored", "",
           "races: shared object 'tile': no barrier is between target.(store|load)"),
    Mutant("no barrier after a warp loads", "exchange", "target.warp_barrier() // loaded", "",
           "races: shared object 'tile'"),
    Mutant("another warp's lanes", "exchange", "{value=31, type=i32}", "{value=63, type=i32}",
           "races: shared object 'tile'"),
    Mutant("different counts", "named", "target.barrier() {id=1, threads=64}",
           "target.barrier() {id=2, threads=64}", "G20: barrier 2 counts"),
    Mutant("too few come", "named", "target.barrier() {id=1, threads=64}",
           "target.barrier() {id=1, threads=96}", "G22: 64 threads come to a barrier of 96"),
    Mutant("a barrier that there is not", "named", "target.barrier() {id=1, threads=64}",
           "target.barrier() {id=16, threads=64}", "G20: barrier 16; sm_90a has 16 of them"),
    Mutant("no handover", "named",
           "    target.barrier() {id=2, threads=128}\n    yield",
           "    target.barrier() {id=3, threads=128}\n    yield",
           "G22: 64 threads come to a barrier of 128|races: shared object 'right'"),
    Mutant("the halves share bytes", "named", 'offset=256, label="right"',
           'offset=0, label="right"', "share bytes"),
    Mutant("no async fence", "bulk", '    target.fence() {scope="async_shared"}\n', "",
           "G30: target.bulk_store of what target.store wrote, without an async_shared fence"),
    Mutant("the wrong fence", "bulk", 'scope="async_shared"', 'scope="block"',
           "G30: target.bulk_store of what target.store wrote"),
    Mutant("no barrier before the store", "bulk", "    target.barrier() // doubled\n", "",
           "races: shared object 'tile'"),
    Mutant("a slot used twice", "bulk", "      target.bulk_wait() {pending=0}\n      target.mb",
           "      target.mb", "races: shared object 'tile': .* engine may still be at it"),
    Mutant("no wait for the load", "bulk", "    target.mbarrier_wait(%full, %i0, %p)\n", "",
           "G26: target.bulk_load may still be writing when the kernel ends"),
    Mutant("a barrier not made", "bulk", "    target.mbarrier_init(%full, %i0) {count=1}\n", "",
           "G27: target.mbarrier_(arrive|wait) of a barrier that was not made"),
    Mutant("a barrier not waited for", "bulk", "  target.barrier() // made\n", "",
           "G27: target.mbarrier_wait in threads that no barrier separates"),
    Mutant("stores not awaited", "bulk",
           f"  {IF_FIRST}\n    target.bulk_wait() {{pending=0}}\n    yield\n  }}"
           " otherwise() { yield }\n  return",
           "  return", "G26: target.bulk_store may still be reading when the kernel ends"),
    Mutant("the copy engine on an old machine", "bulk", "threads=128", "threads=128",
           "G15: target.bulk_(wait|load|store) needs cp.async.bulk, which sm_80 lacks; instead",
           "sm_80"),
    Mutant("a parity that stays", "bulk", "target.map([%p, %i1]) {fn=xor}",
           "target.map([%p, %i1]) {fn=mul}",
           "G28: shared object 'full': .*it reads|G28: shared object 'full': .*another copy"),
    Mutant("the wrong first parity", "bulk", "%one, [%i0]) : i32", "%one, [%i1]) : i32",
           "G28: shared object 'full': target.load: it reads what a copy is still bringing"),
    Mutant("too few bytes expected", "bulk", "target.mbarrier_arrive(%full, %i0, [%size])",
           "target.mbarrier_arrive(%full, %i0, [%i4])",
           "G28: shared object 'full': target.mbarrier_wait: nobody can go on"),
    Mutant("an arrival too many", "bulk", "target.mbarrier_init(%full, %i0) {count=1}",
           "target.mbarrier_init(%full, %i0) {count=2}",
           "G28: shared object 'full': target.mbarrier_wait: nobody can go on: it waits forever"),
    Mutant("parity of the empty slots not inverted", "ring",
           "%free = target.map([%odd, %i1]) {fn=xor} : i32 // inverted",
           "%free = target.map([%odd, %i0]) {fn=xor} : i32",
           "G28: .*target.mbarrier_wait: nobody can go on: it waits forever"),
    Mutant("too few arrivals on empty slots", "ring",
           "target.mbarrier_init(%empty, %i8) {count=64}",
           "target.mbarrier_init(%empty, %i8) {count=32}",
           "G28: .*target.mbarrier_arrive: more arrivals than the 32 that are counted"),
    Mutant("too many arrivals on empty slots", "ring",
           "target.mbarrier_init(%empty, %i0) {count=64}",
           "target.mbarrier_init(%empty, %i0) {count=96}",
           "G28: .*target.mbarrier_wait: nobody can go on"),
    Mutant("slots are not waited for", "ring", "      target.mbarrier_wait(%empty, %bar, %free)\n",
           "", "G28: .*(it reads what|another copy to the same place|more arrivals)"),
    Mutant("slots handed back before they are read", "ring",
           "      %v = target.load(%slots, %at, []) {type=vec<4 x f32>, align=16} : vec<4 x f32>\n"
           "      target.mbarrier_arrive(%empty, %jbar, [])\n",
           "      target.mbarrier_arrive(%empty, %jbar, [])\n"
           "      %v = target.load(%slots, %at, []) {type=vec<4 x f32>, align=16} : vec<4 x f32>\n",
           "G28: .*target.load: it reads what a (copy is still bringing|later copy has replaced)"),
    Mutant("one iteration less is read", "ring",
           "%sum = target.for(%zero, %n, %one, [%f0])", "%sum = target.for(%one, %n, %one, [%f0])",
           "G28: "),
    Mutant("bins out of range", "histogram", "{bytes=1024,", "{bytes=512,",
           "bounds: shared object 'counts'"),
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.kernel}: {m.what}")
def test_mistakes_are_found(mutant: Mutant) -> None:
    text = text_of(mutant.kernel)
    assert text.count(mutant.old) == 1, (
        f"{mutant.old!r} stands there {text.count(mutant.old)} times"
    )
    with pytest.raises(VerifyError, match=mutant.message) as caught:
        check_kernel(parsed(text.replace(mutant.old, mutant.new)), gpu(mutant.machine)
                     ).raise_if_refuted()  # fmt: skip
    assert "(in @" in str(caught.value)


@pytest.mark.parametrize("old", ["target.barrier() // cleared", "target.barrier() // counted"])
def test_what_depends_on_data_is_not_decided(old: str) -> None:
    report = check_kernel(parsed(text_of("histogram").replace(old, "")), gpu("sm_90a"))
    assert not report.of(Outcome.REFUTED)
    (verdict,) = report.of(Outcome.UNDECIDED)
    assert (verdict.what, verdict.subject) == ("races", "shared object 'counts'")
    assert verdict.why.startswith("addresses depend on %v")


def test_own_copies_are_waited_for() -> None:
    # Each thread reads what it has copied itself: no barrier is needed, but the wait is.
    text = text_of("pipeline").replace("{value=96, type=i32}", "{value=0, type=i32}")
    text = text.replace("target.barrier() // landed", "")
    check_kernel(parsed(text), gpu("sm_80")).raise_if_refuted()
    late = text.replace("{pending=1}", "{pending=2}")
    with pytest.raises(VerifyError, match="the copy has not been waited for"):
        check_kernel(parsed(late), gpu("sm_80")).raise_if_refuted()


def test_there_are_many_mistakes() -> None:
    assert len(MUTANTS) >= 50
    assert {m.kernel for m in MUTANTS} == set(KERNELS)
