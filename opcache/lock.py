"""One process at a time compiles a key: an advisory lock on a file per key.

The kernel frees a `flock` when its holder dies, so nothing is ever stale. A holder that lives but does not go on
(stopped, or at a breakpoint) costs the others a bounded wait.
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

TELL_AFTER = 5.0        # seconds of waiting until the holder is named
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)

_held: set[int] = set()     # descriptors; a forked child closes its copies, or the lock would outlive the holder


class KeyLock:
    """The lock for one key. After `acquire`: `held`, or `found` a value meanwhile, or neither, and then `why`."""

    def __init__(self, folder: Path, digest: str, what: str):
        self.path, self.what = folder / f"{digest}.lock", what
        self.fd = -1
        self.pid = os.getpid()
        self.why = ""

    @property
    def held(self) -> bool:
        return self.fd >= 0

    def acquire(self, timeout: float, look: Callable[[], T | None]) -> T | None:
        """Take the lock, or return what `look()` finds while another process holds it.

        Gives up, with `why` set, after `timeout` seconds or when the holder turns out to be stopped. Raises OSError
        where the file system refuses locks.
        """
        start = time.monotonic()
        told, next_check = False, min(TELL_AFTER, timeout)
        attempt = 0
        while not self._try():
            waited = time.monotonic() - start
            if waited >= next_check:
                next_check += TELL_AFTER
                holder = self._holder()
                if _is_stopped(holder):
                    self.why = f"{_name(holder)} holds the lock and is stopped"
                    return None
                if waited >= timeout:
                    self.why = f"{_name(holder)} has held the lock for more than {timeout:g} s"
                    return None
                if not told:
                    told = True
                    log.warning("waiting for %s to compile %s (%.0f s so far, at most %.0f s; lock %s)",
                                _name(holder), holder.get("what") or self.what, waited, timeout, self.path)
                next_check = min(next_check, timeout)
            time.sleep(min(_STEPS[min(attempt, len(_STEPS) - 1)], max(timeout - waited, 0.001)))
            attempt += 1
            found = look()
            if found is not None:
                return found
        return None

    def _try(self) -> bool:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        taken = False
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                    return False
                raise
            # The last holder removes the file: a lock on a removed file excludes nobody.
            with contextlib.suppress(FileNotFoundError):
                taken = os.path.samestat(os.fstat(fd), os.stat(self.path))
            if taken:
                me = {"pid": os.getpid(), "host": socket.gethostname(), "space": _pid_space(), "what": self.what}
                with contextlib.suppress(OSError):          # a full disk: the lock holds without a name
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, json.dumps(me).encode(), 0)
                self.fd = fd
                _held.add(fd)
            return taken
        finally:
            if not taken:
                os.close(fd)

    def release(self) -> None:
        fd, self.fd = self.fd, -1
        if fd < 0 or os.getpid() != self.pid:       # a forked child has closed its copy already
            return
        _held.discard(fd)
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(fd)

    def _holder(self) -> dict[str, object]:
        try:
            content = json.loads(self.path.read_bytes()[:4096])
            return content if isinstance(content, dict) else {}
        except (OSError, ValueError):
            return {}


def remove_stale(folder: Path) -> int:
    """Remove the lock files of processes that died, and return their number."""
    removed = 0
    for path in folder.glob("*.lock"):
        lock = KeyLock(folder, path.stem, "")
        with contextlib.suppress(OSError):
            if lock._try():
                lock.release()
                removed += 1
    return removed


def _name(holder: dict[str, object]) -> str:
    return f"process {holder['pid']} on {holder.get('host')}" if "pid" in holder else "another process"


def _pid_space() -> str:
    """Which pid namespace our pid is a number in: containers that share a directory have the same numbers."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _is_stopped(holder: dict[str, object]) -> bool:
    if holder.get("host") != socket.gethostname() or holder.get("space") != _pid_space():
        return False
    try:
        status = Path(f"/proc/{int(str(holder['pid']))}/stat").read_text()
    except (OSError, ValueError, KeyError):
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


def _drop_in_child() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)
