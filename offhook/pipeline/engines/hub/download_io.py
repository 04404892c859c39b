"""Downloads the files of a model into a cache.

A download that broke off, even with the process, goes on where it was; every file is checked
against the hub's hash once, which a record beside the files remembers; two processes that want the
same model download it once.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

from loguru import logger

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.streams.retry import AttemptFailed, RetryPolicy

Progress = Callable[[int, int], None]
"""Called with (bytes done, total bytes)."""

TIMEOUT_S = 30.0
"""Time in s without data before a download is retried."""
ATTEMPTS = 5
"""Attempts without a new byte before a download fails."""
FIRST_PAUSE_S = 1.0
"""Pause in s before the second attempt; it doubles each time."""
MAX_PAUSE_S = 30.0
GIVE_UP_S = 120.0
"""Time in s without a new byte before a download fails, however long the hub asks to wait."""
CHUNK_BYTES = 1 << 20
MARGIN_BYTES = 64_000_000
"""Space on the disk that a download leaves free."""
WAIT_S = 0.5
"""Interval in s at which the progress of another process's download is looked at."""
PART = ".incomplete"
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
HASH = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})?")
OURS = ".offhook"
"""What names of our own files beside a model's begin with."""
MAX_PATH_CHARS = 512
"""Longest name of a file, with its folders, that a hub may list; a listing with a longer one is
refused."""
MAX_FILES = 20_000
"""Files that a hub may list of a model; a longer listing is refused."""
MAX_ANSWER_BYTES = 8 << 20
"""Size of an answer about a model (a page of its files); more is not read, and the hub refused."""
ANSWER_S = 60.0
"""Time limit in s for the body of such an answer; then the hub counts as unreachable."""
MAX_REDIRECTS = 5
"""Redirects in a row that a request follows; with more the hub is refused."""
OFFLINE = ("1", "ON", "YES", "TRUE")
"""Values of HF_HUB_OFFLINE with which nothing is downloaded, as the hub's library reads it."""
FULL = (errno.ENOSPC, errno.EDQUOT)
NO_LISTING = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Exceptions of reading a list of files from any JSON."""


@dataclass(frozen=True)
class RemoteFile:
    path: str
    """Path within the repository, with slashes."""
    size: int
    digest: str
    """Its SHA-256, or the SHA-1 that Git gives its content; empty if the hub tells none."""

    def is_like(self, patterns: Sequence[str]) -> bool:
        return any(fnmatch(self.path, pattern) for pattern in patterns)

    @property
    def is_lawful(self) -> bool:
        """Whether a repository can have it: it lies in the model's folder, under a plain name that
        is none of ours."""
        try:
            self.path.encode()
        except UnicodeEncodeError:
            return False
        parts = self.path.split("/")
        return (
            len(self.path) <= MAX_PATH_CHARS
            and not {"", ".", ".."} & set(parts)
            and not parts[0].startswith(OURS)
            and not any(char < " " or char == "\x7f" for char in self.path)
            and self.size >= 0
            and bool(HASH.fullmatch(self.digest))
        )


class Source(Protocol):
    """A repository of a hub."""

    @property
    def name(self) -> str:
        """As the user writes it: "Qwen/Qwen3-ASR-0.6B"."""

    def open(
        self, file: RemoteFile, begin: int
    ) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Requests a file from byte `begin` on; yields the byte that the answer begins with, which
        is 0 if the hub cannot resume, and its pieces. Raises AttemptFailed if a later attempt may
        succeed, else EngineError."""


@dataclass(frozen=True)
class Store:
    """The folder of one revision in a cache."""

    folder: Path
    record: Path
    """File of the `Record`."""
    lock: Path
    variable: str
    """Environment variable that names the cache."""
    blobs: Path | None = None
    """Folder of the contents, named by their hashes, if files in `folder` are links."""

    def content(self, file: RemoteFile) -> Path:
        """Returns where the bytes of a file are kept."""
        return self.blobs / file.digest if self.blobs else self.folder / file.path

    def link(self, file: RemoteFile) -> None:
        """Makes a kept file visible in the folder. On a file system without links it moves."""
        path, kept = self.folder / file.path, self.content(file)
        if path.is_file():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            path.symlink_to(os.path.relpath(kept, path.parent))
        except OSError as error:
            if error.errno in FULL:
                raise
            kept.replace(path)


@dataclass
class Record:
    """The files of a revision as the hub lists them, and which were found to have their hash."""

    files: dict[str, RemoteFile] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)
    """Paths to modification times in whole s, which is what layers of container images keep: a file
    that was changed since is checked again."""

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Returns an empty record if there is none, or none of this form."""
        try:
            kept = json.loads(path.read_text())
            files = [RemoteFile(str(p), int(n), str(h)) for p, (n, h) in kept["files"].items()]
            checked = {str(p): int(at) for p, at in kept["checked"].items()}
            return cls(cls.of("it", files).files, checked)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, EngineError):
            return cls()

    @classmethod
    def of(cls, name: str, files: Sequence[RemoteFile]) -> "Record":
        """Raises EngineError if one would lie outside of the model's folder, or is no file of a
        repository."""
        for file in files:
            if not file.is_lawful:
                path, digest = ascii(file.path[:200]), ascii(file.digest[:100])
                raise EngineError(
                    f"the hub names a file outside of {name}, or one that no model has: {path}, "
                    f"{file.size} bytes, {digest}: do not trust this hub, mirror or proxy"
                )
        return cls({file.path: file for file in files})

    def write(self, path: Path) -> None:
        files = {file.path: [file.size, file.digest] for file in self.files.values()}
        write(path, json.dumps({"files": files, "checked": self.checked}))

    def wanted(self, name: str, patterns: Sequence[str]) -> list[RemoteFile]:
        """Returns the files of these patterns. Raises EngineError if there are none."""
        wanted = [file for file in self.files.values() if file.is_like(patterns)]
        if not wanted:
            asked = ", ".join(patterns)
            raise EngineError(f"{name} has none of the files {asked}: is it the right model?")
        return wanted

    def vouches_for(self, store: Store, patterns: Sequence[str]) -> bool:
        """Whether the files of these patterns are there, and unchanged since their hashes were
        right."""
        wanted = [file for file in self.files.values() if file.is_like(patterns)]
        return bool(wanted) and all(self.vouches(store, file) for file in wanted)

    def vouches(self, store: Store, file: RemoteFile) -> bool:
        try:
            found = (store.folder / file.path).stat()
        except OSError:
            return False
        return found.st_size == file.size and self.checked.get(file.path) == int(found.st_mtime)


def write(path: Path, text: str) -> None:
    """Replaces a small file at once; does nothing in a cache that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(path)
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise


def complete(
    source: Source,
    store: Store,
    files: Sequence[RemoteFile],
    progress: Progress,
    record: Record,
) -> None:
    """Downloads the files that are not there; `record` is the hub's listing. Raises EngineError."""
    try:
        with locked(store, lambda: progress(*seen(store, files))):
            record = Record(record.files, Record.read(store.record).checked)
            missing = [file for file in files if not _is_right(store, record, file)]
            record.write(store.record)
            if missing:
                _check_room(source.name, store, missing)
                _download(
                    source, store, record, missing, sum(file.size for file in files), progress
                )
            else:
                progress(*seen(store, files))
    except OSError as error:
        if error.errno in FULL:
            raise EngineError(
                f"the disk of {store.folder} is full ({free(store.folder)} is free), and "
                f"{source.name} is not all there. What has come is kept: make room and start "
                f"again, or set {store.variable} to a folder on another disk"
            ) from error
        raise EngineError(f"{source.name} could not be downloaded: {error}") from error


def is_complete(store: Store, patterns: Sequence[str]) -> bool:
    """Whether all files of these patterns are here and right, as far as is known without the hub.
    Reads those whose hash was not yet checked. Raises OSError."""
    record = Record.read(store.record)
    if record.vouches_for(store, patterns):
        return True
    wanted = [file for file in record.files.values() if file.is_like(patterns)]
    if not all(size_of(store.folder / file.path) == file.size for file in wanted):
        return False
    with locked(store, lambda: None):
        record = Record.read(store.record)
        right = [_is_right(store, record, file) for file in wanted]
        record.write(store.record)
    return bool(wanted) and all(right)


def is_offline() -> bool:
    """Returns whether nothing may be downloaded in this process."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in OFFLINE


def go_offline() -> None:
    """Forbids downloads in this process and those that it starts; comes before the hub's library is
    imported."""
    os.environ["HF_HUB_OFFLINE"] = OFFLINE[0]


def in_words(size: int) -> str:
    """Returns a size as people write it: "71 MB", "2.5 GB"."""
    if size < 1_000_000:
        return f"{size / 1e3:.0f} kB"
    if size < 1_000_000_000:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e9:.1f} GB"


def free(folder: Path) -> str:
    return in_words(free_bytes(folder))


def free_bytes(folder: Path) -> int:
    """Returns the free space of a folder's file system; the folder need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _check_room(name: str, store: Store, missing: Sequence[RemoteFile]) -> None:
    """Raises EngineError if the disk cannot take the files."""
    needed = sum(file.size - size_of(part_of(store, file)) for file in missing)
    if needed + MARGIN_BYTES > free_bytes(store.folder):
        raise EngineError(
            f"{name} needs {in_words(needed)} on the disk, and {in_words(MARGIN_BYTES)} must stay "
            f"free; the disk of {store.folder} has {free(store.folder)}: make room, or set "
            f"{store.variable} to a folder on another disk"
        )


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def part_of(store: Store, file: RemoteFile) -> Path:
    kept = store.content(file)
    return kept.with_name(kept.name + PART)


def seen(store: Store, files: Sequence[RemoteFile]) -> tuple[int, int]:
    """Returns the bytes that are there, of parts too, and those of all."""
    places = ((store.folder / f.path, store.content(f), part_of(store, f)) for f in files)
    done = sum(next(filter(None, map(size_of, paths)), 0) for paths in places)
    return done, sum(file.size for file in files)


def _is_right(store: Store, record: Record, file: RemoteFile) -> bool:
    """Whether a file is there and has its hash; one that has not is removed."""
    if record.vouches(store, file):
        return True
    path = store.folder / file.path
    kept = path if path.is_file() else store.content(file)
    if not kept.is_file():
        return False
    if size_of(kept) != file.size or not _has_hash(kept, file):
        logger.warning("{} is damaged: it is removed", path)
        path.unlink(missing_ok=True)
        store.content(file).unlink(missing_ok=True)
        record.checked.pop(file.path, None)
        return False
    store.link(file)
    record.checked[file.path] = int(path.stat().st_mtime)
    return True


def _has_hash(path: Path, file: RemoteFile) -> bool:
    if not file.digest:
        return True
    known: Any
    if len(file.digest) == hashlib.sha256().digest_size * 2:
        known = hashlib.sha256()
    else:
        known = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while data := content.read(CHUNK_BYTES):
            known.update(data)
    return bool(known.hexdigest() == file.digest)


def _download(
    source: Source,
    store: Store,
    record: Record,
    missing: Sequence[RemoteFile],
    total: int,
    progress: Progress,
) -> None:
    done = total - sum(file.size for file in missing)
    progress(done, total)
    for file in missing:

        def come(have: int, before: int = done) -> None:
            progress(before + have, total)

        part = part_of(store, file)
        part.parent.mkdir(parents=True, exist_ok=True)
        _fetch(source, file, part, come)
        if not _has_hash(part, file):
            logger.warning("{} of {} came damaged: it is fetched again", file.path, source.name)
            part.unlink()
            _fetch(source, file, part, come)
            if not _has_hash(part, file):
                part.unlink()
                raise EngineError(
                    f"{file.path} of {source.name} came damaged, twice: it has not the hash that "
                    "the hub tells. It is removed, and downloaded anew by the next attempt; if it "
                    "comes so again, do not trust this hub, mirror or proxy"
                )
        part.replace(store.content(file))
        store.link(file)
        record.checked[file.path] = int((store.folder / file.path).stat().st_mtime)
        record.write(store.record)
        done += file.size
        progress(done, total)


def _fetch(source: Source, file: RemoteFile, part: Path, come: Callable[[int], None]) -> None:
    """Downloads a file, after what is already there of it. Raises EngineError, OSError."""
    retry, failures = RetryPolicy(GIVE_UP_S, FIRST_PAUSE_S, MAX_PAUSE_S), 0
    if not part.exists():
        part.touch()
    while (have := size_of(part)) < file.size:
        try:
            _append(source, file, part, have, come)
        except AttemptFailed as failed:
            if size_of(part) > have:
                retry.reset()
                failures = 0
            failures += 1
            pause = retry.pause_s(failed, time.monotonic())
            if pause is None or failures == ATTEMPTS:
                raise EngineError(
                    f"{file.path} of {source.name} could not be downloaded: {failed}. What has "
                    "come is kept for the next attempt",
                    "failed" if failed.status else "unreachable",
                ) from failed
            logger.debug("{} of {}: {}; again in {:g} s", file.path, source.name, failed, pause)
            time.sleep(pause)


def _append(
    source: Source, file: RemoteFile, part: Path, have: int, come: Callable[[int], None]
) -> None:
    """Raises AttemptFailed, EngineError, OSError."""
    with source.open(file, have) as (begin, pieces), part.open("r+b") as kept:
        if begin < have:
            kept.truncate(begin)
        kept.seek(begin)
        have = begin
        for data in pieces:
            have += len(data)
            if have > file.size:
                kept.truncate(0)
                raise AttemptFailed("more came than the hub lists", hopeless=True)
            kept.write(data)
            come(have)
        kept.flush()
        os.fsync(kept.fileno())
    if have < file.size:
        raise AttemptFailed(f"it broke off after {in_words(have)} of {in_words(file.size)}")


def whole(pieces: Iterator[bytes]) -> bytes:
    """Returns the body of an answer about a model. Raises EngineError if it is too long,
    TimeoutError if it takes too long."""
    until, data = time.monotonic() + ANSWER_S, bytearray()
    for piece in pieces:
        data += piece
        if len(data) > MAX_ANSWER_BYTES:
            raise EngineError(
                f"the hub says more than {in_words(MAX_ANSWER_BYTES)} about a model: do not trust "
                "this hub, mirror or proxy"
            )
        if time.monotonic() > until:
            raise TimeoutError(f"the hub's answer takes more than {ANSWER_S:g} s")
    return bytes(data)


def may_lead(site: str, url: str) -> bool:
    """Whether a hub's redirect to `url` is followed: files come from other hosts than listings, but
    never without encryption where the hub has it."""
    return url.startswith("https://") or (site.startswith("http://") and url.startswith("http://"))


@contextmanager
def locked(store: Store, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds a store's lock; `waiting` is called while another process has it. A cache that cannot
    be written needs none."""
    try:
        store.lock.parent.mkdir(parents=True, exist_ok=True)
        lock = store.lock.open("w")
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        yield
        return
    with lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(WAIT_S)
        yield
