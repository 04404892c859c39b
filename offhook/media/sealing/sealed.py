"""Sealed files: AES-256-GCM in chunks, of which any can be opened by itself.

    header   52 bytes
      magic        8   "offhook" and the version of the format, 2
      key id       8   of the operator's key
      chunk size   4   bytes of content in a chunk, big-endian
      salt        32   random, of this file
    chunk 0, 1, …  each: chunk size bytes of content, encrypted, and a tag of 16 bytes
    last chunk     fewer bytes of content, perhaps none, and a tag of 16 bytes

    key of the file  HKDF-SHA256(the operator's key, salt, "offhook sealed file")
    nonce            index of the chunk in 8 bytes, big-endian; 3 zeros; 1 if it is the last, or 0
    authenticated    the header, and the name of the file in UTF-8

A nonce is used once, since each file has its own key, and a chunk opens only at its place: chunks
cannot be changed, swapped, left out or moved to another file, nor a file be put in the place of
another call's. Files of version 1, in which the name was not authenticated, are read as well. A
file without its last chunk has been cut off, by a crash or by somebody; what it has can still be
read. The scheme is STREAM of
"Online Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance" (Hoang, Reyhanitabar,
Rogaway, Vizár, 2015), as age and Tink have it.
"""

import secrets
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from offhook.media.sealing.keyring import ID_BYTES, KEY_BYTES, Keyring, id_of

MAGIC = b"offhook\x02"
WITHOUT_NAME = b"offhook\x01"
"""Begins files in which the name is not authenticated."""
SALT_BYTES = 32
TAG_BYTES = 16
CHUNK_BYTES = 4096
"""Content of a chunk: about 0.8 s of a recording, which is what a crash can cost."""
MAX_CHUNK_BYTES = 1 << 20
"""Larger chunks are refused: a header must not make a reader take memory."""
_HEADER = struct.Struct(f">8s{ID_BYTES}sI{SALT_BYTES}s")
HEADER_BYTES = _HEADER.size
_INFO = b"offhook sealed file"


class SealFault(Exception):
    """A sealed file is none, or was changed; the message says where."""


def is_sealed(beginning: bytes) -> bool:
    """Returns whether a file with this beginning is sealed."""
    return beginning.startswith(MAGIC[:-1])


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, _INFO).derive(key))


def _authenticated(header: bytes, name: str) -> bytes:
    return header + name.encode(errors="surrogateescape")


def _nonce(index: int, *, last: bool) -> bytes:
    return index.to_bytes(8, "big") + bytes(3) + bytes([last])


class Sealer:
    """Seals the content of one file, from its beginning to its end."""

    def __init__(self, keys: Keyring, name: str, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`name` is the file's, without its folder; it opens under no other."""
        salt = secrets.token_bytes(SALT_BYTES)
        self.header = _HEADER.pack(MAGIC, id_of(keys.newest), chunk_bytes, salt)
        """Comes first in the file."""
        self._authenticated = _authenticated(self.header, name)
        self._cipher = _cipher(keys.newest, salt)
        self._chunk_bytes = chunk_bytes
        self._index = 0
        self._rest = bytearray()

    def write(self, content: bytes) -> bytes:
        """Return what is to be written now: the chunks that are full with this content."""
        self._rest += content
        sealed = []
        while len(self._rest) >= self._chunk_bytes:
            sealed.append(self._seal(bytes(self._rest[: self._chunk_bytes]), last=False))
            del self._rest[: self._chunk_bytes]
        return b"".join(sealed)

    def finish(self) -> bytes:
        """Return the last chunk. Nothing may follow."""
        return self._seal(bytes(self._rest), last=True)

    def _seal(self, content: bytes, *, last: bool) -> bytes:
        sealed = self._cipher.encrypt(_nonce(self._index, last=last), content, self._authenticated)
        self._index += 1
        return sealed


@dataclass(frozen=True)
class Span:
    """Chunks of a sealed file."""

    first: int
    offset: int
    """Where the first of them begins in the file."""
    length: int
    skip: int
    """Bytes of their content before those wanted."""


class Opener:
    """Opens a sealed file of `size` bytes, from its header on; `name` is that which it had when it
    was sealed, without its folder."""

    def __init__(self, header: bytes, size: int, keys: Keyring, name: str) -> None:
        """Raises SealFault, and KeyFault if there is no key for it."""
        if len(header) < HEADER_BYTES or not is_sealed(header):
            raise SealFault("this is no sealed file, or its header was cut off")
        header = header[:HEADER_BYTES]
        self._chunk_bytes: int
        magic, key_id, self._chunk_bytes, salt = _HEADER.unpack(header)
        if magic not in (MAGIC, WITHOUT_NAME):
            raise SealFault(f"it was sealed by a newer version of offhook: format {magic[-1]}")
        if not 1 <= self._chunk_bytes <= MAX_CHUNK_BYTES:
            raise SealFault("its header was changed")
        self._cipher = _cipher(keys.find(key_id), salt)
        self._authenticated = header if magic == WITHOUT_NAME else _authenticated(header, name)
        self._full, self._tail = divmod(size - HEADER_BYTES, self._chunk_bytes + TAG_BYTES)
        self.complete = False
        """Whether the last chunk is there, once `open_tail` was given it."""

    @property
    def tail(self) -> Span:
        """Returns what follows the full chunks: the last chunk, or what a crash left of one."""
        return Span(self._full, self._offset(self._full), self._tail, 0)

    def open_tail(self, sealed: bytes) -> None:
        """Find out from those bytes whether the file is complete."""
        if len(sealed) < TAG_BYTES:
            return
        try:
            self._cipher.decrypt(_nonce(self._full, last=True), sealed, self._authenticated)
        except InvalidTag:
            return
        self.complete = True

    @property
    def length(self) -> int:
        """Returns the bytes of content that can be read."""
        rest = self._tail - TAG_BYTES if self.complete else 0
        return self._full * self._chunk_bytes + rest

    def span(self, start: int, stop: int) -> Span:
        """Return the chunks that have the content from `start` to `stop`, within `length`."""
        first, skip = divmod(start, self._chunk_bytes)
        after = -(-stop // self._chunk_bytes)
        end = self._offset(min(after, self._full))
        if after > self._full:
            end += self._tail
        return Span(first, self._offset(first), max(0, end - self._offset(first)), skip)

    def open(self, span: Span, sealed: bytes) -> bytes:
        """Return the content of these chunks from the first byte wanted on. Raises SealFault."""
        size, content = self._chunk_bytes + TAG_BYTES, []
        for index, at in enumerate(range(0, len(sealed), size), span.first):
            last = index >= self._full
            try:
                nonce = _nonce(index, last=last)
                chunk = sealed[at : at + size]
                content.append(self._cipher.decrypt(nonce, chunk, self._authenticated))
            except InvalidTag as error:
                other = ", or is another file under this name" if index == 0 else ""
                words = f"it was changed, or is damaged, in chunk {index}{other}"
                raise SealFault(words) from error
        return b"".join(content)[span.skip :]

    def _offset(self, index: int) -> int:
        return HEADER_BYTES + index * (self._chunk_bytes + TAG_BYTES)
