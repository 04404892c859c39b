"""The process that decodes files, each in a child of its own: `python -m` this module.

It has loaded FFmpeg, so that a child is there within milliseconds, and reads no file itself. Its
standard input is a socket, on which requests come (see `decoding_io`); it ends when that closes, or
after IDLE_S without a file. A child is forked for each request, limits itself, and answers on a
socket that came with the request; on another one the host reports how the child has ended, and
kills it when that one closes.
"""

import fcntl
import gc
import io
import json
import os
import resource
import selectors
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import av

from offhook.media.files.decoder_io import Decoder
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
    DECODER_SPEED,
    DECODER_START_S,
    MAX_DECODER_BYTES,
    FileError,
    RawPcm,
    TooLong,
)
from offhook.processes.child_io import ending_with_us
from offhook.processes.child_limits_io import allow_processor_time, limit_ourselves

IDLE_S = 300.0
"""Time in s without a file after which the host ends; the next file starts it again."""
FILES = 3
"""Descriptors of a request: the file, the socket for its sound, the socket for the child's end."""
FILE_FD, SOUND_FD, ABOVE_FD = 3, 4, 16
"""Descriptors of a child's file and of the socket for its sound, and one above them."""
BUDGET_S = 10.0
"""Interval in s of sound at which a child's processor time is extended."""


def main() -> None:
    control = socket.socket(fileno=os.dup(0))
    av.logging.set_level(av.logging.PANIC)
    gc.freeze()  # children share what is here
    ended, ending = socket.socketpair()
    for end in (ended, ending):
        end.setblocking(False)
    signal.set_wakeup_fd(ending.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    reports: dict[int, socket.socket] = {}
    """Of each child, the socket on which its end is reported, by process id."""
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            events = selector.select(None if reports else IDLE_S)
            if not events:
                return
            for key, _ in events:
                if key.fileobj is control:
                    if not _start(control, reports, selector):
                        return  # children end with us
                elif key.fileobj is ended:
                    with suppress(BlockingIOError):
                        ended.recv(REQUEST_BYTES)
                elif key.data in reports:  # nobody waits for this one any more
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
            _reap(reports, selector)


def _start(
    control: socket.socket, reports: dict[int, socket.socket], selector: selectors.BaseSelector
) -> bool:
    """Forks a child for a request; returns whether there was one."""
    request, files, *_ = socket.recv_fds(control, REQUEST_BYTES, FILES)
    if not request:
        return False
    ends_with_host = ending_with_us()
    try:
        pid = os.fork()
    except OSError as error:
        for file in files:
            os.close(file)
        control.sendall(str(error.strerror).encode())
        return True
    if pid == 0:
        try:
            if ends_with_host is not None:
                ends_with_host()
            _decode(request, files)
        finally:
            os._exit(1)  # it must not go on as a second host
    for file in files[:-1]:
        os.close(file)
    reports[pid] = socket.socket(fileno=files[-1])
    selector.register(reports[pid], selectors.EVENT_READ, pid)
    control.sendall(STARTED)
    return True


def _reap(reports: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with reports.pop(pid) as report:
            with suppress(KeyError):
                selector.unregister(report)
            with suppress(OSError):
                report.sendall(STATUS.pack(os.waitstatus_to_exitcode(status)))


# --- a child ---


def _decode(request: bytes, files: Sequence[int]) -> None:
    sound = _keep_open(files)
    wanted: dict[str, Any] = json.loads(request)
    raw = None if wanted["raw"] is None else RawPcm(*wanted["raw"])
    limit_ourselves(MAX_DECODER_BYTES)
    _allow_processor_time(0)
    file = io.FileIO(FILE_FD)
    file.name = wanted["name"]
    decoder = Decoder(file, wanted["rate"], raw, wanted["most_s"])
    try:
        _send_blocks(decoder, sound)
        _send(sound, END, FAULTS.pack(len(decoder.faults), decoder.count))
    except TooLong as error:
        _send(sound, TOO_LONG, str(error).encode())
    except FileError as error:
        _send(sound, REFUSED, str(error).encode(errors="replace")[:REQUEST_BYTES])
    os._exit(0)


def _keep_open(files: Sequence[int]) -> socket.socket:
    """Closes whatever the host has open but the file, which becomes FILE_FD, and the socket for its
    sound, which is returned."""
    signal.set_wakeup_fd(-1)
    file, sound = (fcntl.fcntl(number, fcntl.F_DUPFD, ABOVE_FD) for number in files[:2])
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(FILE_FD):
        os.dup2(nothing, number)
    os.dup2(file, FILE_FD)
    os.dup2(sound, SOUND_FD)
    os.closerange(SOUND_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return socket.socket(fileno=SOUND_FD)


def _allow_processor_time(sound_s: float) -> None:
    allow_processor_time(DECODER_START_S + sound_s / DECODER_SPEED)


def _send_blocks(decoder: Decoder, sound: socket.socket) -> None:
    waiting, rate, extended_s = bytearray(), 0, 0.0

    def send() -> None:
        head = BLOCK.pack(rate, -1.0 if decoder.total is None else decoder.total)
        for at in range(0, len(waiting), MESSAGE_BYTES):
            _send(sound, SOUND, head + waiting[at : at + MESSAGE_BYTES])
        waiting.clear()

    for block, hz in decoder.blocks():
        if hz != rate:
            send()
            rate = hz
        waiting += block.tobytes()
        if len(waiting) >= MESSAGE_BYTES:
            send()
        if decoder.seconds > extended_s + BUDGET_S:
            extended_s = decoder.seconds
            _allow_processor_time(extended_s)
    send()


def _send(sound: socket.socket, kind: int, data: bytes) -> None:
    sound.sendall(HEAD.pack(kind, len(data)) + data)


if __name__ == "__main__":
    main()
