"""Whisper behind OpenAI's API: `python whisper_server.py FOLDER`, a model for CTranslate2.

Run it as a file with a Python that has `faster-whisper`, which need not be that of offhook: nothing
of offhook is imported. It serves on a free port of 127.0.0.1, prints it as JSON, transcribes one
sound at a time on one thread, says in a header how much CPU time that took, and ends when its
standard input closes.
"""

import json
import sys
import threading
import time
from collections.abc import Mapping
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from io import BytesIO
from typing import Any

NAME = "whisper"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        whisper = import_module("faster_whisper")  # of that Python, and no dependency of offhook
        self._model = whisper.WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=1)
        self._one = threading.Lock()

    def transcribe(self, sound: bytes, language: str | None) -> tuple[dict[str, Any], float]:
        """Returns the text, and the language if it was named or detected; and the CPU time in s."""
        with self._one:
            began = time.process_time()
            segments, info = self._model.transcribe(
                BytesIO(sound),
                language=language,
                beam_size=1,
                temperature=0.0,
                condition_on_previous_text=False,
                without_timestamps=True,
            )
            text = " ".join(segment.text.strip() for segment in segments)
            took = time.process_time() - began
        return {"text": text, "language": info.language}, took


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": NAME, "object": "model"}]})
        else:
            self._answer(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/audio/transcriptions":
            self._answer(404, {"error": {"message": f"no {self.path}"}})
            return
        form = fields(self.headers["Content-Type"], body)
        language = form.get("language", b"").decode() or None
        content, took = self.server.transcribe(form["file"], language)
        self._answer(200, content, {"openai-processing-ms": str(round(1000 * took))})

    def _answer(
        self, status: int, content: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing."""


def fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """Returns the fields of a multipart form."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message: Any = BytesParser().parsebytes(head + body)
    return {
        part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
        for part in message.get_payload()
    }


def main(folder: str) -> None:
    server = Server(folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
