"""Finds the documents of a folder, and has them read by a process of its own. Blocks: for a
thread."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

from offhook.processes.child_io import Child, signal_name
from offhook.processes.child_limits_io import child_environment
from offhook.web.tools.knowledge.reader_io import (
    COMPUTING_S,
    KINDS,
    NEEDS_PYPDF,
    PDF,
    reads_pdf,
)

COMMAND = (sys.executable, "-m", "offhook.web.tools.knowledge.reader_io")
MAX_FILES = 5000
"""Maximum documents of an agent; further ones are skipped, with a warning."""
MAX_ENTRIES = 50_000
"""Files of any kind that are looked at; further ones are skipped."""
READING_S = 300.0
"""Time limit in s for one file, from a slow disk too, after which it is skipped."""
MAX_ANSWER_BYTES = 128 << 20
"""Maximum size of a file's passages, which is more than its limits allow."""
_ENDINGS = ", ".join((*KINDS, PDF))

Stamp = tuple[int, int]
"""Time of the last change in ns and size in bytes."""


@dataclass
class Listing:
    """The documents of an agent."""

    files: dict[str, tuple[Path, Stamp]] = field(default_factory=dict)
    """Path and stamp of each by its name, the path within its folder."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Why other files are not read, by their names."""


@dataclass(frozen=True)
class ReadFile:
    """What was read of a document."""

    name: str
    passages: list[tuple[str, str, str]]
    """Text, headings and place of each."""
    skipped: str = ""
    """Why nothing was read; empty: something was."""
    note: str = ""
    """What was left out."""


def listing(roots: Iterable[str]) -> Listing:
    """Returns the documents in folders and those that are named. Raises OSError for a folder or
    file that is not there."""
    found = Listing()
    roots = tuple(roots)
    for root in roots:
        for within, file in _files(root):
            name = within if len(roots) == 1 else _full(root, within)
            try:
                about = file.stat()
            except OSError as error:
                found.skipped[name] = f"cannot be read: {error.strerror}"
                continue
            if not _is_document(file):
                found.skipped[name] = f"is none of {_ENDINGS}"
            elif not file.is_file():
                found.skipped[name] = "is no file"
            elif len(found.files) >= MAX_FILES:
                found.skipped[name] = f"is one of over {MAX_FILES} documents"
            else:
                found.files[name] = file, (about.st_mtime_ns, about.st_size)
    return found


def _files(root: str) -> Iterator[tuple[str, Path]]:
    """Yields the files of a folder, MAX_ENTRIES at most, with their paths within it; of a file
    itself, the name. Raises OSError."""
    path = Path(root).expanduser()
    if not path.is_dir():
        path.stat()
        yield path.name, path
        return
    os.scandir(path).close()  # raises where os.walk would not
    entries = 0
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for name in sorted(one for one in names if not one.startswith(".")):
            entries += 1
            if entries > MAX_ENTRIES:
                return
            file = Path(folder, name)
            yield str(file.relative_to(path)), file


def _full(root: str, within: str) -> str:
    """Returns the name of a document beside those of other folders."""
    return str(Path(root, within) if Path(root).expanduser().is_dir() else Path(root))


def _is_document(file: Path) -> bool:
    return file.suffix.lower() in (*KINDS, PDF)


def fault_of(roots: Iterable[str]) -> str:
    """Returns why these folders and files cannot be an agent's knowledge; empty if they can."""
    for root in roots:
        documents = False
        try:
            for name, file in _files(root):
                if file.suffix.lower() == PDF and not reads_pdf():
                    return f"{name}: {NEEDS_PYPDF}"
                documents |= _is_document(file)
                if documents and reads_pdf():
                    break
        except OSError as error:
            return f"{root}: {error.strerror}"
        if not documents:
            return f"{root}: has no documents: put in some that end in {_ENDINGS}"
    return ""


class Reader:
    """The process that reads documents, started with the first."""

    def __init__(self) -> None:
        self._process: Child | None = None
        self._answers: io.BufferedReader
        """What it writes, once it is started."""
        self._stopped = False

    def read(self, files: Iterable[tuple[str, Path]]) -> Iterator[ReadFile]:
        """Yields what was read of these files, in their order, until `stop`. One at which the
        process ends is skipped."""
        try:
            for name, path in files:
                file = self._read(name, path)
                if self._stopped:
                    return
                yield file
        finally:
            self._end()

    def stop(self) -> None:
        """Ends the reading; may be called from any thread."""
        self._stopped = True
        if (process := self._process) is not None:
            process.kill()

    def _read(self, name: str, path: Path) -> ReadFile:
        process = self._process or self._start()
        assert process.stdin is not None
        timer = Timer(READING_S, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(str(path.absolute())).encode() + b"\n")
            line = self._answers.readline(MAX_ANSWER_BYTES)
        except OSError:
            line = b""
        finally:
            timer.cancel()
        try:
            answer: Any = json.loads(line)
            passages = [(str(text), str(above), str(at)) for text, above, at in answer["passages"]]
            return ReadFile(name, passages, str(answer["skipped"]), str(answer["note"]))
        except (ValueError, TypeError, LookupError):
            return ReadFile(name, [], skipped=self._how_ended())

    def _start(self) -> Child:
        self._process = Child(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )
        assert isinstance(self._process.stdout, io.RawIOBase)
        self._answers = io.BufferedReader(self._process.stdout)
        return self._process

    def _how_ended(self) -> str:
        """Ends the process, which has not answered; returns why."""
        process = self._process
        assert process is not None
        self._end()
        if process.returncode == -signal.SIGXCPU:
            return f"takes more than {COMPUTING_S:g} s of a processor's time"
        if process.returncode == -signal.SIGKILL:
            return f"takes more than {READING_S:g} s to read, or memory that is not there"
        if process.returncode < 0:
            return f"crashes what reads it ({signal_name(-process.returncode)})"
        return f"ends what reads it (status {process.returncode})"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        self._answers.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
        process.end_now()
