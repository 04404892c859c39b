"""Decodes a file in a process of its own: what a damaged or malicious file does to FFmpeg, it does
not do to the server. The process has limits of memory and time, no protocol, no secret of the
environment and nothing open but its file; its sound comes through a socket, so that it waits for
whoever reads it.

Blocking: for threads. See `decoder_host_io` for the other side.
"""

import io
import json
import math
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import suppress
from typing import IO

import numpy as np
from loguru import logger

from offhook.media.files.decoder_protocol import (
    BLOCK,
    END,
    FAULTS,
    HEAD,
    MESSAGE_BYTES,
    REFUSED,
    REQUEST_BYTES,
    SOUND,
    STARTED,
    STATUS,
    TOO_LONG,
)
from offhook.media.files.formats import (
    DECODER_START_S,
    MAX_DECODER_BYTES,
    MAX_RATE,
    FileError,
    RawPcm,
    TooLong,
)
from offhook.media.pcm import Pcm
from offhook.processes.child_io import Child, signal_name
from offhook.processes.child_limits_io import child_environment

COMMAND = (sys.executable, "-m", "offhook.media.files.decoder_host_io")
START_S = 60.0
"""Time limit in s for a decoder to start, the first with its host; then files count as not
decodable at the moment, and requests get 503."""
SILENT_S = 60.0
"""Time in s without sound after which a decoder that is waited for is killed, and its file refused:
usually it makes an hour of sound in that time."""
END_S = 5.0
"""Time limit in s for the report how a decoder has ended; then files count as not decodable at the
moment, and the request gets 503."""
ATTEMPTS = 2
"""Attempts to start a decoder: a host may have ended since the last file."""
READ_BYTES = 1 << 17


class DecoderUnavailable(OSError):
    """No process can be started that decodes files."""


class _Host:
    """The process that starts decoders, itself started with the first file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._child: Child | None = None

    def start(self, request: bytes, files: list[int]) -> None:
        """Starts a decoder. Raises DecoderUnavailable."""
        with self._lock:
            reply = b""
            for _ in range(ATTEMPTS):
                try:
                    control = self._control or self._spawn()
                    socket.send_fds(control, [request], files)
                    reply = control.recv(REQUEST_BYTES)
                except OSError as error:
                    reply = str(error).encode()
                    self.end()
                    continue
                if reply == STARTED:
                    return
                if not reply:
                    self.end()
            why = reply.decode(errors="replace") or "its process ends"
            raise DecoderUnavailable(f"no decoder can be started: {why}")

    def _spawn(self) -> socket.socket:
        control, theirs = socket.socketpair()
        control.settimeout(START_S)
        with theirs:
            self._child = Child(
                COMMAND, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=child_environment()
            )
        self._control = control
        return control

    @property
    def pid(self) -> int:
        """Its process id; 0: there is none."""
        return self._child.pid if self._child is not None else 0

    def end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._child is not None:
            self._child.end_now()
        self._control = self._child = None


_HOST = _Host()


class Decoding:
    """A file that is decoded; `stop` may be called from any thread, the rest belongs to one."""

    def __init__(
        self,
        file: IO[bytes],
        rate: int | None = None,
        raw: RawPcm | None = None,
        most_s: float = math.inf,
        name: str = "",
    ) -> None:
        """`file` has a descriptor, which may be closed when this returns. `rate` in Hz of the sound
        is the file's own if None; `name` has the ending by which FFmpeg tells what its content does
        not. Raises DecoderUnavailable."""
        wanted = {
            "rate": rate,
            "raw": None if raw is None else (raw.rate, raw.channels),
            "most_s": most_s,
            "name": name[-REQUEST_BYTES // 8 :],
        }
        self.stopped = False
        self._sound, sound = socket.socketpair()
        self._report, report = socket.socketpair()
        try:
            with sound, report:
                files = [file.fileno(), sound.fileno(), report.fileno()]
                _HOST.start(json.dumps(wanted).encode(), files)
        except BaseException:
            self.close()
            raise
        self._sound.settimeout(SILENT_S)
        self._report.settimeout(END_S)

    def blocks(self) -> Generator[tuple[Pcm, int, float | None]]:
        """Blocks of mono audio, each with its rate in Hz and the file's length in s, if its header
        has it; of a damaged file, what can be decoded. None after `stop`. Raises FileError,
        DecoderUnavailable."""
        try:
            with self._sound.makefile("rb", buffering=READ_BYTES) as messages:
                assert isinstance(messages, io.BufferedReader)
                yield from self._read(messages)
        except TimeoutError as error:
            raise FileError(f"decoding it takes more than {SILENT_S:g} s without sound") from error
        except ConnectionError:
            pass
        finally:
            self.close()

    def _read(self, messages: io.BufferedReader) -> Generator[tuple[Pcm, int, float | None]]:
        while True:
            head = messages.read(HEAD.size)
            if len(head) < HEAD.size:
                return self._died()
            kind, size = HEAD.unpack(head)
            if kind > TOO_LONG or size > BLOCK.size + MESSAGE_BYTES:
                raise FileError("its decoder sends no sound")  # taken over by the file
            data = messages.read(size)
            if len(data) < size:
                return self._died()
            if kind in (REFUSED, TOO_LONG):
                words = data.decode(errors="replace")
                raise TooLong(words) if kind == TOO_LONG else FileError(words)
            if kind == END and size == FAULTS.size:
                faults, good = FAULTS.unpack(data)
                if faults:
                    line = logger.bind(a_minute="faults")
                    line.info("{} faults in a file, {} blocks decoded", faults, good)
                return
            if kind != SOUND or size < BLOCK.size or (size - BLOCK.size) % 2:
                raise FileError("its decoder sends no sound")
            rate, total = BLOCK.unpack_from(data)
            if not 0 < rate <= MAX_RATE:
                raise FileError("its decoder sends no sound")
            yield (
                np.frombuffer(data, np.int16, offset=BLOCK.size),
                rate,
                total if total >= 0 else None,
            )

    def _died(self) -> None:
        """Raises FileError if the file has ended its decoder, DecoderUnavailable if something
        else has."""
        if self.stopped:
            return
        try:
            report = self._report.recv(STATUS.size)
        except OSError:
            report = b""
        if len(report) < STATUS.size:
            raise DecoderUnavailable("the process that decodes files has ended")
        (status,) = STATUS.unpack(report)
        logger.bind(a_minute="decoder").warning("a file's decoder {}", _how(status))
        raise FileError(f"its decoder {_how(status)}")

    def stop(self) -> None:
        """Ends the decoding now; who waits for its next block gets none."""
        self.stopped = True
        with suppress(OSError):
            self._sound.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._report.shutdown(socket.SHUT_RDWR)  # the host kills the decoder

    def close(self) -> None:
        """Ends the decoding, if it has not yet ended."""
        self._sound.close()
        self._report.close()


def _how(status: int) -> str:
    """Returns how a decoder has ended, for `status` see `decoder_host_io.STATUS`."""
    if status == -signal.SIGXCPU:
        return (
            f"was ended: it took more than {DECODER_START_S:g} s of a processor's time, and more "
            "than sound of its length may"
        )
    if status == -signal.SIGKILL:
        return (
            "was killed: there was no memory for it, though it may take no more than "
            f"{MAX_DECODER_BYTES >> 20} MB"
        )
    if status < 0:
        return f"crashed ({signal_name(-status)})"
    return f"failed (status {status})"
