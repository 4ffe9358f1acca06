"""SBUF and PSUM by liveness: how much of a partition is live at each instruction, and whether it fits the target."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import NkiCapacityError
from .buffers import MemoryRegion, psum, sbuf

if TYPE_CHECKING:
    from .limits import Limits
    from .program import Program
    from .tensor import Storage


@dataclass(frozen=True)
class Peak:
    """The fullest moment of one memory: bytes of a partition, the instruction's number, the storages live then."""

    buffer: MemoryRegion
    nbytes: int
    at: int
    live: tuple[Storage, ...]


def _bytes(storage: Storage, limits: Limits) -> int:
    """What a storage takes of each partition. PSUM tensors of up to one bank share banks; larger ones take whole
    banks."""
    n = storage.partition_bytes
    if storage.buffer is psum and n > limits.psum_bank_bytes:
        return -(-n // limits.psum_bank_bytes) * limits.psum_bank_bytes
    return n


def peak(storages: Sequence[Storage], buffer: MemoryRegion, limits: Limits) -> Peak:
    """The peak of one memory, each tensor being live from the first instruction that uses it to the last."""
    used = [s for s in storages if s.buffer is buffer and s.first_use >= 0]
    events = sorted([(s.first_use, 1, s.id) for s in used] + [(s.last_use + 1, 0, s.id) for s in used])
    size = {s.id: _bytes(s, limits) for s in used}
    now = best = at = 0
    for when, starts, key in events:
        now += size[key] if starts else -size[key]
        if now > best:
            best, at = now, when
    return Peak(buffer, best, at, tuple(s for s in used if s.first_use <= at <= s.last_use))


def check_storages(storages: Sequence[Storage], limits: Limits, name: str) -> None:
    """Raise NkiCapacityError when the live tensors need more of a partition than the target has, and for tensors with
    `address=` that overlap while both are live."""
    for buffer, available in ((sbuf, limits.sbuf_partition_bytes), (psum, limits.psum_partition_bytes)):
        if sum(_bytes(s, limits) for s in storages if s.buffer is buffer) > available:
            found = peak(storages, buffer, limits)
            if found.nbytes > available:
                raise NkiCapacityError(_message(name, found, available, limits))
    _check_addresses(storages, limits)


def check(program: Program, limits: Limits) -> None:
    check_storages(program.storages, limits, program.name)


def _message(name: str, found: Peak, available: int, limits: Limits) -> str:
    largest = sorted(found.live, key=lambda s: -s.partition_bytes)[:8]
    lines = [f"kernel {name}: {found.nbytes} bytes of {found.buffer} per partition are live at instruction {found.at}, "
             f"and {limits.target} has {available}. The largest live tensors:"]
    lines += [f"  {s.partition_bytes:>8} bytes  {s.label} {s.dtype}{list(s.shape)} at {s.loc}"
              for s in largest]
    return "\n".join(lines)


def _check_addresses(storages: Sequence[Storage], limits: Limits) -> None:
    placed = sorted((s for s in storages if s.address is not None and s.first_use >= 0 and s.buffer.on_chip),
                    key=lambda s: (s.buffer.value, s.address[1]))          # type: ignore[index]
    for i, a in enumerate(placed):
        (start, low), size = a.address, limits.sbuf_partition_bytes        # type: ignore[misc]
        if a.buffer is psum:
            size = limits.psum_partition_bytes
        if low + a.partition_bytes > size or start + a.shape[0] > limits.pmax:
            raise NkiCapacityError(f"{a!r} at address {a.address} does not fit into {a.buffer}: {limits.pmax} "
                                   f"partitions of {size} bytes", a.loc)
        for b in placed[i + 1:]:
            other_start, other_low = b.address                              # type: ignore[misc]
            if b.buffer is not a.buffer or other_low >= low + a.partition_bytes:
                break
            apart = start + a.shape[0] <= other_start or other_start + b.shape[0] <= start
            if not apart and a.first_use <= b.last_use and b.first_use <= a.last_use:
                raise NkiCapacityError(
                    f"{a!r} at address {a.address} and {b!r} at address {b.address} (from {b.loc}) overlap while both "
                    "are live", a.loc)
