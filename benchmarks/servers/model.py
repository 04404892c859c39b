"""A language model as a child of a benchmark: OpenAI's chat API on loopback, which repeats what the
caller said in words of its own that sound the same (`number_words.letters`), and greets first.

One word a token, TOKEN_S apart, after FIRST_TOKEN_S unless `--first-token` says otherwise, as a
small model on a GPU does. GET /heard returns what callers with a telephone number have said in
their calls, as the agent knows it.
"""

import argparse
import asyncio
import json
import re
import time
from typing import Any

from aiohttp import web

from benchmarks.processes.process import stay
from benchmarks.speech.number_words import LETTERS, letters
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run

FIRST_TOKEN_S = 0.030
TOKEN_S = 0.010
GREETING = " ".join(LETTERS)
FIRST_TOKEN: web.AppKey[float] = web.AppKey("first token", float)
"""Time in s to the first token of an answer."""
HEARD: web.AppKey[dict[str, str]] = web.AppKey("heard", dict)
"""What was said in each call, by the caller's number."""
_NUMBER = re.compile(r'"caller": "([^"]+)"')
"""The caller's number in the instructions (`call_info`)."""


Messages = list[dict[str, Any]]
"""A conversation in OpenAI's format."""


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "") for part in content)


def user_turns(messages: Messages) -> list[str]:
    """Returns the caller's turns."""
    return [_text(message) for message in messages if message.get("role") == "user"]


def reply_to(messages: Messages) -> str:
    """Returns the reply to a conversation."""
    said = user_turns(messages)
    return " ".join(letters(said[-1])) or GREETING if said else GREETING


def number_in(messages: Messages) -> str:
    """Returns the caller's number; empty if there is none."""
    told = [_text(message) for message in messages if message.get("role") == "system"]
    found = _NUMBER.search(told[0]) if told else None
    return found[1] if found else ""


async def complete(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    if number := number_in(asked["messages"]):
        request.app[HEARD][number] = " ".join(user_turns(asked["messages"]))
    head = {"id": "bench", "created": int(time.time()), "model": asked.get("model", "")}
    text = reply_to(asked["messages"])
    if not asked.get("stream"):
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({**head, "object": "chat.completion", "choices": [choice]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)

    async def send(delta: dict[str, str], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())

    await asyncio.sleep(request.app[FIRST_TOKEN])
    for word in text.split():
        await send({"role": "assistant", "content": f"{word} "})
        await asyncio.sleep(TOKEN_S)
    await send({}, "stop")
    await response.write(b"data: [DONE]\n\n")
    return response


async def heard(request: web.Request) -> web.Response:
    return web.json_response(request.app[HEARD])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-token", type=float, default=FIRST_TOKEN_S, metavar="S")
    options = parser.parse_args()
    set_up(Log(level="WARNING"))
    app = web.Application(client_max_size=1 << 24)
    app[FIRST_TOKEN] = options.first_token
    app[HEARD] = {}
    app.router.add_get("/heard", heard)
    app.router.add_post("/v1/chat/completions", complete)
    run(stay(app))


if __name__ == "__main__":
    main()
