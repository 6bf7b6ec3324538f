"""Assembles PTX text with ptxas, where there is one."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest


@functools.cache
def find_ptxas() -> str | None:
    """ptxas of the environment's wheel, or one on the path."""
    wheel = Path(sysconfig.get_paths()["purelib"], "nvidia", "cu13", "bin", "ptxas")
    return str(wheel) if wheel.exists() else shutil.which("ptxas")


needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")


def assemble(text: str, target: str) -> str:
    """Assembles a module; what ptxas says.

    Raises:
        AssertionError: it refuses the text.
    """
    ptxas = find_ptxas()
    assert ptxas is not None
    command = [ptxas, f"-arch={target}", "-v", "-O0", "-o", "/dev/null", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    log = done.stdout + done.stderr
    if done.returncode:
        lines = text.splitlines()
        wrong = [int(p.split(";")[0]) for p in log.split("line ")[1:6]]
        shown = "\n".join(f"{n}: {lines[n - 1]}" for n in wrong)
        raise AssertionError(f"{log[:2000]}\n{shown}")
    return log
