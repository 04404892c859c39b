"""Files of recordings, sealed or not: written as they grow, and read from any place on."""

import contextlib
import fcntl
import os
from io import FileIO
from pathlib import Path
from typing import Protocol

from offhook.media.sealing.keyring import KeyFault, Keyring
from offhook.media.sealing.names import SUFFIX
from offhook.media.sealing.sealed import HEADER_BYTES, Opener, Sealer, is_sealed


class NewFile:
    """A file that only our user can read, locked until it is closed: the lock ends with the
    process, however it ends. It is sealed if there are keys; its methods raise OSError."""

    def __init__(self, path: Path, keys: Keyring | None) -> None:
        """Raises FileExistsError rather than follow or overwrite."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._file = FileIO(os.open(path, flags, 0o600), "wb")
        with contextlib.suppress(OSError):  # there are file systems without locks
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def locked(path: Path) -> FileIO | None:
    """Opens a file that was written as a NewFile, and locks it until it is closed. Returns None if
    it is still written, or locked by somebody else. Raises OSError, also where the file system has
    no locks."""
    file = FileIO(path, "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        file.close()
        raise
    return file


class Source(Protocol):
    """The bytes of a file as it was written, wherever it lies. Methods block and raise OSError."""

    @property
    def name(self) -> str:
        """Its name without a folder, with which a sealed file is bound."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes: ...

    def close(self) -> None: ...


class LocalFile:
    """A file of this machine, as a Source."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.name = path.name
        self._file = path.open("rb")
        self.size = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, length: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(length)

    def close(self) -> None:
        self._file.close()


class StoredFile:
    """A file of a recording, opened to be read. Blocks."""

    def __init__(self, source: Source, keys: Keyring | None) -> None:
        """Closes the source with itself. Raises OSError, SealFault if it was changed and KeyFault
        if there is no key for it."""
        self._source = source
        self._opener: Opener | None = None
        try:
            self.length = self._measure(keys)
            """Bytes that can be read."""
        except BaseException:
            source.close()
            raise

    def _measure(self, keys: Keyring | None) -> int:
        size, name = self._source.size, self._source.name
        header = self._source.read(0, min(size, HEADER_BYTES))
        if not is_sealed(header) and not name.endswith(SUFFIX):
            return size
        if keys is None:
            raise KeyFault("it is sealed, and there is no key: set [recording] key_file")
        opener = self._opener = Opener(header, size, keys, name)
        tail = opener.tail
        opener.open_tail(self._source.read(tail.offset, tail.length))
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
            return self._source.read(start, stop - start)
        span = self._opener.span(start, stop)
        return self._opener.open(span, self._source.read(span.offset, span.length))[: stop - start]

    def close(self) -> None:
        self._source.close()
