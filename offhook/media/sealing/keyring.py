"""The operator's keys of recordings: the first seals new ones, all open those that there are."""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence

KEY_BYTES = 32
ID_BYTES = 8
"""Length of a key's id: enough to say which key a file needs, and nothing of the key."""


class KeyFault(ValueError):
    """There is no such key, or it is none; the message says what to do."""


def new_key() -> str:
    """Returns a random key as it is written in a file: 32 bytes in base64."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


class Keyring:
    """Keys of 32 bytes, the newest first."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.newest = keys[0]
        self._keys = {id_of(key): key for key in reversed(keys)}

    @classmethod
    def parse(cls, text: str) -> "Keyring":
        """Reads keys in base64, one a line or with spaces between them; what follows # is a
        comment. Raises KeyFault, which tells no key."""
        written = [word for line in text.splitlines() for word in line.split("#")[0].split()]
        if not written:
            raise KeyFault("there is no key: `offhook calls key` makes one")
        return cls([_key(word, number) for number, word in enumerate(written, 1)])

    def find(self, key_id: bytes) -> bytes:
        """Returns the key with this id. Raises KeyFault."""
        if (key := self._keys.get(key_id)) is None:
            there = ", ".join(one.hex() for one in self._keys)
            raise KeyFault(
                f"it is sealed with the key {key_id.hex()}; [recording] key_file has {there}: add "
                "the key that was in use when it was recorded"
            )
        return key


def id_of(key: bytes) -> bytes:
    """Returns the id of a key: the beginning of a hash of it."""
    return hashlib.sha256(b"offhook: id of a key of recordings\0" + key).digest()[:ID_BYTES]


def _key(word: str, number: int) -> bytes:
    try:
        key = base64.b64decode(word, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyFault(
            f"key {number} is not {KEY_BYTES} bytes in base64: `offhook calls key` makes one"
        )
    return key
