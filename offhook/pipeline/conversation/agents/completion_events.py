"""The body of a chat model's response as JSON values: an event stream, or one JSON object from a
server that does not stream."""

import re
from typing import Any

from offhook.media.untrusted_json import read_json

MAX_EVENT_BYTES = 1 << 20
"""Maximum bytes of an event, or of a response that is no stream; a longer one is a fault."""
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class CompletionEvents:
    """Decodes a body piece by piece. Its methods raise ValueError for what is not JSON."""

    def __init__(self) -> None:
        self.done = False
        """Whether `[DONE]` was received: nothing more is to come."""
        self._rest = b""
        self._data: list[bytes] = []
        """Lines of the event that is being received."""
        self._is_stream: bool | None = None
        """None: nothing was received."""

    def feed(self, data: bytes) -> list[Any]:
        """Returns the events that are complete."""
        self._rest += data
        if self._is_stream is None:
            if len(self._rest) < len(_BOM) and _BOM.startswith(self._rest):
                return []
            self._rest = self._rest.removeprefix(_BOM).lstrip()
            if not self._rest:
                return []
            self._is_stream = not self._rest.startswith(b"{")
        _check_size(len(self._rest) + sum(map(len, self._data)))
        if not self._is_stream:
            return []
        held = b"\r" if self._rest.endswith(b"\r") else b""  # perhaps half of a line's end
        *lines, rest = _LINE_END.split(self._rest.removesuffix(held))
        self._rest = rest + held
        found: list[Any] = []
        for line in lines:
            self._add_line(line, found)
        return found

    def end(self) -> list[Any]:
        """Returns what is left at the end of the body."""
        found: list[Any] = []
        rest, self._rest = self._rest.rstrip(), b""
        if self._is_stream:
            self._add_line(rest, found)
            self._add_line(b"", found)
        elif rest:
            found.append(read_json(rest))
        return found

    def _add_line(self, line: bytes, found: list[Any]) -> None:
        if self.done:
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            self.done = data.startswith(b"[DONE]")
            if not self.done and data.strip():
                found.append(read_json(data))


def _check_size(size: int) -> None:
    if size > MAX_EVENT_BYTES:
        raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
