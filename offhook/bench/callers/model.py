"""A language model as a child of a benchmark: OpenAI's chat API on loopback, which repeats what the
caller said in words of its own that sound the same (`number_words.letters`), and greets first.

One word a token, TOKEN_S apart, after FIRST_TOKEN_S, as a small model on a GPU does.
"""

import argparse
import asyncio
import json
import time
from typing import Any

from aiohttp import web

from offhook.bench.process import stay
from offhook.bench.speech.number_words import LETTERS, letters
from offhook.web.config.config import Log
from offhook.web.process.logs import set_up
from offhook.web.process.loop_io import run

FIRST_TOKEN_S = 0.030
TOKEN_S = 0.010
GREETING = " ".join(LETTERS)


def reply_to(messages: list[dict[str, Any]]) -> str:
    """Returns the reply to a conversation in OpenAI's format."""
    said = [message for message in messages if message.get("role") == "user"]
    if not said:
        return GREETING
    content = said[-1].get("content") or ""
    if not isinstance(content, str):
        content = " ".join(part.get("text", "") for part in content)
    return " ".join(letters(content)) or GREETING


async def complete(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
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

    await asyncio.sleep(FIRST_TOKEN_S)
    for word in text.split():
        await send({"role": "assistant", "content": f"{word} "})
        await asyncio.sleep(TOKEN_S)
    await send({}, "stop")
    await response.write(b"data: [DONE]\n\n")
    return response


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    set_up(Log(level="WARNING"))
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/chat/completions", complete)
    run(stay(app))


if __name__ == "__main__":
    main()
