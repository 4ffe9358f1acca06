"""A database that somebody else wrote: nothing of it is executed, no file outside is touched, results stay right."""
from __future__ import annotations

import os
import pickle
import sqlite3
import warnings
from contextlib import closing

import pytest

from neuron_eager.errors import CacheWarning
from neuron_eager.opcache import Key, admin
from neuron_eager.opcache.disk import RawDisk
from neuron_eager.opcache.rows import Refused

KEY = Key("object", n=1)


class Bomb:
    """Unpickling it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def edit(folder, cache):
    """Runs SQL on the database of a cache that has KEY."""
    cache.put(KEY, b"right")
    cache.close()

    def run(statement: str, *arguments: object) -> None:
        with closing(sqlite3.connect(folder / "v1" / "cache.db")) as connection, connection:
            assert connection.execute(statement, arguments).rowcount != 0
    return run


def heals(fresh) -> None:
    """The key is made again, in right form, and then found by the next process."""
    cache = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        assert cache.get_or_compile(KEY, lambda: b"right") == b"right"
    assert fresh().get(KEY) == b"right"


@pytest.mark.parametrize("mode", [4, 0, 2, 3, 99, None, "raw"])
def test_a_row_of_another_mode_is_refused_and_not_unpickled(edit, fresh, tmp_path, mode):
    edit("UPDATE Cache SET mode = ?, value = ?", mode, pickle.dumps(Bomb(tmp_path / "executed")))
    with pytest.warns(CacheWarning, match="Refused"):
        assert fresh().get(KEY) is None
    heals(fresh)
    assert not (tmp_path / "executed").exists()


def test_a_pickled_key_is_not_decoded(edit, fresh, tmp_path):
    edit("INSERT INTO Cache (key, raw, store_time, mode, value) VALUES (?, 0, 1, 1, ?)",
         pickle.dumps(Bomb(tmp_path / "executed")), b"x")
    cache = fresh()
    assert cache.disk.attempt(lambda db: db.digests(), []) == [KEY.digest]
    assert any("foreign" in line for line in admin.check(cache))
    assert cache.disk.attempt(lambda db: db.usage(), (0, 0))[0] == 1
    assert cache.get(KEY) == b"right" and not (tmp_path / "executed").exists()


@pytest.mark.parametrize("mode", [1, 2, 3, 4])
def test_a_file_name_reads_and_removes_nothing_outside(edit, fresh, tmp_path, folder, mode):
    secret = tmp_path / "secret"
    secret.write_bytes(pickle.dumps(Bomb(tmp_path / "executed")))
    edit("UPDATE Cache SET mode = ?, filename = ?, value = NULL", mode, os.path.relpath(secret, folder / "v1"))
    with pytest.warns(CacheWarning):
        assert fresh().get(KEY) is None
    heals(fresh)                                    # overwriting a row removes its file in diskcache
    edit("UPDATE Cache SET filename = ?", str(secret))
    fresh().disk.attempt(lambda db: db.delete(KEY.digest), None)
    assert secret.exists() and not (tmp_path / "executed").exists()


@pytest.mark.parametrize("value", ["text", 5, None, 1.5, b"", b"MZ" * 100])
def test_a_value_that_is_no_entry(edit, fresh, value):
    edit("UPDATE Cache SET value = ?", value)
    with pytest.warns(CacheWarning):
        assert fresh().get(KEY) is None
    heals(fresh)


def test_an_entry_moved_under_another_key(edit, fresh):
    other = Key("object", n=2)
    edit("UPDATE Cache SET key = ?", other.digest)
    with pytest.warns(CacheWarning, match="another key"):
        assert fresh().get(other) is None
    with pytest.warns(CacheWarning, match="another key"):
        assert fresh().get(other.digest) is None


@pytest.mark.parametrize("setting, value", [
    ("_directory", "/"), ("get", 1), ("timeout", 9), ("disk", 1), ("sqlite_evil", 1), ("disk_nonsense", 1),
    ("sqlite_x = 1; DROP TABLE Cache; --", 1), (b"\xff", 1), (5, 1), ("", 1)])
def test_hostile_settings_are_moved_aside(edit, fresh, folder, setting, value):
    edit("INSERT INTO Settings VALUES (?, ?)", setting, value)
    cache = fresh()
    assert cache.get(KEY) == b"right"               # reading does not look at settings
    with pytest.warns(CacheWarning, match="aside"):
        assert cache.put(Key("object", n=2), b"stored in a fresh database")
    heals(fresh)
    assert len(list(folder.glob("v1.corrupt-*"))) == 1


@pytest.mark.parametrize("setting, value", [
    ("count", "many"), ("size", b"x"), ("size_limit", "huge"), ("cull_limit", -1), ("statistics", 1),
    ("eviction_policy", "least-recently-used")])
def test_bad_values_of_known_settings(edit, fresh, setting, value):
    edit("UPDATE Settings SET value = ? WHERE key = ?", value, setting)
    heals(fresh)


@pytest.mark.parametrize("statement", [
    "CREATE TABLE other (x)", "DROP TABLE Settings", "DROP TABLE Cache",
    "ALTER TABLE Cache RENAME COLUMN value TO body",
    "CREATE TRIGGER bad BEFORE INSERT ON Cache BEGIN SELECT RAISE(ABORT, 'no'); END",
    "CREATE TRIGGER bad BEFORE UPDATE ON Cache BEGIN SELECT RAISE(ABORT, 'no'); END",
    "CREATE VIEW other AS SELECT 1"])
def test_another_schema(edit, fresh, statement):
    edit(statement)
    cache = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        for n in (1, 2, 3):
            assert cache.get_or_compile(Key("object", n=n), lambda: b"right") == b"right"
    for n in (2, 3):                                # the first may have been a hit before the database was moved aside
        assert fresh().get(Key("object", n=n)) == b"right"
    heals(fresh)


class TestRawDisk:
    disk = RawDisk("/nowhere")

    @pytest.mark.parametrize("key", ["short", "../" * 20, b"0" * 64, 1, None, ("a",), "G" * 64])
    def test_keys(self, key):
        with pytest.raises(TypeError):
            self.disk.put(key)
        assert self.disk.get(key, True) is None and self.disk.get("0" * 64, 0) is None

    @pytest.mark.parametrize("value", ["text", None, 1, {"a": 1}, bytearray(b"x")])
    def test_values(self, value):
        with pytest.raises(TypeError):
            self.disk.store(value, False)

    def test_files(self, tmp_path):
        with pytest.raises(TypeError):
            self.disk.store(b"x", True)
        with pytest.raises(Refused):
            self.disk.filename()
        victim = tmp_path / "victim"
        victim.write_text("x")
        self.disk.remove(str(victim))
        assert victim.exists()
