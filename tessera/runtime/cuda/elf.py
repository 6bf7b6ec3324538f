"""A small reader of cubins: kernels and their resources from sections of the ELF file.

It reads what a log lacks, and nothing is believed: a file that does not hold together gives a
`CompileError`, never an exception of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from tessera.errors import CompileError
from tessera.runtime.cuda.assembler_log import KernelUsage

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NOBITS = 8
# Attributes of `.nv.info`: one value of 32 bits for a function, which its symbol names.
_FRAME_SIZE, _MIN_STACK, _REGISTERS = 0x11, 0x12, 0x2F
_VALUES = 4  # the form of an attribute that has bytes of its own


@dataclass(frozen=True, slots=True)
class Section:
    """A section: its name, its bytes (none for one without content), and its size."""

    name: str
    data: bytes
    size: int


def read_sections(cubin: bytes) -> tuple[Section, ...]:
    """The sections of an ELF file, in order.

    Raises:
        CompileError: This is no ELF file.
    """
    try:
        return _sections(cubin)
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise CompileError(f"cubin: damaged ({error})", fix="compile again") from None


def _sections(cubin: bytes) -> tuple[Section, ...]:
    header = _HEADER.unpack_from(cubin)
    ident, offset, size, count, names = header[0], header[6], header[11], header[12], header[13]
    if ident[:6] != b"\x7fELF\x02\x01" or size != _SECTION.size:
        raise ValueError("not a 64-bit ELF file")
    rows = [_SECTION.unpack_from(cubin, offset + i * size) for i in range(count)]
    strings = cubin[rows[names][4] : rows[names][4] + rows[names][5]]
    found: list[Section] = []
    for row in rows:
        if row[1] != _NOBITS and row[4] + row[5] > len(cubin):
            raise ValueError("it ends too early")
        data = b"" if row[1] == _NOBITS else cubin[row[4] : row[4] + row[5]]
        found.append(Section(_string(strings, row[0]), data, row[5]))
    return tuple(found)


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def kernel_usages(cubin: bytes) -> dict[str, KernelUsage]:
    """What each function of a cubin takes, as far as the file itself says.

    Raises:
        CompileError: This is no cubin.
    """
    sections = read_sections(cubin)
    found = {
        section.name.removeprefix(".text."): KernelUsage()
        for section in sections
        if section.name.startswith(".text.")
    }
    by_name = {section.name: section for section in sections}
    for name, usage in found.items():
        constant = by_name.get(f".nv.constant0.{name}")
        found[name] = replace(usage, constant=constant.size if constant else 0)
    try:
        symbols = _symbols(by_name[".symtab"].data, by_name[".strtab"].data)
        for attribute, symbol, value in _attributes(by_name[".nv.info"].data):
            name = symbols[symbol]
            if name not in found:
                continue
            if attribute == _REGISTERS:
                found[name] = replace(found[name], registers=value)
            elif attribute in (_FRAME_SIZE, _MIN_STACK):
                found[name] = replace(found[name], stack=max(found[name].stack, value))
    except (KeyError, IndexError, struct.error, ValueError) as error:
        raise CompileError(f"cubin: damaged ({error})", fix="compile again") from None
    return found


def _symbols(table: bytes, strings: bytes) -> list[str]:
    return [_string(strings, row[0]) for row in _SYMBOL.iter_unpack(table)]


def _attributes(info: bytes) -> list[tuple[int, int, int]]:
    """(attribute, symbol, value) of the entries that have this form."""
    found: list[tuple[int, int, int]] = []
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != _VALUES:
            continue
        if size == 8:
            found.append((attribute, *struct.unpack_from("<II", info, at)))
        at += size
    return found
