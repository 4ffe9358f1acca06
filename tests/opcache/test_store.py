"""The cache in one process: levels, settings, threads, forks, failures, size."""
from __future__ import annotations

import gc
import os
import threading
import time
import weakref

import pytest

from neuron_eager import config
from neuron_eager.errors import CacheWarning
from neuron_eager.opcache import Cache, Key, key
from neuron_eager.opcache.entry import Entry
from neuron_eager.opcache.memory import Memory

KEY = Key("object", n=1)


def never() -> bytes:
    raise AssertionError("compiled although the cache has it")


class TestLevels:
    def test_compile_then_memory_then_disk(self, cache, fresh):
        with cache.count_compiles() as n:
            assert cache.get_or_compile(KEY, lambda: b"code") == b"code"
            assert cache.get_or_compile(KEY, never) == b"code"
        assert (n.compiles, n.misses, n.memory_hits, n.stored) == (1, 1, 1, 1)
        other = fresh()
        with other.count_compiles() as n:
            assert other.get_or_compile(KEY, never) == b"code"
            assert other.get_or_compile(KEY, never) == b"code"
        assert (n.compiles, n.misses, n.disk_hits, n.memory_hits) == (0, 0, 1, 1)

    def test_get_and_put(self, cache, fresh):
        assert cache.get(KEY) is None
        assert cache.put(KEY, b"body", op="aten::mm", seconds=1.0)
        assert cache.get(KEY) == b"body"
        assert fresh().get(KEY) == b"body"

    def test_get_by_digest(self, cache, fresh):
        cache.put(KEY, b"body")
        assert cache.get(KEY.digest) == b"body"
        assert fresh().get(KEY.digest) == b"body"
        assert fresh().get("0" * 64) is None

    @pytest.mark.parametrize("bad", ["", "../../etc/passwd", "A" * 64, "0" * 63])
    def test_a_text_that_is_no_digest(self, cache, bad):
        with pytest.raises(ValueError, match="digest"):
            cache.get(bad)

    @pytest.mark.parametrize("body", [b"", b"\0" * 100_000, os.urandom(3_000_000)])
    def test_any_body(self, cache, fresh, body):
        assert cache.put(KEY, body)
        assert fresh().get(KEY) == body

    @pytest.mark.parametrize("body", [None, "text", bytearray(b"x")])
    def test_only_bytes_are_bodies(self, cache, body):
        with pytest.raises(TypeError):
            cache.put(KEY, body)
        with pytest.raises(TypeError, match="bytes"):
            cache.get_or_compile(KEY, lambda: body)
        assert cache.get(KEY) is None

    def test_put_replaces(self, cache, fresh):
        cache.put(KEY, b"one")
        cache.put(KEY, b"two")
        assert cache.get(KEY) == b"two" and fresh().get(KEY) == b"two"

    def test_nothing_is_opened_before_the_first_miss(self, folder):
        cache = Cache()
        assert not folder.exists()
        cache.memory.put(Entry(KEY, b"x"))
        assert cache.get(KEY) == b"x" and not folder.exists()

    def test_a_collision_gives_each_key_its_own_body(self, cache, fresh, monkeypatch):
        monkeypatch.setattr(key, "digest_of", lambda text: "c" * 64)
        a, b = Key("object", n="a"), Key("object", n="b")
        assert cache.get_or_compile(a, lambda: b"A") == b"A"
        with pytest.warns(CacheWarning, match="another key"):
            assert cache.get_or_compile(b, lambda: b"B") == b"B"
        assert cache.get_or_compile(a, lambda: b"A again") == b"A again"
        with pytest.warns(CacheWarning, match="another key"):
            assert fresh().get(b) is None
        assert cache.faults.counts["collision"] >= 1

    def test_the_memory_level_drops_the_least_recently_used(self):
        memory = Memory(limit=2500)
        keys = [Key("k", n=i) for i in range(3)]
        memory.put(Entry(keys[0], b"x" * 1000))
        memory.put(Entry(keys[1], b"x" * 1000))
        memory.get(keys[0])
        memory.put(Entry(keys[2], b"x" * 1000))
        assert [memory.get(k) is not None for k in keys] == [True, False, True]
        assert memory.bytes <= memory.limit and memory.evictions == 1


class TestSettings:
    def test_off(self, folder, monkeypatch):
        monkeypatch.setenv("NEURON_EAGER_CACHE", "0")
        cache = Cache()
        assert cache.get_or_compile(KEY, lambda: b"x") == b"x"
        assert cache.get_or_compile(KEY, never) == b"x"
        assert not folder.exists()

    def test_read_only_reads_and_does_not_write(self, cache, fresh):
        cache.put(KEY, b"x")
        other, new = fresh(), Key("object", n=2)
        with config.override(cache="ro"):
            assert other.get(KEY) == b"x"
            assert other.get_or_compile(new, lambda: b"y") == b"y"
            assert not other.put(new, b"y")
        assert fresh().get(new) is None

    def test_read_only_without_a_cache_makes_none(self, folder, cache):
        with config.override(cache="ro"):
            assert cache.get_or_compile(KEY, lambda: b"x") == b"x"
            assert not folder.exists()
            folder.mkdir(mode=0o700)
            assert cache.get(Key("object", n=3)) is None
            assert list(folder.iterdir()) == []

    def test_the_directory_is_read_at_use(self, cache, tmp_path, monkeypatch):
        cache.put(KEY, b"x")
        cache.forget()
        monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path / "second"))
        assert cache.get(KEY) is None
        cache.put(KEY, b"y")
        cache.forget()
        monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path / "cache"))
        assert cache.get(KEY) == b"x"

    def test_too_large_a_body_stays_in_memory(self, cache, fresh):
        with config.override(cache_size=1 << 20):
            with pytest.warns(CacheWarning, match="quarter"):
                assert not cache.put(KEY, b"x" * (300 << 10))
            assert cache.get(KEY) is not None and fresh().get(KEY) is None

    def test_the_limit_holds_and_evictions_are_counted(self, cache, fresh):
        with config.override(cache_size=1 << 20):
            keys = [Key("object", n=i) for i in range(100)]
            assert all(cache.put(k, os.urandom(40_000)) for k in keys)
            entries, size = cache.disk.attempt(lambda db: db.usage(), (0, 0))
            assert size <= 1 << 20
            assert cache.counts.evictions == 100 - entries > 0
            other = fresh()
            found = [other.get(k) is not None for k in keys]
            assert found[-1] and not found[0] and sum(found) == entries

    def test_a_path_with_a_dollar_sign(self, tmp_path, monkeypatch):
        monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path / "$HOME"))
        cache = Cache()
        with pytest.warns(CacheWarning, match="variable"):
            assert cache.get_or_compile(KEY, lambda: b"x") == b"x"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["$HOME"]


class TestFailures:
    def test_a_failure_is_remembered_in_the_process(self, cache, fresh):
        calls = []

        def compile() -> bytes:
            calls.append(1)
            raise ValueError("no such instruction")
        with pytest.raises(ValueError, match="no such instruction") as first:
            cache.get_or_compile(KEY, compile, op="aten::mm")
        with pytest.raises(ValueError, match="no such instruction") as second:
            cache.get_or_compile(KEY, compile)
        assert calls == [1] and first.value is not second.value
        assert any("not tried again" in note for note in second.value.__notes__)
        assert not getattr(first.value, "__notes__", None)
        assert fresh().get_or_compile(KEY, lambda: b"in another process") == b"in another process"
        cache.forget()
        assert cache.get_or_compile(KEY, lambda: b"fixed") == b"in another process"

    def test_a_remembered_failure_keeps_no_frame_alive(self, cache):
        class Big:
            pass
        seen = []

        def compile() -> bytes:
            big = Big()
            seen.append(weakref.ref(big))
            raise ValueError("failed")
        for _ in range(2):
            with pytest.raises(ValueError):
                cache.get_or_compile(KEY, compile)
        gc.collect()
        assert seen[0]() is None

    @pytest.mark.parametrize("error", [MemoryError(), OSError("disk"), KeyboardInterrupt(), SystemExit()])
    def test_what_says_nothing_about_the_key_is_not_remembered(self, cache, error):
        def compile() -> bytes:
            raise error
        with pytest.raises(type(error)):
            cache.get_or_compile(KEY, compile)
        assert cache.get_or_compile(KEY, lambda: b"second try") == b"second try"

    def test_an_error_that_cannot_be_copied_is_itself_raised_again(self, cache):
        class Odd(Exception):
            def __init__(self, a, b):
                super().__init__(f"{a}{b}")

        def compile() -> bytes:
            raise Odd(1, 2)
        for _ in range(2):
            with pytest.raises(Odd, match="12"):
                cache.get_or_compile(KEY, compile)

    def test_no_lock_stays_behind(self, cache, folder):
        with pytest.raises(ValueError):
            cache.get_or_compile(KEY, lambda: int("x"))
        assert list((folder / "locks").iterdir()) == []


def in_threads(count: int, work) -> list:
    """The results, or exceptions, of `work(i)` in `count` threads that start together."""
    barrier, results = threading.Barrier(count), [None] * count

    def run(i: int) -> None:
        barrier.wait()
        try:
            results[i] = work(i)
        except BaseException as error:
            results[i] = error
    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(t.is_alive() for t in threads)
    return results


class TestThreads:
    def test_one_compile_for_all_threads(self, cache):
        calls = []

        def compile() -> bytes:
            calls.append(1)
            time.sleep(0.05)
            return b"x"
        assert in_threads(16, lambda i: cache.get_or_compile(KEY, compile)) == [b"x"] * 16
        assert len(calls) == 1 and cache.counts.compiles == 1

    def test_many_keys(self, cache, fresh):
        def work(i: int) -> list[bytes]:
            return [cache.get_or_compile(Key("object", n=n), lambda n=n: b"%d" % n) for n in range(20)]
        assert in_threads(8, work) == [[b"%d" % n for n in range(20)]] * 8
        assert cache.counts.compiles == 20
        assert [fresh().get(Key("object", n=n)) for n in range(20)] == [b"%d" % n for n in range(20)]

    def test_the_error_reaches_all_waiters(self, cache):
        calls = []

        def compile() -> bytes:
            calls.append(1)
            time.sleep(0.5)                             # time for all threads to wait, on a busy machine too
            raise ValueError("bad kernel")
        results = in_threads(8, lambda i: cache.get_or_compile(KEY, compile))
        assert [str(r) for r in results] == ["bad kernel"] * 8 and len(calls) == 1
        assert len({id(r) for r in results}) == 8

    def test_after_an_interrupt_a_waiter_takes_over(self, cache):
        entered = threading.Event()
        calls = []

        def compile() -> bytes:
            calls.append(1)
            if len(calls) == 1:
                entered.set()
                time.sleep(0.05)
                raise KeyboardInterrupt
            return b"x"
        results = []

        def first() -> None:
            with pytest.raises(KeyboardInterrupt):
                cache.get_or_compile(KEY, compile)
        thread = threading.Thread(target=first)
        thread.start()
        entered.wait(10)
        results.append(cache.get_or_compile(KEY, compile))
        thread.join(10)
        assert results == [b"x"] and len(calls) == 2

    def test_a_waiter_does_not_wait_for_ever(self, cache):
        entered, leave = threading.Event(), threading.Event()

        def slow() -> bytes:
            entered.set()
            leave.wait(30)
            return b"slow"
        thread = threading.Thread(target=cache.get_or_compile, args=(KEY, slow))
        thread.start()
        entered.wait(10)
        with config.override(cache_lock_timeout=0):
            assert cache.get_or_compile(KEY, lambda: b"private") == b"private"
        leave.set()
        thread.join(10)
        assert "another thread" in cache.log.records[0].reason and not cache.log.records[0].stored

    def test_a_compile_may_ask_for_other_keys_and_even_for_itself(self, cache):
        def outer() -> bytes:
            inner = cache.get_or_compile(Key("library", n=1), lambda: b"library")
            again = cache.get_or_compile(KEY, lambda: b"nested")
            return inner + b"+" + again
        assert cache.get_or_compile(KEY, outer) == b"library+nested"


class TestFork:
    def in_child(self, work) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if work() else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0

    def test_a_child_reads_and_writes_and_so_does_the_parent(self, cache, fresh):
        cache.put(KEY, b"parent")
        cache.forget()

        def work() -> bool:
            return (cache.get(KEY) == b"parent" and cache.put(Key("object", n=2), b"child")
                    and cache.get_or_compile(Key("object", n=3), lambda: b"compiled") == b"compiled")
        self.in_child(work)
        assert cache.get(Key("object", n=2)) == b"child" and cache.get(Key("object", n=3)) == b"compiled"
        assert cache.put(Key("object", n=4), b"after") and fresh().get(Key("object", n=4)) == b"after"
        assert cache.faults.counts == {}

    def test_a_fork_inside_a_compile_leaves_the_lock_to_the_parent(self, cache, folder):
        def compile() -> bytes:
            self.in_child(lambda: cache.get_or_compile(Key("object", n="child"), lambda: b"c") == b"c")
            assert len(list((folder / "locks").iterdir())) == 1
            return b"x"
        assert cache.get_or_compile(KEY, compile) == b"x"
        assert list((folder / "locks").iterdir()) == []

    def test_a_fork_while_threads_compile(self, cache):
        stop = threading.Event()

        def busy() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                cache.get_or_compile(Key("object", thread=n), lambda: b"y" * 1000)
        threads = [threading.Thread(target=busy) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for i in range(10):
                self.in_child(lambda i=i: cache.get_or_compile(Key("object", fork=i), lambda: b"z") == b"z")
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
        assert cache.faults.counts == {}


class TestCount:
    def test_is_live_inside_and_frozen_after(self, cache):
        with cache.count_compiles() as n:
            assert n.compiles == 0
            cache.get_or_compile(KEY, lambda: b"x", op="aten::add")
            assert n.compiles == 1 and [r.op for r in n.records] == ["aten::add"]
        cache.get_or_compile(Key("object", n=2), lambda: b"x")
        assert n.compiles == 1 and len(n.records) == 1
        with pytest.raises(AttributeError):
            n.no_such_counter
