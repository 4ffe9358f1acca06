"""Load a compiled object file into this process and give the addresses of its functions.

On x86-64 Linux the loader below does it in about 50 µs without LLVM: map, copy, relocate, make executable. Memory is
never writable and executable at once, is never unmapped (code may be running, or referred to, until the process ends),
and loading is thread-safe, because a load shares no state with another.

References: the ELF-64 object file format; System V ABI, AMD64 supplement (relocation types, .eh_frame); LSB (.eh_frame
records).
"""
from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..errors import ObjectFileError, Unavailable

Resolve = Callable[[str], int]      # a symbol the object refers to -> its address; raises if there is none

PROT_READ, PROT_EXEC = 1, 4
MAX_MEMORY = 1 << 28                # bytes; a larger image is taken for a damaged size field
SHT_SYMTAB, SHT_RELA, SHT_NOBITS = 2, 4, 8
SHF_WRITE, SHF_ALLOC = 1, 2
SHN_UNDEF, SHN_ABS = 0, 0xFFF1
EM_X86_64, ET_REL = 62, 1
R_64, R_PC32, R_PLT32, R_GOTPCREL, R_PC64, R_GOTPCRELX, R_REX_GOTPCRELX = 1, 2, 4, 9, 24, 41, 42
STUB = b"\xff\x25\0\0\0\0"          # jmp *0(%rip); the target address follows


class Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class Symbol(NamedTuple):
    name: str
    exported: bool
    section: int
    value: int


class _Object:
    """The parsed tables of an object file. Every read is checked against the length of the file."""

    def __init__(self, data: bytes):
        self.data = data
        ident, kind, machine = self.read("<16sHH", 0)
        if ident[:6] != b"\x7fELF\x02\x01":
            raise ObjectFileError(detail="it is not a 64-bit little-endian ELF file")
        if (kind, machine) != (ET_REL, EM_X86_64):
            raise ObjectFileError(detail=f"it is of ELF type {kind} for machine {machine}, not an x86-64 object")
        table, = self.read("<Q", 0x28)
        entry, count, names = self.read("<HHH", 0x3A)
        self.sections = [Section(*self.read("<IIQQQQIIQQ", table + i * entry)) for i in range(count)]
        for s in self.sections:
            if s.kind != SHT_NOBITS and s.offset + s.size > len(data):
                raise ObjectFileError(detail="a section lies outside the file")
            if s.align > mmap.PAGESIZE or s.align & (s.align - 1):
                raise ObjectFileError(detail=f"section alignment {s.align}")
        self.names = self.section(names)
        self.symbols = self._symbols()

    def read(self, form: str, at: int) -> tuple[Any, ...]:
        if at + struct.calcsize(form) > len(self.data):
            raise ObjectFileError(detail=f"it ends at byte {len(self.data)}, inside a record at byte {at}")
        return struct.unpack_from(form, self.data, at)

    def section(self, index: int) -> Section:
        if index >= len(self.sections):
            raise ObjectFileError(detail=f"there is no section {index}")
        return self.sections[index]

    def string(self, table: Section, at: int) -> str:
        start, limit = table.offset + at, table.offset + table.size
        end = self.data.find(b"\0", start, limit)
        if at >= table.size or end < 0:
            raise ObjectFileError(detail="a name lies outside its string table")
        return self.data[start:end].decode("ascii", "replace")

    def content(self, s: Section) -> bytes:
        return self.data[s.offset:s.offset + s.size]

    def _symbols(self) -> list[Symbol]:
        table = next((s for s in self.sections if s.kind == SHT_SYMTAB), None)
        if table is None:
            raise ObjectFileError(detail="it has no symbol table")
        strings, symbols = self.section(table.link), []
        for at in range(table.offset, table.offset + table.size - 23, 24):
            name, info, _, section, value, _ = self.read("<IBBHQQ", at)
            symbols.append(Symbol(self.string(strings, name), info >> 4 == 1, section, value))
        return symbols


class _Image:
    """The object laid out in memory: code and constants first, then on pages of their own what stays writable."""

    def __init__(self, obj: _Object, resolve: Resolve):
        self.obj, self.resolve = obj, resolve
        self.place: dict[int, int] = {}
        self.frames: int | None = None
        slots = 16 * len(obj.symbols)
        end = self._lay(0, writable=False)
        self.got, self.stubs = end, end + slots
        self.protected = _up(self.stubs + slots, mmap.PAGESIZE)
        total = _up(self._lay(self.protected, writable=True), mmap.PAGESIZE)
        if total > MAX_MEMORY:
            raise ObjectFileError(detail=f"its image would take {total} bytes")
        try:
            self.memory = mmap.mmap(-1, total)
        except OSError as e:
            raise Unavailable(reason=f"no memory for compiled code: {e}") from e
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def _lay(self, end: int, writable: bool) -> int:
        obj = self.obj
        for i, s in enumerate(obj.sections):
            if s.flags & SHF_ALLOC and s.size and bool(s.flags & SHF_WRITE) is writable:
                end = _up(end, max(s.align, 16))
                self.place[i], end = end, end + s.size
                if obj.string(obj.names, s.name) == ".eh_frame":
                    self.frames, end = i, end + 16                      # room for the zero length word that ends it
        return _up(end, 16)

    def address(self, index: int) -> int:
        if index >= len(self.obj.symbols):
            raise ObjectFileError(detail=f"a relocation names symbol {index}, which does not exist")
        name, _, section, value = self.obj.symbols[index]
        if section == SHN_UNDEF:
            return self.resolve(name)
        if section == SHN_ABS:
            return value
        if section not in self.place or value > self.obj.sections[section].size:
            raise ObjectFileError(detail=f"symbol {name!r} is in no loaded section")
        return self.base + self.place[section] + value

    def fill(self) -> None:
        obj, memory = self.obj, self.memory
        for i, at in self.place.items():
            if obj.sections[i].kind != SHT_NOBITS:
                memory[at:at + obj.sections[i].size] = obj.content(obj.sections[i])
        for s in obj.sections:
            if s.kind == SHT_RELA and s.info in self.place:
                target = obj.sections[s.info]
                for at in range(s.offset, s.offset + s.size - 23, 24):
                    where, info, addend = obj.read("<QQq", at)
                    kind, symbol = info & 0xFFFFFFFF, info >> 32
                    if where + (8 if kind in (R_64, R_PC64) else 4) > target.size:
                        raise ObjectFileError(detail=f"a relocation at {where} lies outside its section")
                    self.relocate(kind, symbol, self.place[s.info] + where, addend)

    def relocate(self, kind: int, symbol: int, at: int, addend: int) -> None:
        memory, pc, address = self.memory, self.base + at, self.address(symbol)
        if kind in (R_64, R_PC64):
            struct.pack_into("<Q", memory, at, (address + addend - (pc if kind == R_PC64 else 0)) % 2**64)
            return
        if kind in (R_GOTPCREL, R_GOTPCRELX, R_REX_GOTPCRELX):
            struct.pack_into("<Q", memory, self.got + 16 * symbol, address)
            distance = self.base + self.got + 16 * symbol + addend - pc
        elif kind in (R_PC32, R_PLT32):
            distance = address + addend - pc
            if kind == R_PLT32 and not -2**31 <= distance < 2**31:      # a call too far for 32 bits goes through a stub
                stub = self.stubs + 16 * symbol
                memory[stub:stub + 6] = STUB
                struct.pack_into("<Q", memory, stub + 6, address)
                distance = self.base + stub + addend - pc
        else:
            raise ObjectFileError(detail=f"relocation type {kind} is not supported")
        if not -2**31 <= distance < 2**31:
            raise ObjectFileError(detail=f"{self.obj.symbols[symbol].name!r} is out of reach of a 32-bit reference")
        struct.pack_into("<i", memory, at, distance)

    def protect(self) -> None:
        if _libc().mprotect(self.base, self.protected, PROT_READ | PROT_EXEC):
            error = os.strerror(ctypes.get_errno())
            raise Unavailable(reason=f"the system refuses to make memory executable ({error})")
        _keep(self.memory)

    def register_frames(self) -> None:
        """Tell the C++ runtime how to unwind our frames, so that its exceptions can pass through them."""
        if self.frames is not None:
            check_frames(self.obj.content(self.obj.sections[self.frames]))
            _register_frame()(ctypes.c_void_p(self.base + self.place[self.frames]))


def check_frames(table: bytes) -> None:
    """Refuse a damaged .eh_frame: libgcc parses the table when it is registered, and aborts the process on damage."""
    encodings = {b"zR": b"\x1b", b"zPLR": b"\x9b....\x1b\x1b"}         # the two forms of position-independent code
    at, entries = 0, set()
    while at < len(table):
        if at + 12 > len(table):
            raise ObjectFileError(detail="its unwind table is cut off")
        size, back = struct.unpack_from("<II", table, at)
        end = at + 4 + size
        if size < 8 or end > len(table):
            raise ObjectFileError(detail="a record of its unwind table has a wrong length")
        if back == 0:
            name, _, rest = table[at + 9:end].partition(b"\0")
            known = encodings.get(name)
            data = rest[4:4 + len(known)] if known else b""             # after two alignments, a register, a length
            if table[at + 8] != 1 or not known or len(data) != len(known) or any(
                    k not in (b, ord(".")) for k, b in zip(known, data)):
                raise ObjectFileError(detail="its unwind table is of an unknown form")
            entries.add(at)
        elif at + 4 - back not in entries:
            raise ObjectFileError(detail="a record of its unwind table refers to none")
        at = end


def load_elf(data: bytes, resolve: Resolve) -> dict[str, int]:
    """Load an x86-64 ELF object. Returns the addresses of its global symbols.

    Raises `ObjectFileError` if the file is damaged or of another kind, `Unavailable` if the system refuses executable
    memory, and whatever `resolve` raises for a symbol it does not know. What is checked is the structure: that the
    code bytes are those that were compiled is for the digest of the cache to say.
    """
    obj = _Object(data)
    image = _Image(obj, resolve)
    image.fill()
    symbols = {s.name: image.address(i) for i, s in enumerate(obj.symbols) if s.exported and s.section in image.place}
    image.protect()
    image.register_frames()
    return symbols


def load_object(data: bytes, resolve: Resolve, *, imports: Iterable[str] = (), exports: Iterable[str] = ()
                ) -> dict[str, int]:
    """Load an object of this machine's own format. Returns the addresses of its global symbols.

    `imports` and `exports` name the symbols it needs and gives. x86-64 Linux finds them in the file and ignores both;
    elsewhere LLVM loads the object and has to be told.
    """
    if sys.platform == "linux" and platform.machine() == "x86_64":
        return load_elf(data, resolve)
    return load_by_llvm(data, resolve, imports, exports)


def load_by_llvm(data: bytes, resolve: Resolve, imports: Iterable[str], exports: Iterable[str]) -> dict[str, int]:
    """Load an object through LLVM's linker: for aarch64 and macOS. Run on x86-64 Linux only, not there."""
    import llvmlite.binding as llvm
    llvm.initialize_native_target()
    library = llvm.JITLibraryBuilder().add_object_img(data)
    for name in imports:
        library.import_symbol(name, resolve(name))
    for name in exports:
        library.export_symbol(name)
    tracker = library.link(_linker(), f"object{next(_numbers)}")
    _keep(tracker)
    return {name: tracker[name] for name in exports}


_numbers = iter(range(1 << 62))


@functools.cache
def _linker() -> Any:
    import llvmlite.binding as llvm
    return llvm.create_lljit_compiler()


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


@functools.cache
def _register_frame() -> Callable[[ctypes.c_void_p], None]:
    try:
        return ctypes.CDLL("libgcc_s.so.1")["__register_frame"]
    except (OSError, AttributeError) as e:
        raise Unavailable(reason=f"the unwinder is missing: {e}") from e


def _keep(obj: object) -> None:
    """Never free `obj`, not even when the interpreter ends: machine code is referred to from outside Python."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))


def _up(n: int, align: int) -> int:
    return -(-n // align) * align
