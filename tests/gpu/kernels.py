"""Small kernels in PTX for tests of the runtime on a device, and what loads them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tessera.runtime.cuda.device import CudaDevice
from tessera.runtime.cuda.launch import launch
from tessera.runtime.cuda.memory import DeviceBuffer
from tessera.runtime.cuda.module import CudaModule, DriverAssembler, load_cubin
from tessera.runtime.cuda.stream import Stream

ROOT = Path(__file__).resolve().parents[2]

PTX = """\
.version 8.0
.target sm_80
.address_size 64

.extern .shared .align 1024 .b8 shared[];

// p[i] += 1 for i < n
.visible .entry add_one(.param .u64 p, .param .u64 n)
{
  .reg .pred %q;
  .reg .b32 %r<4>;
  .reg .b64 %d<4>;
  .reg .f32 %f<2>;
  ld.param.u64 %d0, [p];
  ld.param.u64 %d1, [n];
  cvta.to.global.u64 %d0, %d0;
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r0, %r1, %r2;
  cvt.u64.u32 %d2, %r3;
  setp.ge.u64 %q, %d2, %d1;
  @%q ret;
  shl.b64 %d3, %d2, 2;
  add.u64 %d3, %d3, %d0;
  ld.global.f32 %f0, [%d3];
  add.rn.f32 %f0, %f0, 0f3F800000;
  st.global.f32 [%d3], %f0;
  ret;
}

// Waits so many nanoseconds.
.visible .entry spin(.param .u64 duration)
{
  .reg .pred %q;
  .reg .b64 %d<4>;
  ld.param.u64 %d0, [duration];
  mov.u64 %d1, %globaltimer;
again:
  mov.u64 %d2, %globaltimer;
  sub.u64 %d3, %d2, %d1;
  setp.lt.u64 %q, %d3, %d0;
  @%q bra again;
  ret;
}

// Waits until memory is not zero.
.visible .entry wait_flag(.param .u64 p)
{
  .reg .pred %q;
  .reg .b32 %r<2>;
  .reg .b64 %d<2>;
  ld.param.u64 %d0, [p];
  cvta.to.global.u64 %d0, %d0;
again:
  ld.volatile.global.u32 %r0, [%d0];
  setp.eq.u32 %q, %r0, 0;
  @%q bra again;
  ret;
}

// Writes where nothing is.
.visible .entry bad_address()
{
  .reg .b64 %d<2>;
  mov.u64 %d0, 64;
  st.global.u32 [%d0], 1;
  ret;
}

// p[0] = 7, through the last word of so many bytes of shared memory.
.visible .entry last_word(.param .u64 p, .param .u64 bytes)
{
  .reg .b32 %r<4>;
  .reg .b64 %d<3>;
  ld.param.u64 %d0, [p];
  cvta.to.global.u64 %d0, %d0;
  ld.param.u32 %r0, [bytes];
  mov.u32 %r1, shared;
  add.u32 %r1, %r1, %r0;
  mov.u32 %r2, 7;
  st.shared.u32 [%r1+-4], %r2;
  bar.sync 0;
  ld.shared.u32 %r3, [%r1+-4];
  st.global.u32 [%d0], %r3;
  ret;
}

// p[0] -= 1, and p[1] = p[0] > 0
.visible .entry count_down(.param .u64 p)
{
  .reg .pred %q;
  .reg .b32 %r<3>;
  .reg .b64 %d<2>;
  ld.param.u64 %d0, [p];
  cvta.to.global.u64 %d0, %d0;
  ld.global.u32 %r0, [%d0];
  add.u32 %r0, %r0, -1;
  st.global.u32 [%d0], %r0;
  setp.gt.s32 %q, %r0, 0;
  selp.u32 %r1, 1, 0, %q;
  st.global.u32 [%d0+4], %r1;
  ret;
}
"""


def load_kernels(device: CudaDevice) -> CudaModule:
    """The kernels, by the driver's own assembler."""
    found = DriverAssembler(device).run(PTX, device.machine.name)
    assert found.cubin is not None, found.log
    return load_cubin(device, found.cubin, "kernels")


def add_one(
    kernels: CudaModule, buffer: DeviceBuffer, n: int, stream: Stream | None = None
) -> None:
    """Adds 1 to the first elements of a buffer."""
    launch(kernels.kernel("add_one"), -(-n // 128), 128, [buffer, n], stream=stream)


def script(text: str, **environ: str) -> str:
    """What a program of its own prints: for faults that end all work of a process."""
    prelude = (
        "from tests.gpu.kernels import *\nfrom tessera.runtime.cuda.device import cuda_device\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(text)],
        cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
