"""Files of recordings, sealed or not: written as they grow, and read from any place on."""

import os
from io import FileIO
from pathlib import Path

from offhook.media.sealing.keyring import KeyFault, Keyring
from offhook.media.sealing.names import SUFFIX
from offhook.media.sealing.sealed import HEADER_BYTES, Opener, Sealer, is_sealed


class NewFile:
    """A file that only our user can read. It is sealed if there are keys; its methods raise
    OSError."""

    def __init__(self, path: Path, keys: Keyring | None) -> None:
        """Raises FileExistsError rather than follow or overwrite."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._file = FileIO(os.open(path, flags, 0o600), "wb")
        self._sealer = None if keys is None else Sealer(keys, path.name)
        if self._sealer is not None:
            self._write(self._sealer.header)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, content: bytes) -> None:
        """Append; of a sealed file, what fills no chunk yet waits for more."""
        self._write(content if self._sealer is None else self._sealer.write(content))

    def finish(self) -> None:
        """Write what has waited, and close the file. Idempotent."""
        if self._file.closed:
            return
        try:
            if self._sealer is not None:
                self._write(self._sealer.finish())
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[self._file.write(rest) :]


class StoredFile:
    """A file of a recording, opened to be read. Blocks."""

    def __init__(self, path: Path, keys: Keyring | None) -> None:
        """Raises OSError, SealFault if it was changed and KeyFault if there is no key for it."""
        self._file = path.open("rb")
        self._opener: Opener | None = None
        try:
            self.length = self._measure(keys, path.name)
            """Bytes that can be read."""
        except BaseException:
            self._file.close()
            raise

    def _measure(self, keys: Keyring | None, name: str) -> int:
        size = os.fstat(self._file.fileno()).st_size
        header = self._file.read(HEADER_BYTES)
        if not is_sealed(header) and not name.endswith(SUFFIX):
            return size
        if keys is None:
            raise KeyFault("it is sealed, and there is no key: set [recording] key_file")
        opener = self._opener = Opener(header, size, keys, name)
        tail = opener.tail
        opener.open_tail(self._read(tail.offset, tail.length))
        return opener.length

    @property
    def complete(self) -> bool:
        """Whether a sealed file has its end: without it, it is still written or was cut off."""
        return self._opener is None or self._opener.complete

    def read(self, start: int, stop: int) -> bytes:
        """Return the content from `start` to `stop`. Raises OSError and SealFault."""
        stop = min(stop, self.length)
        if start >= stop:
            return b""
        if self._opener is None:
            return self._read(start, stop - start)
        span = self._opener.span(start, stop)
        return self._opener.open(span, self._read(span.offset, span.length))[: stop - start]

    def close(self) -> None:
        self._file.close()

    def _read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(length)
