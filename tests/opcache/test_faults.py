"""Damage and trouble, by injection: right results, one warning of a kind, and the cache mends itself."""
from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import time
import warnings
from contextlib import closing

import pytest

from neuron_eager import config
from neuron_eager.errors import CacheFault, CacheWarning
from neuron_eager.opcache import Cache, Key, admin, database, entry, level
from neuron_eager.opcache.faults import CONSEQUENCES, classify

KEYS = [Key("object", n=n) for n in range(6)]


def body(key: Key) -> bytes:
    return f"code for {key.parts['n']}".encode() * 50


@pytest.fixture
def filled(cache, folder):
    """The database file of a cache with all KEYS, closed."""
    for key in KEYS:
        assert cache.put(key, body(key))
    cache.close()
    return folder / "v1" / "cache.db"


def all_right(cache: Cache) -> None:
    for key in KEYS:
        assert cache.get_or_compile(key, lambda key=key: body(key)) == body(key)


def mends(fresh) -> None:
    """Right results now, and all of it from disk in the process after the next."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        all_right(fresh())
        after = fresh()
        with after.count_compiles() as n:
            all_right(after)
    assert n.compiles == 0 and after.faults.counts == {}


class TestEntries:
    def edit(self, file, change) -> None:
        with closing(sqlite3.connect(file)) as connection, connection:
            for digest, value in connection.execute("SELECT key, value FROM Cache").fetchall():
                connection.execute("UPDATE Cache SET value = ? WHERE key = ?", (change(value), digest))

    @pytest.mark.parametrize("change", [
        lambda v: v[:10], lambda v: v[:-1], lambda v: b"", lambda v: v + b"x",
        lambda v: v[:-5] + bytes([v[-5] ^ 1]) + v[-4:], lambda v: bytes(len(v)),
        lambda v: v[:8] + (entry.FORMAT + 1).to_bytes(4, "little") + v[12:]],
        ids=["head only", "last byte gone", "empty", "one byte more", "a bit flipped", "zeros", "a later format"])
    def test_every_entry_is_damaged(self, filled, fresh, change):
        self.edit(filled, change)
        with pytest.warns(CacheWarning) as caught:
            cache = fresh()
            all_right(cache)
        assert len(caught) == 1 and sum(cache.faults.counts.values()) == len(KEYS)
        assert "unusable entry" in cache.log.records[0].reason
        mends(fresh)

    def test_check_finds_and_removes_them(self, filled, fresh):
        self.edit(filled, lambda v: v[:-1])
        cache = fresh()
        found = admin.check(cache)
        assert len(found) == len(KEYS) and all("removed" in line for line in found)
        assert admin.check(cache) == []
        mends(fresh)


class TestDatabase:
    @pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + os.urandom(8000), b"\0" * 4096])
    def test_a_file_of_garbage_is_moved_aside(self, filled, fresh, folder, content):
        filled.write_bytes(content)
        with pytest.warns(CacheWarning, match="corrupt-") as caught:
            all_right(fresh())
        assert len(caught) == 1
        (aside,) = folder.glob("v1.corrupt-*")
        assert (aside / "cache.db").read_bytes()[:100] == content[:100]
        mends(fresh)

    @pytest.mark.parametrize("content", [b"", b"x"])
    def test_a_file_of_less_than_a_page_is_a_new_database(self, filled, fresh, content):
        filled.write_bytes(content)
        mends(fresh)

    @pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
    def test_a_truncated_file(self, filled, fresh, part):
        os.truncate(filled, int(filled.stat().st_size * part))
        mends(fresh)

    def test_every_damaged_page(self, filled, fresh):
        whole = filled.read_bytes()
        for start in range(0, len(whole), 4096):
            damaged = bytearray(whole)
            damaged[start:start + 4096] = os.urandom(4096)
            filled.write_bytes(damaged)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CacheWarning)
                all_right(fresh())
            mends(fresh)

    def test_damage_under_an_open_cache(self, filled, fresh):
        cache = fresh()
        assert cache.get(KEYS[0]) == body(KEYS[0])
        with open(filled, "r+b") as file:
            file.write(os.urandom(file.seek(0, os.SEEK_END)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            all_right(cache)
            cache.put(Key("object", n="new"), b"new")
        cache.close()
        mends(fresh)

    def test_only_the_last_damaged_databases_are_kept(self, filled, fresh, folder):
        for round_ in range(4):
            filled.write_bytes(b"garbage" * 1000)
            cache = fresh()
            with pytest.warns(CacheWarning):
                all_right(cache)
            cache.close()
            for path in folder.glob("v1.corrupt-*[0-9]"):
                path.rename(path.with_name(f"{path.name}-{round_}.old"))      # the next one may come in the same second
        assert len(list(folder.glob("v1.corrupt-*"))) == 2
        cache = fresh()
        assert sum("moved aside" in line for line in admin.check(cache)) == 2
        assert admin.purge(cache) == len(KEYS)
        assert list(folder.glob("v1.corrupt-*")) == []

    def test_many_processes_move_it_aside_once(self, filled, processes, folder):
        filled.write_bytes(b"garbage" * 1000)
        code = """
            import warnings; warnings.simplefilter("ignore")
            for n in range(6):
                assert opcache.get_or_compile(Key("object", n=n), lambda: b"x") == b"x"
        """
        for process in [processes.start(code) for _ in range(6)]:
            processes.finish(process)
        assert len(list(folder.glob("v1.corrupt-*"))) == 1
        assert len(processes.run("print(*[opcache.get(Key('object', n=n)) for n in range(6)])").split()) == 6


class TestRemoval:
    @pytest.mark.parametrize("what", ["", "v1", "locks"])
    def test_the_directory_is_removed_under_an_open_cache(self, filled, fresh, folder, what):
        cache = fresh()
        all_right(cache)
        shutil.rmtree(folder / what)
        cache.forget()
        all_right(cache)
        assert cache.faults.counts == {}
        mends(fresh)

    def test_the_database_is_replaced_by_another(self, filled, fresh, tmp_path):
        cache = fresh()
        all_right(cache)
        copy = tmp_path / "copy"
        shutil.copy(filled, copy)
        os.replace(copy, filled)
        cache.forget()
        all_right(cache)
        assert cache.put(Key("object", n="new"), b"new") and fresh().get(Key("object", n="new")) == b"new"


class TestDiskFull:
    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
    def test_a_small_file_system(self, tmp_path, monkeypatch):
        small = tmp_path / "small"
        small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", small], check=False,
                          capture_output=True).returncode:
            pytest.skip("mounting is not allowed here")
        try:
            monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(small / "cache"))
            cache = Cache()
            keys = [Key("object", n=n) for n in range(40)]
            with pytest.warns(CacheWarning, match="full") as caught:
                for key in keys:
                    assert cache.get_or_compile(key, lambda key=key: body(key) * 20) == body(key) * 20
            assert len(caught) == 1 and 0 < cache.counts.stored < 40
            cache.close()
            other = Cache()
            for key in keys:
                assert other.get(key) in (None, body(key) * 20)
            assert other.counts.disk_hits == cache.counts.stored
            other.close()
        finally:
            subprocess.run(["umount", "-l", small], check=True)

    def test_a_limit_on_the_size_of_files(self, processes):
        out = processes.run("""
            import resource, warnings
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for n in range(40):
                    assert opcache.get_or_compile(Key("object", n=n), lambda: b"%d" % n * 10_000) == b"%d" % n * 10_000
            print(len(caught), opcache.cache_info().stored)
        """)
        warned, stored = map(int, out.split())
        assert 1 <= warned <= 2 and stored < 40
        out = processes.run("""
            kept = [opcache.get(Key("object", n=n)) for n in range(40)]
            assert all(b is None or b == b"%d" % n * 10_000 for n, b in enumerate(kept))
            print(sum(b is not None for b in kept))
        """)
        assert int(out) == stored


class TestBusy:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch):
        monkeypatch.setattr(database, "WRITER_DEADLINE", 0.2)

    def test_a_writer_that_never_ends_when_opening(self, filled, fresh, monkeypatch):
        monkeypatch.setattr(level, "RETRY_AFTER", 0.3)
        cache, new = fresh(), [Key("object", n=f"new {i}") for i in range(5)]
        with closing(sqlite3.connect(filled, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            all_right(cache)                            # reading goes on
            assert cache.counts.disk_hits == len(KEYS)
            with pytest.warns(CacheWarning, match="locked") as caught:
                assert not any(cache.put(key, b"new") for key in new)
            assert len(caught) == 1 and cache.faults.counts["busy"] < len(new)      # not a wait for each
            connection.execute("ROLLBACK")
        time.sleep(0.3)
        assert cache.put(new[0], b"new") and fresh().get(new[0]) == b"new"          # tried again after a while

    def test_a_writer_that_never_ends_when_storing(self, filled, fresh):
        cache = fresh()
        assert cache.put(KEYS[0], body(KEYS[0]))
        with closing(sqlite3.connect(filled, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with pytest.warns(CacheWarning, match="Timeout"):
                assert not cache.put(Key("object", n="new"), b"new")
            assert not cache.put(Key("object", n="newer"), b"newer")       # without another wait
            assert cache.get(KEYS[1]) == body(KEYS[1])                     # reading goes on
            connection.execute("ROLLBACK")
        assert cache.get(Key("object", n="new")) == b"new"


class TestInterrupts:
    """An interrupt at each step of a store: nothing is half done, no lock stays, the next call is right."""

    STEPS = ["get", "set", "_select", "_open_reader", "_open_writer", "_check_inode"]

    @pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("after", [False, True])
    def test_at_a_step(self, cache, fresh, folder, monkeypatch, step, interrupt, after):
        original = getattr(database.Database, step)
        armed = [True]

        def interrupted(*arguments):
            result = original(*arguments) if after else None
            if armed:
                armed.clear()
                raise interrupt
            return result if after else original(*arguments)
        monkeypatch.setattr(database.Database, step, interrupted)
        with pytest.raises(interrupt):
            cache.get_or_compile(KEYS[0], lambda: body(KEYS[0]))
        assert not folder.exists() or list((folder / "locks").glob("*")) == []
        all_right(cache)
        cache.close()
        mends(fresh)

    @pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "INSERT INTO Cache", "COMMIT"])
    def test_inside_the_transaction(self, cache, fresh, folder, monkeypatch, statement):
        import diskcache
        cache.put(Key("object", n="first"), b"opens the database")
        original, armed = diskcache.Cache._sql.fget, [True]

        def interrupted(self):
            execute = original(self)

            def run(sql, *arguments):
                result = execute(sql, *arguments)
                if armed and sql.lstrip().startswith(statement):
                    armed.clear()
                    raise KeyboardInterrupt
                return result
            return run
        monkeypatch.setattr(diskcache.Cache, "_sql", property(interrupted))
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_compile(KEYS[0], lambda: body(KEYS[0]))
        monkeypatch.undo()
        with config.override(cache_dir=folder):
            assert fresh().put(KEYS[1], body(KEYS[1]))         # no transaction was left open
            all_right(cache)


class TestTrouble:
    @pytest.mark.parametrize("code", [errno.EBUSY, errno.ESTALE, errno.ENOENT, errno.EIO, errno.EACCES, errno.EROFS])
    @pytest.mark.parametrize("step", ["get", "set"])
    def test_an_error_of_the_file_system(self, cache, monkeypatch, step, code):
        def fail(*_):
            raise OSError(code, os.strerror(code))
        monkeypatch.setattr(database.Database, step, fail)
        with pytest.warns(CacheWarning) as caught:
            all_right(cache)
        assert len(caught) == 1 and cache.counts.compiles == len(KEYS)

    @pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSPC, errno.EACCES, errno.EMFILE])
    def test_a_file_system_without_locks(self, cache, monkeypatch, code):
        def fail(*_):
            raise OSError(code, os.strerror(code))
        monkeypatch.setattr("neuron_eager.opcache.lock.KeyLock._try", fail)
        with pytest.warns(CacheWarning, match="without storing") as caught:
            all_right(cache)
        assert len(caught) == 1 and cache.counts.stored == 0

    def test_strict_raises_each_of_them(self, filled, fresh, strict):
        filled.write_bytes(b"garbage" * 1000)
        with pytest.raises(CacheFault, match="moved aside"):
            fresh().get(KEYS[0])

    def test_strict_after_a_compile_keeps_the_result(self, cache, monkeypatch, strict):
        def fail(*_):
            raise sqlite3.OperationalError("database or disk is full")
        monkeypatch.setattr(database.Database, "set", fail)
        with pytest.raises(CacheFault, match="full"):
            cache.get_or_compile(KEYS[0], lambda: b"x")
        assert cache.get_or_compile(KEYS[0], lambda: b"never") == b"x"
        assert [r.stored for r in cache.log.records] == [False]

    @pytest.mark.parametrize("error, kind", [
        (sqlite3.OperationalError("database is locked"), "busy"),
        (sqlite3.OperationalError("database or disk is full"), "full"),
        (sqlite3.OperationalError("disk I/O error"), "io"),
        (sqlite3.OperationalError("no such column: value"), "database"),
        (sqlite3.OperationalError("unable to open database file"), "io"),
        (sqlite3.DatabaseError("database disk image is malformed"), "database"),
        (sqlite3.DatabaseError("file is not a database"), "database"), (OSError(errno.ENOSPC, "x"), "full"),
        (OSError(errno.EFBIG, "x"), "full"), (OSError(errno.ESTALE, "x"), "io"), (ValueError("unpack"), "database"),
        (MemoryError(), "io"), (sqlite3.ProgrammingError("closed"), "io")])
    def test_classification(self, error, kind):
        assert classify(error) == kind and kind in CONSEQUENCES

    def test_what_is_imported_when(self, processes):
        code = """
            heavy = {"torch", "numpy", "llvmlite", "diskcache", "sqlite3"}
            print(sorted(heavy & set(sys.modules)))
            opcache.get_or_compile(Key("object", n=1), lambda: b"x")
            print(sorted(heavy & set(sys.modules)))
        """
        assert processes.run(code).split("\n")[:2] == ["[]", "['diskcache', 'sqlite3']"]
        assert processes.run(code).split("\n")[:2] == ["[]", "['sqlite3']"]
