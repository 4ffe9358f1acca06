"""Where the cache may live: a directory that its owner alone can write, on a local file system."""
from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from neuron_eager import config
from neuron_eager.errors import CacheFault, CacheWarning
from neuron_eager.opcache import Cache, Key, place

KEY = Key("object", n=1)
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")


def works_in_memory_only(match: str) -> None:
    """Right results, one warning that says why, and the reason in the state."""
    cache = Cache()
    with pytest.warns(CacheWarning, match=match) as caught:
        for n in range(3):
            assert cache.get_or_compile(Key("object", n=n), lambda: b"x") == b"x"
            assert cache.get_or_compile(Key("object", n=n), lambda: b"never") == b"x"
    assert len(caught) == 1 and cache.counts.compiles == 3
    assert cache.disk.state.startswith("memory only")
    with config.override(cache_strict=True), pytest.raises(CacheFault, match=match):
        Cache().get(KEY)


def test_everything_is_made_for_the_owner_alone(cache, folder):
    old = os.umask(0o002)
    try:
        cache.put(KEY, b"x")
    finally:
        os.umask(old)
    for path in (folder, folder / "v1", folder / "locks"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_the_default_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.delenv("NEURON_EAGER_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    Cache().put(KEY, b"x")
    assert (tmp_path / "xdg" / "neuron_eager" / "v1" / "cache.db").exists()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Cache().put(KEY, b"x")
    assert (tmp_path / "home" / ".cache" / "neuron_eager" / "v1" / "cache.db").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722, 0o1777])
def test_a_directory_that_others_can_write(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    works_in_memory_only("chmod 700")
    assert list(folder.iterdir()) == []


def test_readable_by_others_is_no_danger(cache, folder):
    folder.mkdir(mode=0o755)
    assert cache.put(KEY, b"x")


@pytest.mark.parametrize("inner", ["v1", "locks"])
def test_an_inner_folder_that_others_can_write(folder, cache, inner):
    cache.put(KEY, b"x")
    cache.close()
    (folder / inner).chmod(0o777)
    works_in_memory_only("chmod 700")


@root_only
@pytest.mark.parametrize("what", ["", "v1", "v1/cache.db"])
def test_owned_by_somebody_else(folder, cache, what):
    cache.put(KEY, b"x")
    cache.close()
    os.chown(folder / what, 12345, 12345)
    works_in_memory_only("belongs to user 12345")


def test_a_parent_that_others_can_write(folder, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(shared / "mine"))
    works_in_memory_only("above it, can be written by others")
    shared.chmod(0o1777)                                # sticky, like /tmp: nobody can replace what is mine
    assert Cache().put(KEY, b"x")


@root_only
def test_a_parent_of_somebody_else(folder, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 12345, 12345)
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(other / "mine"))
    works_in_memory_only("above it, belongs to user 12345")


def test_a_private_group_may_write_parents(tmp_path, monkeypatch):
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o775)
    monkeypatch.setattr(place, "_is_private_group", lambda gid: True)
    assert place.prepare(parent / "cache", True)
    monkeypatch.setattr(place, "_is_private_group", lambda gid: False)
    with pytest.raises(place.NoPlace, match="written by others"):
        place.prepare(parent / "cache", True)


@pytest.mark.parametrize("target", ["v1", "v1/cache.db", "locks"])
def test_a_symbolic_link_in_the_place_of_a_part(folder, tmp_path, target):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    path = folder / target
    path.parent.mkdir(mode=0o700, parents=True)
    path.symlink_to(elsewhere / "file" if target.endswith("db") else elsewhere)
    works_in_memory_only("not a plain")
    assert list(elsewhere.iterdir()) == []


def test_the_directory_itself_may_be_a_link(folder, tmp_path):
    real = tmp_path / "scratch"
    real.mkdir(mode=0o700)
    folder.symlink_to(real)
    assert Cache().put(KEY, b"x") and (real / "v1" / "cache.db").exists()


def test_a_file_in_the_place_of_the_directory(folder):
    folder.write_text("not a directory")
    works_in_memory_only("not a plain directory|cannot be used")


def test_a_place_where_nothing_can_be_made(monkeypatch):
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", "/proc/neuron_eager")
    works_in_memory_only("cannot be used|not writable")


def test_a_read_only_file_system(folder, monkeypatch):
    monkeypatch.setattr(place.os, "access", lambda path, mode: False)
    works_in_memory_only("not writable")


@root_only
def test_an_unwritable_directory(processes, folder):
    folder.mkdir(mode=0o700)
    parent = folder.parent
    while parent != Path("/tmp") and parent != parent.parent:
        parent.chmod(0o755)                             # an ordinary user has to get here
        parent = parent.parent
    out = processes.run("""
        import warnings
        from neuron_eager import opcache
        os.setgid(12345); os.setuid(12345)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for n in range(3):
                assert opcache.get_or_compile(Key("object", n=n), lambda: b"x") == b"x"
        print(len(caught), caught[0].message)
    """)
    assert out.startswith("1 ") and "belongs to user 0" in out


class TestFileSystem:
    MOUNTS = (
        "22 1 0:21 / / rw - ext4 /dev/sda rw\n"
        "23 22 0:22 / /home rw,relatime shared:1 - nfs4 server:/home rw\n"
        "24 23 0:23 / /home/me/local\\040disk rw - xfs /dev/sdb rw\n"
        "25 22 0:24 / /data rw - ext4 /dev/sdc rw\n"
        "26 22 0:25 / /data rw - lustre mgs:/data rw\n"
        "broken line\n")

    @pytest.mark.parametrize("path, kind", [
        ("/var/x", "ext4"), ("/home/me/.cache", "nfs4"), ("/home/me/local disk/c", "xfs"), ("/homestead", "ext4"),
        ("/data/x", "lustre")])
    def test_type_of(self, path, kind):
        assert place._type_in(self.MOUNTS, Path(path)) == kind

    @pytest.mark.parametrize("kind, network", [
        ("ext4", False), ("xfs", False), ("tmpfs", False), ("overlay", False), ("fuseblk", False),
        ("fuse.fuse-overlayfs", False), ("nfs", True), ("nfs4", True), ("cifs", True), ("lustre", True), ("9p", True),
        ("fuse.sshfs", True), ("fuse", True), ("", False)])
    def test_network(self, kind, network):
        assert place.is_network(kind) is network

    def test_a_network_file_system_is_refused(self, folder, monkeypatch):
        monkeypatch.setattr(place, "filesystem", lambda path: "nfs4")
        works_in_memory_only("network file system .nfs4.*NEURON_EAGER_CACHE_BUNDLE")
        assert not folder.exists()

    def test_this_machine(self, tmp_path):
        assert place.filesystem(tmp_path) != ""
