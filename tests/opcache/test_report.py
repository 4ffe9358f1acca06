"""Reports: what was compiled and why, and the state of the cache, as text, HTML and JSON."""
from __future__ import annotations

import json

import pytest

from neuron_eager import config
from neuron_eager.errors import CacheWarning
from neuron_eager.opcache import Key, admin, report


def key(**parts: object) -> Key:
    return Key("object", **{"skeleton": "load\nmul\nstore", "cpu": "znver4", "llvm": "20.1.8", **parts})


def compiled(cache, wanted: Key, op: str = "aten::mul.Tensor") -> None:
    cache.get_or_compile(wanted, lambda: b"code", op=op)


def last(cache) -> report.CompileRecord:
    return admin.compile_report(cache)[-1]


class TestWhy:
    def test_the_first_of_its_kind(self, cache):
        compiled(cache, key())
        assert last(cache).why == "no entry; the first of kind 'object'"

    def test_a_part_that_differs_from_an_entry_in_memory(self, cache):
        compiled(cache, key())
        compiled(cache, key(llvm="21.0.0"))
        assert [d.part for d in last(cache).differs] == ["llvm"]
        assert last(cache).why == "no entry; the nearest entry differs in llvm: '20.1.8' → '21.0.0'"

    def test_a_part_that_differs_from_an_entry_on_disk(self, cache, fresh):
        compiled(cache, key(cpu="znver3"), op="aten::add.Tensor")
        other = fresh()
        compiled(other, key())
        assert last(other).nearest == "aten::add.Tensor"
        assert "the nearest entry of aten::add.Tensor differs in cpu: 'znver3' → 'znver4'" in last(other).why

    def test_a_line_of_a_long_text(self, cache):
        compiled(cache, key(skeleton="\n".join(map(str, range(1000)))))
        compiled(cache, key(skeleton="\n".join(map(str, [*range(500), "x", *range(501, 1000)]))))
        assert "skeleton line 501: '500' → 'x'" in last(cache).why

    def test_only_older_entries_are_compared(self, cache):
        compiled(cache, key(n=1))
        compiled(cache, key(n=2))
        assert admin.compile_report(cache)[0].nearest is None

    def test_a_damaged_entry(self, cache, fresh, monkeypatch):
        compiled(cache, key())
        monkeypatch.setattr("neuron_eager.opcache.database.Database.get", lambda *_: b"damaged")
        other = fresh()
        with pytest.warns(CacheWarning):
            compiled(other, key())
        assert last(other).why.startswith("unusable entry: 7 bytes")

    def test_the_cache_is_off(self, cache):
        with config.override(cache="0"):
            compiled(cache, key())
            compiled(cache, key(cpu="x"))
            assert "the disk is not used (off); the nearest entry differs in cpu" in last(cache).why

    def test_a_failure(self, cache):
        with pytest.raises(ValueError):
            cache.get_or_compile(key(), lambda: int("x"), op="aten::mm")
        record = last(cache)
        assert record.error is not None and "ValueError" in record.error and not record.stored
        assert "failed" in repr(admin.compile_report(cache))


class TestCompileReport:
    def test_nothing(self, cache):
        empty = admin.compile_report(cache)
        assert len(empty) == 0 and repr(empty) == "nothing was compiled"

    def test_forms(self, cache):
        compiled(cache, key(), op="aten::<mul>")
        compiled(cache, key(cpu="x"))
        filled = admin.compile_report(cache)
        assert repr(filled).splitlines()[0].startswith("2 compiles in ")
        assert "aten::mul.Tensor" in repr(filled) and "cpu: 'znver4' → 'x'" in repr(filled)
        assert "aten::&lt;mul&gt;" in filled._repr_html_() and "<table>" in filled._repr_html_()
        content = json.loads(filled.to_json())
        assert content["records"][1]["differs"] == [{"part": "cpu", "wanted": "'x'", "stored": "'znver4'"}]
        assert content["records"][0]["op"] == "aten::<mul>" and content["dropped"] == 0

    def test_the_oldest_records_go_first(self, cache, monkeypatch):
        monkeypatch.setattr(cache, "log", report.Log())
        cache.log.records = type(cache.log.records)(maxlen=3)
        for n in range(5):
            compiled(cache, key(n=n))
        told = admin.compile_report(cache)
        assert len(told) == 3 and told.dropped == 2 and "2 earlier ones" in repr(told)


class TestCacheInfo:
    def test_fields(self, cache, folder):
        compiled(cache, key())
        compiled(cache, key())
        info = admin.cache_info(cache)
        assert (info.compiles, info.misses, info.memory_hits, info.stored, info.entries) == (1, 1, 1, 1, 1)
        assert info.hits == 1 and info.bytes > 0 and info.limit == config.cache_size
        assert info.place == str(folder) and info.state == "read and write" and info.errors == {}

    def test_forms(self, cache):
        info = admin.cache_info(cache)
        assert "read and write" in repr(info) and "2.0 GiB" in repr(info)
        assert "<table>" in info._repr_html_()
        assert json.loads(info.to_json())["entries"] == 0

    def test_off(self, cache):
        with config.override(cache="0"):
            assert admin.cache_info(cache).state == "off"

    def test_errors_by_kind(self, cache, monkeypatch):
        def fail(*_):
            raise OSError(5, "I/O error")
        monkeypatch.setattr("neuron_eager.opcache.database.Database.set", fail)
        with pytest.warns(CacheWarning):
            compiled(cache, key())
        info = admin.cache_info(cache)
        assert info.errors == {"io": 1} and "io: 1" in repr(info)


class TestPurge:
    def test_all(self, cache, fresh):
        for n in range(250):
            cache.put(key(n=n), b"x")
        assert admin.purge(cache) == 250 and fresh().get(key(n=1)) is None and cache.get(key(n=1)) is None

    def test_by_op_and_kind(self, cache, fresh):
        cache.put(Key("object", n=1), b"x", op="aten::mm")
        cache.put(Key("memo", n=1), b"x", op="aten::mm")
        cache.put(Key("object", n=2), b"x", op="aten::add")
        assert admin.purge(cache, op="aten::add") == 1
        assert admin.purge(cache, op="aten::mm", kind="memo") == 1
        assert fresh().get(Key("object", n=1)) == b"x"
        assert admin.purge(cache, kind="object") == 1

    def test_a_failed_compile_is_forgotten(self, cache):
        with pytest.raises(ValueError):
            cache.get_or_compile(key(), lambda: int("x"))
        admin.purge(cache)
        compiled(cache, key())
