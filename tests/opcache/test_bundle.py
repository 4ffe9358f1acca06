"""Bundles: entries in one file, verified before anything is stored, or used in place."""
from __future__ import annotations

import hashlib
import json
import os
import zipfile

import pytest

from neuron_eager import config
from neuron_eager.errors import BundleError, CacheWarning
from neuron_eager.opcache import Cache, Key, admin
from neuron_eager.opcache.bundle import Bundle

KEYS = [Key("object" if n % 2 else "memo", n=n) for n in range(6)]


def body(key: Key) -> bytes:
    return f"code for {key.parts['n']}".encode() * 100


@pytest.fixture
def bundle(cache, tmp_path):
    """A bundle with KEYS."""
    for key in KEYS:
        cache.put(key, body(key), op=f"aten::op{key.parts['n']}")
    path = tmp_path / "kernels.bundle"
    admin.export_bundle(cache, path)
    return path


@pytest.fixture
def elsewhere(tmp_path, monkeypatch, bundle):
    """A cache on another machine."""
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path / "elsewhere"))
    cache = Cache()
    yield cache
    cache.close()


def never() -> bytes:
    raise AssertionError("compiled although the bundle has it")


def test_export_and_import(bundle, elsewhere):
    summary = admin.import_bundle(elsewhere, bundle)
    assert summary.entries == 6 and summary.kinds == {"object": 3, "memo": 3} and summary.skipped == 0
    assert "3 memo, 3 object" in repr(summary)
    elsewhere.forget()
    with elsewhere.count_compiles() as n:
        for key in KEYS:
            assert elsewhere.get_or_compile(key, never) == body(key)
    assert n.disk_hits == 6
    again = admin.import_bundle(elsewhere, bundle)
    assert again.entries == 0 and again.skipped == 6


def test_the_same_entries_give_the_same_bytes(bundle, fresh, tmp_path):
    other = tmp_path / "again"
    admin.export_bundle(fresh(), other)
    assert other.read_bytes() == bundle.read_bytes()


def test_a_selection(bundle, fresh, tmp_path):
    assert admin.export_bundle(fresh(), tmp_path / "a", kinds=["memo"]).kinds == {"memo": 3}
    assert admin.export_bundle(fresh(), tmp_path / "b", ops=["aten::op1", "aten::op2"]).entries == 2
    assert admin.export_bundle(fresh(), tmp_path / "c", kinds=["nothing"]).entries == 0
    with Bundle(tmp_path / "c") as empty:
        assert len(empty) == 0


def test_what_is_only_in_memory_is_exported_too(folder, tmp_path):
    with config.override(cache="0"):
        cache = Cache()
        cache.get_or_compile(KEYS[0], lambda: body(KEYS[0]))
        assert admin.export_bundle(cache, tmp_path / "bundle").entries == 1


def test_it_can_be_listed_with_ordinary_tools(bundle):
    with zipfile.ZipFile(bundle) as archive:
        assert sorted(archive.namelist()) == sorted(["manifest.json", *(f"entries/{k.digest}" for k in KEYS)])
        assert archive.testzip() is None


def test_in_place(bundle, elsewhere):
    with config.override(cache_bundle=bundle), elsewhere.count_compiles() as n:
        for key in KEYS:
            assert elsewhere.get_or_compile(key, never) == body(key)
        assert elsewhere.get(Key("object", n="absent")) is None
        assert n.bundle_hits == 6 and n.misses == 1
        assert admin.cache_info(elsewhere).bundle == str(bundle)
    elsewhere.forget()
    assert elsewhere.get(KEYS[0]) is None


def test_in_place_in_forked_children(bundle, elsewhere):
    with config.override(cache_bundle=bundle):
        assert elsewhere.get(KEYS[0]) == body(KEYS[0])
        children = []
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if all(elsewhere.get(k) == body(k) for k in KEYS * 50) else 1)
            children.append(pid)
        assert all(elsewhere.get(k) == body(k) for k in KEYS)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4


def test_every_damaged_byte_is_harmless(bundle, elsewhere, tmp_path):
    """Refused as a whole, or all that is read is right: never wrong code."""
    whole = bundle.read_bytes()
    bad = tmp_path / "bad"
    for position in range(0, len(whole), 31):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        bad.write_bytes(damaged)
        try:
            with Bundle(bad) as opened:
                for digest in opened.digests():
                    entry = opened.entry(digest)
                    assert entry is not None and entry.body == body(entry.key) and entry.key in KEYS
        except BundleError:
            pass


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, b"PK\x05\x06" + bytes(18)])
def test_a_file_that_is_no_bundle(elsewhere, tmp_path, content):
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(BundleError, match="bad"):
        admin.import_bundle(elsewhere, path)
    with config.override(cache_bundle=path), pytest.warns(CacheWarning, match="ignored") as caught:
        for key in KEYS:
            assert elsewhere.get_or_compile(key, lambda key=key: body(key)) == body(key)
    assert len(caught) == 1


def test_a_truncated_bundle_imports_nothing(bundle, elsewhere):
    whole = bundle.read_bytes()
    for length in range(0, len(whole), 97):
        bundle.write_bytes(whole[:length])
        with pytest.raises(BundleError):
            admin.import_bundle(elsewhere, bundle)
    assert admin.cache_info(elsewhere).entries == 0


def test_one_damaged_entry_imports_nothing(bundle, elsewhere):
    data = bytearray(bundle.read_bytes())
    position = bytes(data).find(b"code for 5")
    data[position] ^= 1
    bundle.write_bytes(data)
    with pytest.raises(BundleError, match="damaged entry"):
        admin.import_bundle(elsewhere, bundle)
    assert admin.cache_info(elsewhere).entries == 0


def handmade(path, name: str, data: bytes, compression: int) -> None:
    about = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "kind": "k", "op": ""}
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"entries/{name}", data)
        archive.writestr("manifest.json", json.dumps({"format": 1, "entries": {name: about}}))


@pytest.mark.parametrize("name", ["../../evil", "entries/../../evil", "a" * 64])
def test_hostile_names(elsewhere, tmp_path, name):
    path = tmp_path / "bad"
    handmade(path, name, b"x", zipfile.ZIP_STORED)
    with pytest.raises(BundleError):
        admin.import_bundle(elsewhere, path)


def test_a_compressed_member_is_refused(elsewhere, tmp_path):
    path = tmp_path / "bomb"
    handmade(path, "a" * 64, bytes(1_000_000), zipfile.ZIP_DEFLATED)
    with pytest.raises(BundleError, match="another size"):
        admin.import_bundle(elsewhere, path)


def test_a_later_format(elsewhere, tmp_path):
    path = tmp_path / "later"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", '{"format": 2, "entries": {}}')
    with pytest.raises(BundleError, match="format 2"):
        admin.import_bundle(elsewhere, path)


def test_a_bundle_that_everyone_can_write(bundle, elsewhere):
    bundle.chmod(0o666)
    with pytest.raises(BundleError, match="written by everyone"):
        admin.import_bundle(elsewhere, bundle)


def test_no_place_to_import_to(bundle, elsewhere):
    with config.override(cache="0"), pytest.raises(BundleError, match="no place"):
        admin.import_bundle(elsewhere, bundle)


def test_a_failed_export_leaves_nothing(cache, tmp_path, monkeypatch):
    cache.put(KEYS[0], body(KEYS[0]))
    target = tmp_path / "out" / "bundle"
    target.parent.mkdir()

    def fail(*_):
        raise OSError("disk full")
    monkeypatch.setattr("neuron_eager.opcache.bundle.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        admin.export_bundle(cache, target)
    assert list(target.parent.iterdir()) == []
