"""Keys: what makes them equal, what makes them differ, and how a difference is told."""
from __future__ import annotations

import enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_eager.errors import CacheKeyError
from neuron_eager.opcache import Key, source_digest
from neuron_eager.opcache.key import differences, nearest

parts = st.dictionaries(
    st.text(min_size=1),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                 lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
                 max_leaves=6),
    max_size=4)


def canonical(value: object) -> object:
    """Equality that keeps 1, 1.0 and True apart."""
    if isinstance(value, dict):
        return {k: canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(v) for v in value]
    return type(value).__name__, repr(value)


@settings(max_examples=50, deadline=None)
@given(parts, parts)
def test_equal_digest_means_equal_parts(a, b):
    assert (Key("k", **a).digest == Key("k", **b).digest) == (canonical(a) == canonical(b))


@settings(max_examples=50, deadline=None)
@given(parts)
def test_a_key_is_recovered_from_its_text(a):
    key = Key("kind", **a)
    again = Key.from_text(key.text)
    assert again == key and again.digest == key.digest and hash(again) == hash(key)


def test_order_of_parts_does_not_matter():
    assert Key("k", a=1, b={"x": 1, "y": 2}) == Key("k", b={"y": 2, "x": 1}, a=1)


@pytest.mark.parametrize("a, b", [
    (1, 1.0), (1, True), (0.0, -0.0), ("1", 1), (None, "None"), ([1, 2], [[1], 2]), ("é", "e")])
def test_values_that_look_alike_differ(a, b):
    assert Key("k", part=a).digest != Key("k", part=b).digest


def test_kind_is_part_of_the_key():
    assert Key("object", a=1).digest != Key("memo", a=1).digest


def test_tuple_equals_list_and_str_subclasses_are_str():
    class Name(str):
        pass
    assert Key("k", s=(1, (2, 3))) == Key("k", s=[1, [2, 3]])
    assert Key("k", s=Name("bfloat16")) == Key("k", s="bfloat16")


@pytest.mark.parametrize("value", [b"x", {1, 2}, object(), {1: 2}, [{"a": {3: 4}}], enum.Enum("E", "a").a, 1j])
def test_a_part_without_canonical_text_is_refused_by_name(value):
    with pytest.raises(CacheKeyError, match="'shape"):
        Key("k", shape=value).digest


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": 1, "parts": {}}', '{"kind": "k", "parts": []}', "nonsense"])
def test_text_that_describes_no_key(text):
    with pytest.raises(ValueError):
        Key.from_text(text)


class TestDifferences:
    def told(self, wanted: Key, stored: Key) -> list[str]:
        return [str(d) for d in differences(wanted, stored)]

    def test_value(self):
        assert self.told(Key("k", cpu="znver4", n=1), Key("k", cpu="znver3", n=1)) == ["cpu: 'znver3' → 'znver4'"]

    def test_added_and_absent_part(self):
        assert self.told(Key("k", a=1), Key("k", b=2)) == ["a: 1 is an additional part", "b: 2 is absent"]

    def test_item_of_a_nested_part(self):
        a = Key("k", specs=[{"shape": [2, 3], "dtype": "f32"}, {"shape": [4], "dtype": "f32"}])
        b = Key("k", specs=[{"shape": [2, 3], "dtype": "f32"}, {"shape": [5], "dtype": "f32"}])
        assert self.told(a, b) == ["specs[1].shape[0]: 5 → 4"]

    def test_line_of_a_text(self):
        assert self.told(Key("k", code="a\nb\nc"), Key("k", code="a\nB\nc")) == ["code line 2: 'B' → 'b'"]
        assert self.told(Key("k", code="a\nb"), Key("k", code="a")) == ["code line 2: '(end)' → 'b'"]

    def test_long_values_are_shortened(self):
        assert all(len(t) < 200 for t in self.told(Key("k", code="x" * 1000), Key("k", code="y" * 1000)))

    def test_nearest_has_the_fewest_differences_and_the_same_kind(self):
        wanted = Key("object", a=1, b=2, c=3)
        near, far = Key("object", a=1, b=2, c=4), Key("object", a=1, b=0, c=0)
        found = nearest(wanted, [far, near, Key("memo", a=1, b=2, c=3), wanted])
        assert found is not None and found[0] is near and [d.part for d in found[1]] == ["c"]
        assert nearest(wanted, [Key("memo", a=1)]) is None


class TestSourceDigest:
    def package(self, tmp_path, monkeypatch, name: str, body: bytes) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").write_bytes(b"")
        (tmp_path / name / "part.py").write_bytes(body)
        monkeypatch.syspath_prepend(tmp_path)
        source_digest.cache_clear()

    def test_follows_the_source_and_nothing_else(self, tmp_path, monkeypatch):
        self.package(tmp_path, monkeypatch, "sourced", b"x = 1\n")
        first = source_digest("sourced")
        (tmp_path / "sourced" / "notes.txt").write_text("not a source")
        self.package(tmp_path, monkeypatch, "sourced", b"x = 1\r\n")
        assert source_digest("sourced") == first
        self.package(tmp_path, monkeypatch, "sourced", b"x = 2\n")
        assert source_digest("sourced") != first

    def test_names_of_files_count(self, tmp_path, monkeypatch):
        self.package(tmp_path, monkeypatch, "renamed", b"x = 1\n")
        first = source_digest("renamed")
        (tmp_path / "renamed" / "part.py").rename(tmp_path / "renamed" / "other.py")
        source_digest.cache_clear()
        assert source_digest("renamed") != first

    def test_a_module_without_source(self):
        with pytest.raises(ModuleNotFoundError):
            source_digest("no_such_module_at_all")
        with pytest.raises(ModuleNotFoundError):
            source_digest("sys")
