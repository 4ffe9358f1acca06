"""The machine that code is generated for: found without LLVM, part of every cache key, replaceable in tests.

A warm process needs the key text but no compiler, so the host is described by what /proc/cpuinfo says; LLVM's own name
of the CPU follows from that and the LLVM version. Only `Target.machine()` imports llvmlite.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..config import config

FORMAT = 1                      # of generated objects: calling conventions, scratch layouts
X86_64_V3 = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"))
AVX512 = frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"))
LLVM_NAMES = {"avx512_bf16": "avx512bf16"}


@dataclass(frozen=True)
class Target:
    """A CPU as the code generator sees it.

    cpu: LLVM's name, or "host" for the machine itself. features: the flags decisions are made on. identity: model and
    flags of a host, so that code for one never loads on another.
    """

    arch: str
    cpu: str
    features: frozenset[str]
    identity: str = ""

    @property
    def triple(self) -> str:
        return f"{self.arch}-unknown-linux-gnu"

    @property
    def avx512(self) -> bool:
        """Masked loads and stores of every element size, 32 registers of 512 bits."""
        return self.features >= AVX512

    @property
    def bf16_dot(self) -> bool:
        """vdpbf16ps: two bfloat16 products added to a float32 lane."""
        return self.avx512 and "avx512_bf16" in self.features

    @property
    def lanes(self) -> int:
        """float32 lanes of a vector in compute-bound code: 16 with AVX-512, else 8 (two registers on NEON)."""
        return 16 if self.avx512 else 8

    @property
    def lacking(self) -> str:
        """Why native code cannot be generated for this CPU; empty if it can."""
        if self.cpu == "host" and sys.platform != "linux":
            return f"no code generation for {sys.platform}"
        if self.arch == "aarch64":
            return ""
        if self.arch != "x86_64":
            return f"no code generation for {self.arch}"
        missing = sorted(X86_64_V3 - self.features)
        return f"the CPU lacks {', '.join(missing)} (x86-64-v3 is needed)" if missing else ""

    @functools.cached_property
    def key_text(self) -> str:
        """What an object depends on besides the program it was made from; for cache keys. Imports no LLVM."""
        return "\n".join((f"format {FORMAT}", f"triple {self.triple}", f"cpu {self.cpu} {self.identity}",
                          "features " + " ".join(sorted(self.features)), f"llvmlite {llvmlite_version()}",
                          f"lowering {source_digest()}"))

    def machine(self) -> Any:
        """A new llvmlite TargetMachine."""
        import llvmlite.binding as llvm
        if self.arch == _host_arch():
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
        else:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
        if self.cpu == "host":
            cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        else:
            cpu = self.cpu
            features = ",".join("+" + LLVM_NAMES[f] for f in sorted(self.features) if f in LLVM_NAMES)
            if self.arch == "x86_64" and self.avx512:
                features = ",".join(filter(None, (features, "-prefer-256-bit")))
        return llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small")

    @functools.cached_property
    def data_layout(self) -> str:
        """LLVM's data layout text (imports LLVM)."""
        return str(self.machine().target_data)


PRETEND = {
    "x86-64-v3": Target("x86_64", "x86-64-v3", X86_64_V3),
    "x86-64-v4": Target("x86_64", "x86-64-v4", X86_64_V3 | AVX512),
    "x86-64": Target("x86_64", "x86-64", frozenset()),
    "aarch64": Target("aarch64", "generic", frozenset(("neon",))),
}

_override = threading.local()


def _host_arch() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


@functools.cache
def host() -> Target:
    """The machine this process runs on."""
    arch = _host_arch()
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return Target(arch, "host", frozenset(), f"unknown {platform.processor()}")
    fields = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    flags = fields.get("flags", fields.get("Features", "")).split()
    names = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
    identity = " ".join(fields[n] for n in names if n in fields)
    digest = hashlib.sha256(" ".join(sorted(flags)).encode()).hexdigest()[:16]
    known = X86_64_V3 | AVX512 | frozenset(("avx512_bf16", "asimd", "bf16"))
    return Target(arch, "host", frozenset(flags) & known, f"{identity} {digest}")


def current() -> Target:
    """The target of this thread: the host, unless `pretend` or the setting `cpu` says otherwise."""
    chosen = getattr(_override, "target", None)
    if chosen is None:
        chosen = host() if config.cpu == "auto" else PRETEND[config.cpu]
    return chosen


@contextlib.contextmanager
def pretend(target: Target | str) -> Iterator[Target]:
    """Generate code for another target in this thread: a Target or a name of PRETEND, such as "x86-64-v3"."""
    before = getattr(_override, "target", None)
    chosen = PRETEND[target] if isinstance(target, str) else target
    _override.target = chosen
    try:
        yield chosen
    finally:
        _override.target = before


@functools.cache
def llvmlite_version() -> str:
    """The installed llvmlite, which pins its LLVM; read from metadata, not by import."""
    try:
        return metadata.version("llvmlite")
    except metadata.PackageNotFoundError:
        return "none"


@functools.cache
def source_digest() -> str:
    """sha256 over the sources of this package: any change to the lowering makes other objects."""
    h = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        h.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()
