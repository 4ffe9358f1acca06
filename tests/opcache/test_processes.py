"""Many processes on one cache: one compile for each key, and no death of a process that hurts the others.

`NEURON_EAGER_KILL_ROUNDS` sets how many rounds the kill test has (20 by default).
"""
from __future__ import annotations

import json
import logging
import os
import random
import signal
import time

import pytest

from neuron_eager import config
from neuron_eager.errors import CacheWarning
from neuron_eager.opcache import Key, admin, lock

KEY = Key("object", n=0)
KILL_ROUNDS = int(os.environ.get("NEURON_EAGER_KILL_ROUNDS", "20"))

HOLDER = """
    def compile():
        print("compiling", flush=True)
        sys.stdin.readline()
        return b"held"
    print(opcache.get_or_compile(Key("object", n=0), compile, op="aten::held"), flush=True)
"""


def await_line(process, text: str) -> None:
    assert process.stdout.readline().strip() == text


def test_32_processes_on_one_cold_key(processes, folder):
    out = processes.run("""
        def compile():
            time.sleep(0.3)
            return b"from %d" % os.getpid()
        gate, opened = os.pipe()
        children = []
        for _ in range(32):
            children.append(os.fork())
            if children[-1] == 0:
                os.close(opened)
                os.read(gate, 1)                        # all start when the parent closes its end
                with opcache.count_compiles() as n:
                    body = opcache.get_or_compile(Key("object", n=0), compile)
                line = f"{body.decode()} / {n.compiles} / {opcache.cache_info().errors}\\n"
                os.write(1, line.encode())
                os._exit(0)
        os.close(opened)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 32
    """)
    results = [line.split(" / ") for line in out.splitlines()]
    assert len(results) == 32
    assert len({body for body, _, _ in results}) == 1
    assert sum(int(n) for _, n, _ in results) == 1
    assert {errors for _, _, errors in results} == {"{}"}
    assert list((folder / "locks").iterdir()) == []


def test_processes_share_the_work_on_many_keys(processes, folder):
    code = """
        import random
        numbers = list(range(40))
        random.Random(os.getpid()).shuffle(numbers)
        with opcache.count_compiles() as n:
            for i in numbers:
                assert opcache.get_or_compile(Key("object", n=i), lambda: b"%d" % i * 500) == b"%d" % i * 500
        print(n.compiles, opcache.cache_info().errors)
    """
    results = [processes.finish(p).split(maxsplit=1) for p in [processes.start(code) for _ in range(8)]]
    assert sum(int(n) for n, _ in results) == 40
    assert {errors.strip() for _, errors in results} == {"{}"}
    assert list((folder / "locks").iterdir()) == []


class TestHolder:
    def test_it_dies_and_the_next_one_compiles(self, processes, cache):
        holder = processes.start(HOLDER)
        await_line(holder, "compiling")
        holder.kill()
        assert cache.get_or_compile(KEY, lambda: b"mine") == b"mine"
        assert cache.counts.stored == 1

    def test_its_result_is_taken_over(self, processes, cache):
        holder = processes.start(HOLDER)
        await_line(holder, "compiling")
        waiter = processes.start("""
            print("waiting", flush=True)
            with opcache.count_compiles() as n:
                print(opcache.get_or_compile(Key("object", n=0), lambda: b"never"), n.compiles)
        """)
        await_line(waiter, "waiting")
        time.sleep(0.2)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert processes.finish(waiter).strip() == "b'held' 0"

    def test_it_is_stopped(self, processes, cache, monkeypatch):
        monkeypatch.setattr(lock, "TELL_AFTER", 0.2)
        holder = processes.start(HOLDER)
        await_line(holder, "compiling")
        holder.send_signal(signal.SIGSTOP)
        with pytest.warns(CacheWarning, match=f"process {holder.pid} on .* is stopped.*without storing"):
            assert cache.get_or_compile(KEY, lambda: b"private") == b"private"
        assert cache.counts.stored == 0 and not cache.log.records[0].stored
        holder.send_signal(signal.SIGCONT)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline().strip() == "b'held'"
        assert cache.get(KEY) == b"private"             # this process goes on with what it has
        cache.forget()
        assert cache.get(KEY) == b"held"

    def test_it_takes_too_long(self, processes, cache, monkeypatch, caplog):
        monkeypatch.setattr(lock, "TELL_AFTER", 0.2)
        monkeypatch.setattr(lock, "_is_stopped", lambda holder: False)       # as on another machine
        holder = processes.start(HOLDER)
        await_line(holder, "compiling")
        with (config.override(cache_lock_timeout=1), caplog.at_level(logging.WARNING),
              pytest.warns(CacheWarning, match=f"process {holder.pid} .* more than 1 s.*without storing")):
            assert cache.get_or_compile(KEY, lambda: b"private") == b"private"
        (record,) = caplog.records
        assert f"process {holder.pid} on " in record.message and "aten::held" in record.message
        assert str(cache.disk.root / "locks") in record.message

    def test_no_wait_at_all(self, processes, cache):
        holder = processes.start(HOLDER)
        await_line(holder, "compiling")
        with config.override(cache_lock_timeout=0), pytest.warns(CacheWarning, match="without storing"):
            assert cache.get_or_compile(KEY, lambda: b"private") == b"private"

    def test_a_nameless_lock_file(self, cache, folder):
        cache.put(Key("object", n="other"), b"makes the folders")
        (folder / "locks" / f"{KEY.digest}.lock").write_bytes(b"\xff not json")
        assert cache.get_or_compile(KEY, lambda: b"x") == b"x"
        assert cache.log.records[0].stored

    def test_stale_lock_files_are_found_by_check(self, processes, cache, folder):
        holder = processes.start(HOLDER)
        await_line(holder, "compiling")
        assert admin.check(cache) == []                 # held: not stale
        holder.kill()
        holder.wait()
        assert len(list((folder / "locks").iterdir())) == 1
        assert admin.check(cache) == ["1 lock files of processes that died (removed)"]
        assert list((folder / "locks").iterdir()) == []


def test_kill_at_any_moment_of_a_store(processes, fresh, folder):
    """Processes that store without end are killed; what they said was stored is there and whole, and nobody hangs."""
    code = """
        import itertools, random
        for i in itertools.count():
            name = f"{sys.argv[1]}.{i}"
            body = name.encode() * random.Random(name).choice([1, 100, 10_000])
            assert opcache.get_or_compile(Key("object", n=name), lambda: body) == body
            if opcache.cache().log.records[-1].stored:
                os.write(1, f"{name} {len(body)}\\n".encode())
            shared = Key("object", n=i % 3)
            assert opcache.get_or_compile(shared, lambda: b"shared") == b"shared"
    """
    random.seed(0)
    stored: dict[str, int] = {}
    for round_ in range(KILL_ROUNDS):
        victims = [processes.start(code, f"{round_}.{i}") for i in range(2)]
        output = "".join(victim.stdout.readline() for victim in victims)     # both work
        time.sleep(random.random() * 0.05)
        for victim in victims:
            victim.kill()
        for victim in victims:
            rest, errors = victim.communicate(timeout=30)
            assert errors == ""
            output += rest
        assert output.endswith("\n")
        stored.update((name, int(size)) for name, size in map(str.split, output.splitlines()))
        survivor = fresh()
        assert survivor.get_or_compile(Key("object", n=f"after {round_}"), lambda: b"x") == b"x"
        assert survivor.faults.counts == {}
        survivor.close()
    reader = fresh()
    for name, size in stored.items():
        body = reader.get(Key("object", n=name))
        assert body == name.encode() * (size // len(name))
    assert len(stored) >= KILL_ROUNDS
    assert all("lock files" in line for line in admin.check(reader))


def test_a_child_that_is_forked_by_multiprocessing(processes):
    out = processes.run("""
        import json, multiprocessing
        opcache.put(Key("object", n=0), b"parent")
        def work(i):
            assert opcache.get(Key("object", n=0)) == b"parent"
            opcache.get_or_compile(Key("object", n=i % 4 + 1), lambda: b"child")
            return opcache.cache_info().errors
        with multiprocessing.get_context("fork").Pool(4) as pool:
            print(json.dumps(pool.map(work, range(40))))
        assert [opcache.get(Key("object", n=n)) for n in range(1, 5)] == [b"child"] * 4
    """)
    assert json.loads(out) == [{}] * 40
