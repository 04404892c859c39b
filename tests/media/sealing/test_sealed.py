"""Sealed files: what can be read of them, and what nobody can do to them unnoticed."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.sealing.files_io import LocalFile, NewFile, StoredFile
from offhook.media.sealing.keyring import KeyFault, Keyring, id_of, new_key
from offhook.media.sealing.sealed import (
    HEADER_BYTES,
    TAG_BYTES,
    Opener,
    Sealer,
    SealFault,
    is_sealed,
)

KEYS = Keyring([bytes(range(32))])
CHUNK = 16
NAME = "call.ogg.sealed"
CONTENT = st.binary(max_size=5 * CHUNK)


def sealed_of(content: bytes, cut: int = 7) -> bytes:
    sealer = Sealer(KEYS, NAME, CHUNK)
    parts = [sealer.write(content[i : i + cut]) for i in range(0, len(content), cut)]
    return b"".join((sealer.header, *parts, sealer.finish()))


def opened(sealed: bytes, name: str = NAME) -> tuple[Opener, bytes]:
    """What opens a file, and all of its content."""
    opener = Opener(sealed[:HEADER_BYTES], len(sealed), KEYS, name)
    tail = opener.tail
    opener.open_tail(sealed[tail.offset :][: tail.length])
    span = opener.span(0, opener.length)
    return opener, opener.open(span, sealed[span.offset :][: span.length])[: opener.length]


@given(CONTENT, st.integers(1, 40))
def test_what_was_sealed_is_opened_however_it_was_written(content: bytes, cut: int) -> None:
    sealed = sealed_of(content, cut)
    opener, found = opened(sealed)
    assert (found, opener.complete) == (content, True)
    assert len(content) < 4 or content not in sealed[HEADER_BYTES:]


@given(CONTENT, st.data())
def test_any_range_opens_by_itself(content: bytes, data: st.DataObject) -> None:
    sealed = sealed_of(content)
    opener, _ = opened(sealed)
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)))
    span = opener.span(start, stop)
    assert span.length <= (stop - start) + 2 * CHUNK + TAG_BYTES * ((stop - start) // CHUNK + 2)
    found = opener.open(span, sealed[span.offset :][: span.length])
    assert found[: stop - start] == content[start:stop]


@given(CONTENT, st.data())
def test_a_file_that_was_cut_off_is_read_up_to_there_and_is_not_complete(
    content: bytes, data: st.DataObject
) -> None:
    sealed = sealed_of(content)
    cut = data.draw(st.integers(HEADER_BYTES, len(sealed) - 1))
    opener, found = opened(sealed[:cut])
    assert not opener.complete
    assert content.startswith(found)
    assert len(found) == (cut - HEADER_BYTES) // (CHUNK + TAG_BYTES) * CHUNK


@given(CONTENT, st.data())
def test_no_flipped_bit_goes_unnoticed(content: bytes, data: st.DataObject) -> None:
    sealed = bytearray(sealed_of(content))
    at = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[at // 8] ^= 1 << (at % 8)
    try:
        opener, found = opened(bytes(sealed))
    except (SealFault, KeyFault):
        return
    assert not opener.complete  # of the last chunk, which may as well be the rest of a crash
    assert content.startswith(found)


@given(st.binary(min_size=2 * CHUNK, max_size=6 * CHUNK), st.data())
def test_chunks_cannot_be_swapped_repeated_or_left_out(content: bytes, data: st.DataObject) -> None:
    sealed, size = sealed_of(content), CHUNK + TAG_BYTES
    body = sealed[HEADER_BYTES:]
    chunks = [body[i : i + size] for i in range(0, len(body), size)]
    order = data.draw(st.lists(st.sampled_from(range(len(chunks))), max_size=len(chunks) + 1))
    changed = sealed[:HEADER_BYTES] + b"".join(chunks[i] for i in order)
    if changed == sealed:
        return
    try:
        opener, found = opened(changed)
    except SealFault:
        return
    assert not opener.complete
    assert content.startswith(found)


@given(CONTENT, CONTENT)
def test_a_chunk_of_another_file_is_none_of_this_one(one: bytes, other: bytes) -> None:
    mixed = sealed_of(one)[:HEADER_BYTES] + sealed_of(other)[HEADER_BYTES:]
    try:
        opener, found = opened(mixed)
    except SealFault:
        return
    assert (opener.complete, found) == (False, b"")


@given(st.binary(min_size=CHUNK, max_size=5 * CHUNK), st.text(max_size=20))
def test_a_file_opens_under_its_own_name_alone(content: bytes, name: str) -> None:
    sealed = sealed_of(content)
    assert opened(sealed)[1] == content
    if name != NAME:
        with pytest.raises(SealFault, match="another file under this name"):
            opened(sealed, name)


def test_a_file_of_version_1_opens_under_any_name() -> None:
    key, content, salt = bytes(range(32)), os.urandom(40), bytes(32)
    header = b"offhook\x01" + id_of(key) + CHUNK.to_bytes(4, "big") + salt
    cipher = AESGCM(HKDF(SHA256(), 32, salt, b"offhook sealed file").derive(key))
    sealed = header
    for index in range(3):
        nonce = index.to_bytes(8, "big") + bytes(3) + (b"\1" if index == 2 else b"\0")
        sealed += cipher.encrypt(nonce, content[index * CHUNK :][:CHUNK], header)
    for name in (NAME, "moved.ogg.sealed"):
        opener, found = opened(sealed, name)
        assert (found, opener.complete) == (content, True)


@given(st.binary(max_size=HEADER_BYTES + 100))
def test_whatever_is_no_sealed_file_is_refused(junk: bytes) -> None:
    with pytest.raises((SealFault, KeyFault)):
        Opener(junk, len(junk), KEYS, NAME)


def test_the_format_is_the_one_that_is_described() -> None:
    """Opened again by what the text of `sealed` says alone."""
    key, content = bytes(range(32)), os.urandom(40)
    sealed = sealed_of(content)
    assert sealed[:8] == b"offhook\x02"
    assert sealed[8:16] == id_of(key)
    assert int.from_bytes(sealed[16:20], "big") == CHUNK
    authenticated = sealed[:52] + b"call.ogg.sealed"
    cipher = AESGCM(HKDF(SHA256(), 32, sealed[20:52], b"offhook sealed file").derive(key))
    found = b""
    for index, at in enumerate(range(52, len(sealed), CHUNK + 16)):
        last = index == 40 // CHUNK
        nonce = index.to_bytes(8, "big") + bytes(3) + (b"\1" if last else b"\0")
        found += cipher.decrypt(nonce, sealed[at : at + CHUNK + 16], authenticated)
    assert found == content


# --- keys ---


def test_old_keys_open_what_they_sealed_and_the_first_seals() -> None:
    old, new = new_key(), new_key()
    before, both = Keyring.parse(old), Keyring.parse(f"# since May\n{new}\n\n{old} # before\n")
    sealer = Sealer(before, NAME)
    sealed = sealer.header + sealer.write(b"x" * 5000) + sealer.finish()
    assert Opener(sealed, len(sealed), both, NAME).length >= 4096
    assert Sealer(both, NAME).header[8:16] == id_of(both.newest)
    with pytest.raises(KeyFault, match="was in use when it was recorded") as fault:
        Opener(sealed, len(sealed), Keyring.parse(new), NAME)
    assert id_of(before.newest).hex() in str(fault.value)
    for key in (old, new):
        assert key not in str(fault.value)


@given(st.text(max_size=80))
def test_what_is_no_key_is_said_without_telling_it(text: str) -> None:
    with pytest.raises(KeyFault, match="offhook calls key") as fault:
        Keyring.parse(f"{text[:20]} {text}")
    assert len(text) < 20 or text not in str(fault.value)


# --- on the disk ---


def like_no_sealed(parts: list[bytes]) -> bool:
    """No sound file begins as a sealed one does."""
    return not is_sealed(b"".join(parts))


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=9000), max_size=5).filter(like_no_sealed), st.booleans())
def test_a_file_is_read_while_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], sealed: bool
) -> None:
    path = tmp_path_factory.mktemp("sealed") / "file"
    keys = KEYS if sealed else None
    file = NewFile(path, keys)
    whole = b""
    for part in parts:
        file.write(part)
        whole += part
        stored = StoredFile(LocalFile(path), KEYS)
        found = stored.read(0, len(whole) + 1)
        stored.close()
        assert whole.startswith(found)
        assert len(whole) - len(found) < 4096
        assert stored.complete == (not sealed)
    file.finish()
    file.finish()
    stored = StoredFile(LocalFile(path), KEYS)
    assert (stored.read(0, 1 << 20), stored.complete) == (whole, True)
    stored.close()
    assert is_sealed(path.read_bytes()) == sealed
    with pytest.raises(FileExistsError):
        NewFile(path, keys)


def test_a_sealed_file_without_a_key_says_what_is_missing(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "file", KEYS)
    file.finish()
    with pytest.raises(KeyFault, match=r"\[recording\] key_file"):
        StoredFile(LocalFile(tmp_path / "file"), None)
