"""Settings assigned in code are checked as those of the environment are."""
from __future__ import annotations

from pathlib import Path

import pytest

from neuron_eager import config
from neuron_eager.errors import SettingError


@pytest.mark.parametrize(("name", "value", "read"), [
    ("force_cpu", "aten.mm, aten.add", {"aten.mm", "aten.add"}),
    ("force_cpu", ["aten.mm"], {"aten.mm"}),
    ("force_cpu", frozenset(), set()),
    ("checks", False, False), ("checks", "1", True),
    ("cache", "0", "0"), ("cache", False, "0"),
    ("cache_size", 1 << 30, 1 << 30), ("cache_size", "1GiB", 1 << 30),
    ("cache_dir", Path("a/b"), Path("a/b")), ("cache_dir", "a/b", Path("a/b")), ("cache_dir", None, None),
    ("cache_lock_timeout", 5, 5),
])
def test_what_is_taken(name, value, read):
    with config.override(**{name: value}):
        assert getattr(config, name) == read


@pytest.mark.parametrize(("name", "value"), [
    ("fallback", "maybe"), ("fallback", True), ("fallback", None), ("checks", "yes"), ("checks", 2),
    ("cache_lock_timeout", -1), ("device_count", 65), ("cache_size", -5), ("cache_size", "lots"),
])
def test_what_is_refused(name, value):
    before = getattr(config, name)
    with pytest.raises(SettingError, match="allowed: "), config.override(**{name: value}):
        pass
    assert getattr(config, name) == before


def test_a_misspelt_name():
    with pytest.raises(AttributeError, match="did you mean fallback"):
        config.fallbak = "error"


def test_repr_names_values_and_origins():
    with config.override(fallback="silent"):
        assert "fallback             silent       (code)" in repr(config)
