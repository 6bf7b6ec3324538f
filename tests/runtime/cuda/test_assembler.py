"""PTX to cubins without a GPU: both assemblers, what they complain of, and the cache."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tessera as ts
from tessera.config import Config, ConfigError, config, from_environment
from tessera.errors import CompileError
from tessera.runtime.cache import ObjectCache
from tessera.runtime.cuda import assemblers
from tessera.runtime.cuda.assembler import Cubin, assemble
from tessera.runtime.cuda.assembler_log import ADVISORIES, KernelUsage, parse_log
from tessera.runtime.cuda.assemblers import Assembled, disassemble, find_assembler, find_program
from tessera.runtime.cuda.elf import kernel_usages, read_sections
from tessera.runtime.cuda.reflection import Reflection, read_kernels
from tessera.target.gpu import GPUS, Gpu, gpu

pytest.importorskip("cuda.bindings.nvjitlink")
if find_program("ptxas") is None:
    pytest.skip("there is no ptxas", allow_module_level=True)

H200 = gpu("sm_90a")
NONE = ObjectCache(None)


def module(body: str, *, name: str = "k", target: str = "sm_90a", version: str = "8.0") -> str:
    return f""".version {version}
.target {target}
.address_size 64
.visible .entry {name}(.param .u64 a, .param .u64 b)
.reqntid 128, 1, 1
{{
    .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<200>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    mov.u32 %r1, %tid.x;
{body}
    ret;
}}
"""


COPY = module(
    """    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.f32 %f1, [%rd4];
    st.global.f32 [%rd2], %f1;"""
)


def spilling(values: int = 80) -> str:
    body = ["    mul.wide.u32 %rd3, %r1, 4;", "    add.s64 %rd4, %rd1, %rd3;"]
    each = range(values)
    body += [f"    ld.volatile.global.f32 %f{i}, [%rd4+{4096 * i}];" for i in each]
    body += [f"    mul.f32 %f{i}, %f{i}, %f{(i + 1) % values};" for i in each]
    body += [f"    st.volatile.global.f32 [%rd4+{4096 * i}], %f{i};" for i in each]
    return module("\n".join(body)).replace(".reqntid 128", ".reqntid 1024")


STACK = module(
    """    .local .align 4 .b8 buffer[256];
    mov.u64 %rd4, buffer;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd5, %rd4, %rd3;
    st.local.b32 [%rd5], %r1;
    ld.local.b32 %r2, [%rd4+16];
    st.global.b32 [%rd1], %r2;"""
)

# The accumulator is read before the wait.
EARLY = module(
    """    mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16
        {%f0, %f1, %f2, %f3}, %rd2, %rd2, 1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    add.f32 %f4, %f0, %f1;
    st.global.f32 [%rd1], %f4;
    wgmma.wait_group.sync.aligned 0;
    st.global.f32 [%rd1+4], %f2;"""
)


@pytest.fixture(params=["nvjitlink", "ptxas"])
def which(request: pytest.FixtureRequest) -> Iterator[str]:
    with config.update(assembler=request.param):
        yield request.param


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "cubins")


def refused(text: str, *, machine: Gpu = H200, **options: object) -> str:
    with pytest.raises(CompileError) as error:
        assemble(text, machine, name="softmax", cache=NONE, **options)  # type: ignore[arg-type]
    return str(error.value)


# --- what comes out ---


def test_a_cubin_and_what_is_known_of_it(which: str) -> None:
    cubin = assemble(COPY, H200, name="copy", cache=NONE, notes={"shapes": [[128]]})
    assert cubin.data[:4] == b"\x7fELF"
    assert not cubin.cached
    reflection = cubin.reflection
    assert (cubin.name, reflection.machine, reflection.assembler) == ("copy", "sm_90a", which)
    assert reflection.assembler_version.split(".")[0].isdigit()
    assert reflection.notes == {"shapes": [[128]]}
    kernel = cubin.kernels["k"]
    assert [(p.name, p.type, p.bytes, p.offset) for p in kernel.parameters] == [
        ("a", "u64", 8, 0),
        ("b", "u64", 8, 8),
    ]
    assert (kernel.threads, kernel.instructions) == (128, 8)
    assert 4 <= kernel.usage.registers <= 20
    assert not kernel.usage.spills
    assert kernel.usage.constant >= 16
    assert Reflection.from_json(reflection.to_json()) == reflection


@pytest.mark.parametrize("machine", GPUS)
def test_all_machines(which: str, machine: str) -> None:
    row = gpu(machine)
    version = f"{row.ptx[0]}.{row.ptx[1]}"
    text = COPY.replace("sm_90a", machine).replace("8.0", version)
    assert assemble(text, row, name="copy", cache=NONE).usage("k").registers > 0


def test_shared_memory_barriers_and_features(which: str) -> None:
    body = """    .shared .align 16 .b8 s[4096];
    mov.u32 %r2, s;
    cp.async.ca.shared.global [%r2], [%rd1], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
    bar.sync 2;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r2];
    redux.sync.add.u32 %r4, %r3, 0xffffffff;
    st.global.u32 [%rd2], %r4;"""
    kernel = assemble(module(body), H200, name="p", cache=NONE).kernels["k"]
    assert (kernel.usage.shared, kernel.usage.barriers) == (4096, 3)
    assert kernel.features == ("ASYNC_COPY", "LOAD_MATRIX", "REDUX")


def test_several_kernels_each_have_their_figures(which: str) -> None:
    second = COPY[COPY.index(".visible") :].replace(".entry k(", ".entry second(")
    cubin = assemble(COPY + second, H200, name="two", cache=NONE)
    assert list(cubin.kernels) == ["k", "second"]
    assert all(kernel.usage.registers for kernel in cubin.reflection.kernels)


def test_the_instructions_can_be_looked_at() -> None:
    cubin = assemble(COPY, H200, name="copy", cache=NONE)
    assert cubin.disassembly().count("LDG") == 1
    with pytest.raises(CompileError, match="nvdisasm"):
        disassemble(b"nonsense")


# --- what is refused ---


def test_a_spill_is_an_error_unless_allowed(which: str) -> None:
    message = refused(spilling())
    assert message.startswith("softmax, kernel k of 1024 threads: spills: ")
    assert "bytes of registers stored" in message
    assert "at 64 registers a thread" in message
    assert "fix: choose a smaller tile" in message
    assert "spills" in refused(spilling(), allow_spills=("other",))
    cubin = assemble(spilling(), H200, name="softmax", allow_spills=("k",), cache=NONE)
    assert cubin.usage("k").spill_loads > 0


def test_a_stack_is_an_error_unless_allowed(which: str) -> None:
    assert "kernel k of 128 threads: has a stack of 256 bytes" in refused(STACK)
    assert assemble(STACK, H200, name="s", allow_spills=["k"], cache=NONE).usage("k").stack == 256


def test_changed_code_is_an_error_unless_allowed(which: str) -> None:
    message = refused(EARLY)
    assert message.startswith("softmax, kernel k: the assembler changed the code (C7517)")
    assert "assembler: ptxas info    : (C7517) wgmma.wait_group is injected" in message
    assert f"rule: {ADVISORIES['C7517'].rule}" in message
    assert f"fix: {ADVISORIES['C7517'].fix}" in message
    assert "| " in message  # the PTX line
    assemble(EARLY, H200, name="softmax", allow_advisories=("C7517",), cache=NONE)


def test_an_error_shows_the_line_and_whose_it_is(which: str, tmp_path: Path) -> None:
    source = tmp_path / "program.py"
    source.write_text("import tessera\n\ny = x.softmax()\n")
    text = COPY.replace("    ld.global.f32 %f1", "    .loc 1 3 5\n    ld.global.f33 %f1")
    message = refused(text.replace(".address_size 64", f'.address_size 64\n.file 1 "{source}"'))
    assert "does not accept the code for sm_90a: Unknown modifier '.f33'" in message
    assert f"{source}:3" in message
    assert "y = x.softmax()" in message
    assert "PTX line 15:" in message
    assert "15 |     ld.global.f33 %f1, [%rd4];" in message
    assert "^ Unknown modifier '.f33'" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "does not accept"),
        ("nonsense", "does not accept"),
        (COPY.replace("    ret;", "    ret"), "Parsing error near '}'"),
        (COPY.replace("%rd4, %rd1", "%rd4, %rdx"), "Unknown symbol '%rdx'"),
        (COPY.replace("8.0", "99.0"), "pip install -U 'tessera[cuda]'"),
        (COPY.replace("sm_90a", "sm_100a").replace("8.0", "8.6"), "does not accept"),
        (module("    x.y.z %r1;\n" * 9), "more errors"),
    ],
)
def test_broken_text(which: str, text: str, expected: str) -> None:
    assert expected in refused(text)


def test_more_than_a_block_can_have(which: str) -> None:
    body = (
        "    .shared .align 16 .b8 s[300000];\n    mov.u32 %r2, s;\n    st.shared.u32 [%r2], %r1;"
    )
    message = refused(module(body))
    assert "does not accept the code for sm_90a: Entry function 'k' uses too much shared" in message
    assert "rule: a block has up to 232448 bytes of shared memory" in message
    accumulator = ", ".join(f"%f{i}" for i in range(128))
    body = f"""    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16
        {{{accumulator}}}, %rd2, %rd2, 0, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
"""
    body += "\n".join(f"    st.global.f32 [%rd1+{4 * i}], %f{i};" for i in range(128))
    message = refused(module(body).replace(".reqntid 128", ".reqntid 512"))
    assert "(C7602) Insufficient registers (128)" in message
    assert f"fix: {ADVISORIES['C7602'].fix}" in message


def test_what_a_machine_lacks_is_refused_by_the_assembler(which: str) -> None:
    assert "sm_90" in refused(EARLY.replace("sm_90a", "sm_90"), machine=gpu("sm_90"))


def test_line_tables_are_kept(which: str) -> None:
    text = COPY.replace(".address_size 64", '.address_size 64\n.file 1 "/home/u/p.py"')
    text = text.replace("    ld.global", "    .loc 1 3 5\n    ld.global")
    cubin = assemble(text, H200, name="copy", cache=NONE)
    assert any(section.name == ".debug_line" for section in read_sections(cubin.data))


# --- the log and the file ---


def test_forms_of_the_log() -> None:
    log = parse_log(
        "ptxas warning : Value of threads per SM for entry k is out of range.\n"
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "ptxas info    : Function properties for k\n"
        "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 30 registers, used 2 barriers, 8 bytes smem, 400 bytes cmem[0], "
        "16 bytes cmem[2]\n"
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain "
        "minimum register requirements.\n"
        "ptxas application ptx input, line 7; error   : Unknown symbol 'x'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors\n\0"
    )
    assert log.kernels == {"k": KernelUsage(30, 2, 8, 8, 4, 12, 416)}
    assert [a.code for a in log.advisories] == ["C7508"]
    assert log.warnings == ("Value of threads per SM for entry k is out of range.",)
    assert [(p.line, p.text) for p in log.problems] == [(7, "Unknown symbol 'x'")]


def test_the_file_tells_what_a_log_does_not(which: str) -> None:
    cubin = assemble(STACK, H200, name="s", allow_spills=("k",), cache=NONE)
    own, said = kernel_usages(cubin.data)["k"], cubin.usage("k")
    assert (own.registers, own.stack, own.constant) == (said.registers, 256, said.constant)


@pytest.mark.parametrize("size", [0, 3, 64, 500, -700])
def test_a_damaged_file_is_an_error(size: int) -> None:
    data = assemble(COPY, H200, name="copy", cache=NONE).data[:size]
    with pytest.raises(CompileError, match="damaged"):
        kernel_usages(data)


def test_parameters_and_bounds_of_a_text() -> None:
    (kernel,) = read_kernels(
        """.visible .entry gemm(.param .u64 .ptr .global .align 16 a, // a comment, with .param
            .param .u32 n, .param .align 64 .b8 map[128])
        .reqntid 64, 2, 1
        .minnctapersm 2
        { /* bar.sync 0; */ @%p1 bra END; mbarrier.init.shared::cta.b64 [%r1], 1;
          cp.async.bulk.commit_group; red.global.add.v4.f32 [%rd1], {%f1, %f1, %f1, %f1};
          END: ret; }"""
    )
    assert [(p.name, p.bytes, p.offset) for p in kernel.parameters] == [
        ("a", 8, 0),
        ("n", 4, 8),
        ("map", 128, 64),
    ]
    assert (kernel.threads, kernel.min_blocks, kernel.instructions) == (128, 2, 5)
    assert kernel.features == ("MBARRIER", "BULK_COPY", "VECTOR_RED")


def test_a_reflection_is_read_with_care() -> None:
    text = assemble(COPY, H200, name="copy", cache=NONE).reflection.to_json()
    for bad in (
        "",
        "[]",
        "{}",
        text.replace('"format": 1', '"format": 0'),
        text[:-2] + ', "x": 1}',
    ):
        with pytest.raises(ValueError, match=r"not a|format|Expecting|Extra"):
            Reflection.from_json(bad)


# --- the cache ---


def test_cubins_are_cached_by_content(which: str, cache: ObjectCache) -> None:
    first = assemble(COPY, H200, name="copy", cache=cache, notes={"run": 1})
    again = assemble(COPY, H200, name="other", cache=cache, notes={"run": 2})
    assert (first.cached, again.cached) == (False, True)
    assert again.data == first.data
    assert (again.name, again.reflection.notes) == ("other", {"run": 2})
    assert again.reflection.kernels == first.reflection.kernels
    assert not assemble(COPY + "\n", H200, name="copy", cache=cache).cached
    text = COPY.replace("sm_90a", "sm_80")
    assert not assemble(text, gpu("sm_80"), name="copy", cache=cache).cached
    assert not assemble(text, gpu("sm_89"), name="copy", cache=cache).cached


def test_each_assembler_has_its_entries(cache: ObjectCache) -> None:
    for name in ("nvjitlink", "ptxas"):
        with config.update(assembler=name):
            assert not assemble(COPY, H200, name="copy", cache=cache).cached


def test_a_readable_description_lies_beside(cache: ObjectCache) -> None:
    assemble(COPY, H200, name="copy", cache=cache, notes={"races": "proved"})
    assert cache.directory is not None
    (beside,) = Path(cache.directory).rglob("*.json")
    parts = json.loads(beside.read_text())
    assert parts["notes"] == {"races": "proved"}
    assert parts["kernels"][0]["usage"]["registers"] > 0
    (entry,) = Path(cache.directory).rglob("*.tso")
    assert entry.stem == beside.stem
    assert {stat.S_IMODE(path.stat().st_mode) for path in (entry, beside)} == {0o600}
    cache.clear()
    assert not [path for path in Path(cache.directory).rglob("*") if path.is_file()]


def test_spills_are_found_in_the_cache_too(which: str, cache: ObjectCache) -> None:
    for _ in range(2):
        for text in (spilling(), EARLY):
            with pytest.raises(CompileError, match="softmax, kernel k"):
                assemble(text, H200, name="softmax", cache=cache)
    assert assemble(spilling(), H200, name="s", cache=cache, allow_spills=("k",)).cached


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign"])
def test_a_damaged_entry_is_assembled_again(cache: ObjectCache, damage: str) -> None:
    first = assemble(COPY, H200, name="copy", cache=cache)
    assert cache.directory is not None
    (entry,) = Path(cache.directory).rglob("*.tso")
    if damage == "foreign":
        key = entry.parent.name + entry.stem
        cache.put(key, b"{}\0" + first.data)
    else:
        content = bytearray(entry.read_bytes())
        content[-1] ^= 1
        entry.write_bytes(content[: -1 if damage == "cut" else None])
    again = assemble(COPY, H200, name="copy", cache=cache)
    assert not again.cached
    assert again.data == first.data
    assert assemble(COPY, H200, name="copy", cache=cache).cached


def test_the_folder_follows_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESSERA_CACHE", raising=False)
    with config.update(cache_dir=str(tmp_path)):
        assert not assemble(COPY, H200, name="copy").cached
        assert assemble(COPY, H200, name="copy").cached
    assert list((tmp_path / "cubins").rglob("*.json"))


def test_threads_assemble_one_text_once(cache: ObjectCache) -> None:
    done: list[Cubin] = []

    def work() -> None:
        done.append(assemble(COPY, H200, name="copy", cache=cache))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(cubin.cached for cubin in done) == [False] + [True] * 7
    assert len({cubin.data for cubin in done}) == 1


def test_threads_assemble_different_texts(which: str) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        text = COPY.replace("[%rd2], %f1", f"[%rd2+{16 * seed}], %f1")
        for _ in range(3):
            bad = text if seed % 2 else text.replace("st.global", "st.globe")
            try:
                data = assemble(bad, H200, name=f"p{seed}", cache=NONE).disassembly()
            except CompileError as error:
                if seed % 2 or f"p{seed}" not in str(error):
                    wrong.append(error)
            else:
                if f"+{hex(16 * seed)}]" not in data:
                    wrong.append(data)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _in_process(folder: str) -> bytes:
    return assemble(COPY, H200, name="copy", cache=ObjectCache(folder)).data


def test_processes_share_a_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        results = pool.map(_in_process, [str(tmp_path / "c")] * 6)
    assert len(set(results)) == 1
    assert len(list((tmp_path / "c").rglob("*.tso"))) == 1


# --- which assembler ---


class Fake:
    """A driver that refuses everything."""

    name = "driver"
    version = "13.0"

    def __str__(self) -> str:
        return "the driver's JIT"

    def run(self, text: str, machine: str) -> Assembled:
        return Assembled(
            None, f"ptxas application ptx input, line 1; error : {len(text)} {machine}"
        )


def test_the_driver_is_a_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.update(assembler="driver"):
        message = refused(COPY, driver=Fake())
        assert "softmax: the driver's JIT does not accept the code for sm_90a" in message
        assert "there is no driver here" in refused(COPY)
    monkeypatch.setattr(assemblers, "_nvjitlink", lambda: None)
    monkeypatch.setattr(assemblers, "find_program", lambda _: None)
    assert str(find_assembler("auto", Fake())) == "the driver's JIT"


def test_a_program_may_be_assembled_by_the_driver() -> None:
    class Driver(Fake):
        def run(self, text: str, machine: str) -> Assembled:
            return find_assembler("nvjitlink").run(text, machine)

    with config.update(assembler="driver"):
        cubin = assemble(COPY, H200, name="copy", cache=NONE, driver=Driver())
        assert cubin.reflection.assembler == "driver"
        lowered = ts.jit(lambda x: x + 1).lower(ts.ones((8,)), machine="sm_90a")
        with pytest.raises(CompileError, match="there is no driver here"):
            _ = lowered.cubin


def test_without_an_assembler_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assemblers, "_nvjitlink", lambda: None)
    assert find_assembler("auto").name == "ptxas"
    monkeypatch.setattr(assemblers, "find_program", lambda _: None)
    message = refused(COPY)
    assert "there is no assembler of PTX here" in message
    assert "pip install 'tessera[cuda]'" in message


def test_programs_are_found_by_wheel_home_and_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(assemblers, "_wheel_folders", lambda: ())
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_program("ptxas") is None
    for folder in ("path", "bin"):
        (tmp_path / folder).mkdir()
        program = tmp_path / folder / "ptxas"
        program.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 1.2, V1.2.3'\n")
        program.chmod(0o755)
        assert find_program("ptxas") == str(program)
    assert assemblers.Ptxas(str(program)).version == "1.2.3"


def test_the_setting() -> None:
    found: Config = from_environment({"TESSERA_ASSEMBLER": "ptxas"})
    assert found.assembler == "ptxas"
    with pytest.raises(ConfigError, match="assembler is 'gas'"):
        from_environment({"TESSERA_ASSEMBLER": "gas"})


def test_importing_the_assembler_loads_no_bindings() -> None:
    code = "import tessera.runtime.cuda.assembler, sys; print('cuda.bindings' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "False"
