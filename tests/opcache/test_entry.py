"""Entries: whatever is not exactly what was written is refused."""
from __future__ import annotations

import hashlib
import struct

import pytest

from neuron_eager.opcache import Key, key
from neuron_eager.opcache.entry import FORMAT, Entry, Unusable, decode

KEY = Key("object", skeleton="load\nadd\nstore", cpu="znver4")
ENTRY = Entry(KEY, b"\x7fELF" + bytes(range(256)), op="aten::add.Tensor", seconds=0.25, created=1e9)
DATA = ENTRY.encode()


def test_round_trip():
    again = decode(DATA, KEY)
    assert again == ENTRY and again.op == "aten::add.Tensor" and again.seconds == 0.25 and again.created == 1e9
    assert decode(DATA, KEY.digest) == ENTRY


def test_empty_body():
    assert decode(Entry(KEY, b"").encode(), KEY).body == b""


def test_every_truncation_is_refused():
    for length in range(len(DATA)):
        with pytest.raises(Unusable) as error:
            decode(DATA[:length], KEY)
        assert error.value.kind == "corrupt"


def test_every_flipped_bit_is_refused():
    for position in range(len(DATA)):
        damaged = bytearray(DATA)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(Unusable):
            decode(bytes(damaged), KEY)


def test_appended_bytes_are_refused():
    with pytest.raises(Unusable):
        decode(DATA + b"\0", KEY)


def test_another_format_is_refused_as_foreign():
    foreign = bytearray(DATA)
    struct.pack_into("<I", foreign, 8, FORMAT + 1)
    with pytest.raises(Unusable, match="format") as error:
        decode(bytes(foreign), KEY)
    assert error.value.kind == "foreign"


def test_an_entry_under_the_wrong_digest_is_refused():
    with pytest.raises(Unusable) as error:
        decode(DATA, "0" * 64)
    assert error.value.kind == "collision"


def test_a_forced_collision_is_found_by_the_stored_key(monkeypatch):
    monkeypatch.setattr(key, "digest_of", lambda text: "c" * 64)
    mine, other = Key("object", n=1), Key("object", n=2)
    assert mine.digest == other.digest
    with pytest.raises(Unusable, match="another key") as error:
        decode(Entry(other, b"x").encode(), mine)
    assert error.value.kind == "collision"


@pytest.mark.parametrize("meta", [b"[]", b"{}", b'{"op": "x", "seconds": "long", "created": 0}', b"\xff\xff"])
def test_bad_metadata_with_a_right_checksum(meta):
    text = KEY.text.encode()
    head = struct.pack("<8sIIIQ", DATA[:8], FORMAT, len(meta), len(text), 1)
    data = head + hashlib.sha256(head + meta + text + b"x").digest() + meta + text + b"x"
    with pytest.raises(Unusable) as error:
        decode(data, KEY)
    assert error.value.kind == "corrupt"
