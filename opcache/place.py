"""Where the cache lives, and whether it may live there.

What is in the cache is run as machine code later, so the directory must be one that only its owner can write. SQLite's
locks and shared memory do not work across a network, so a network file system is refused too. In each such case the
cache works in memory alone.
"""
from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from .entry import FORMAT

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "drvfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "prl_fs", "smb3", "smbfs", "v9fs", "vboxsf", "virtiofs", "vmhgfs",
}
_LOCAL_FUSE = {"fuseblk", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.encfs", "fuse.mergerfs"}


class NoPlace(Exception):
    """Why a directory cannot hold the cache. `quiet`: it is no fault, as there is just nothing to read yet."""

    def __init__(self, why: str, quiet: bool = False):
        super().__init__(why)
        self.quiet = quiet


def entries(root: Path) -> Path:
    """The database's directory; its name carries the format, so that versions do not meet."""
    return root / f"v{FORMAT}"


def locks(root: Path) -> Path:
    return root / "locks"


def prepare(root: Path, create: bool) -> Path:
    """Check `root` and make it and its folders (mode 0700) if `create`; returns its real path. Raises `NoPlace`."""
    try:
        real = Path(os.path.realpath(root.expanduser().absolute()))
        if not real.exists() and not create:
            raise NoPlace("there is no cache here yet", quiet=True)
        fs = filesystem(real)
        if is_network(fs):
            raise NoPlace(f"it is on a network file system ({fs}); set NEURON_EAGER_CACHE_DIR to a local directory, or "
                          "use NEURON_EAGER_CACHE_BUNDLE to share entries")
        if create:
            _make(real)
        _check_ancestors(real)
        for folder in (real, entries(real), locks(real)):
            if create and not folder.exists():
                _make(folder)
            if folder.exists():
                _check_own(folder, stat.S_ISDIR, create)
        if create and not os.access(real, os.W_OK | os.X_OK):
            raise NoPlace("it is not writable")
        for name in ("cache.db", "cache.db-wal", "cache.db-shm"):
            file = entries(real) / name
            if file.exists() or file.is_symlink():
                _check_own(file, stat.S_ISREG, create)
    except RuntimeError as error:           # no home directory
        raise NoPlace(str(error)) from None
    except OSError as error:
        raise NoPlace(f"it cannot be used: {error}") from None
    return real


def _make(folder: Path) -> None:
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _check_own(path: Path, right_type: Callable[[int], bool], write: bool) -> None:
    info = path.lstat()
    if not right_type(info.st_mode):
        raise NoPlace(f"{path} is not a plain {'directory' if right_type is stat.S_ISDIR else 'file'}")
    if info.st_uid != os.geteuid() and (write or info.st_uid != 0):     # what root provides may be read
        raise NoPlace(f"{path} belongs to user {info.st_uid}, not to you ({os.geteuid()})")
    if info.st_mode & _OTHERS_WRITE and path.is_dir():
        raise NoPlace(f"{path} can be written by others (mode {stat.S_IMODE(info.st_mode):04o}); "
                      f"if its content is yours: chmod 700 {path}")


def _check_ancestors(path: Path) -> None:
    """Nobody else may be able to put another directory in the place of ours."""
    trusted = {0, os.geteuid(), _overflow_uid()}
    for folder in path.parents:
        info = folder.stat()
        if info.st_uid not in trusted:
            raise NoPlace(f"{folder}, above it, belongs to user {info.st_uid}")
        writable = info.st_mode & _OTHERS_WRITE
        if writable == stat.S_IWGRP and _is_private_group(info.st_gid):
            writable = 0
        if writable and not info.st_mode & stat.S_ISVTX:
            raise NoPlace(f"{folder}, above it, can be written by others (mode {stat.S_IMODE(info.st_mode):04o})")


def _overflow_uid() -> int:
    """The owner shown for files of users outside this user namespace: in a rootless container, the machine's root."""
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 0


def _is_private_group(gid: int) -> bool:
    """Some distributions give each user a group of the same name with no other member, and umask 002."""
    import grp
    import pwd
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and user.pw_gid == gid and set(group.gr_mem) <= {user.pw_name}


# ---- file systems

def filesystem(path: Path) -> str:
    """The type of the file system that holds `path`, as in /proc/self/mountinfo; "" where that is unknown."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""
    return _type_in(mounts, path)


def is_network(fs: str) -> bool:
    return fs in _NETWORK or (fs.startswith("fuse") and fs not in _LOCAL_FUSE)


def _type_in(mounts: str, path: Path) -> str:
    found, longest = "", -1
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = Path(_unescape(fields[4]))
        depth = len(point.parts)
        if depth >= longest and path.is_relative_to(point):     # of two mounts on one point, the later one is visible
            found, longest = right.split()[0], depth
    return found


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
