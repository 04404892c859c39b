"""A program that answers phone calls: asked by webhook, it accepts, attaches to the call, and gives
the model a tool.

    pip install aiohttp openai
    export OFFHOOK_URL=http://localhost:7860/v1 OFFHOOK_KEY=KEY WEBHOOK_SECRET=whsec_…
    python phone_program.py

The server's configuration needs an agent of kind "webhook" with the url http://HOST:8080/ and the
same secret, and one of kind "openai" called "model"; see docs/call-control.md.
"""

import asyncio
import json
import os
from typing import Any

import openai
from aiohttp import web

TOOL = {
    "type": "function",
    "name": "stock",
    "description": "How many of an article are in stock.",
    "parameters": {"type": "object", "properties": {"article": {"type": "string"}}},
}
STOCK = {"bells": 12, "lamps": 3}


async def talk(client: openai.AsyncOpenAI, call_id: str) -> None:
    """Greets the caller and answers tool calls until the call ends."""
    async with client.realtime.connect(call_id=call_id) as connection:
        await connection.session.update(session={"type": "realtime", "tools": [TOOL]})
        await connection.response.create()
        async for event in connection:
            if event.type != "response.done":
                continue
            wanted = [one for one in event.response.output or [] if one.type == "function_call"]
            for call in wanted:
                article = json.loads(call.arguments).get("article", "")
                output = str(STOCK.get(article, "none"))
                await connection.conversation.item.create(
                    item={"type": "function_call_output", "call_id": call.call_id, "output": output}
                )
            if wanted:
                await connection.response.create()


async def webhook(request: web.Request) -> web.Response:
    client: openai.AsyncOpenAI = request.app[CLIENT]
    try:
        event: Any = client.webhooks.unwrap(await request.read(), dict(request.headers))
    except (openai.InvalidWebhookSignatureError, ValueError):
        return web.Response(status=400)
    if event.type == "realtime.call.incoming":
        call_id = event.data.call_id
        await client.realtime.calls.accept(
            call_id,
            type="realtime",
            model="model",
            instructions="You sell bicycle parts. Greet the caller first, and be brief.",
        )
        task = asyncio.create_task(talk(client, call_id))
        request.app[TALKS].add(task)
        task.add_done_callback(request.app[TALKS].discard)
    return web.Response()


CLIENT = web.AppKey("client", openai.AsyncOpenAI)
TALKS = web.AppKey("talks", set[asyncio.Task[None]])


def main() -> None:
    app = web.Application()
    app[CLIENT] = openai.AsyncOpenAI(
        base_url=os.environ["OFFHOOK_URL"],
        api_key=os.environ["OFFHOOK_KEY"],
        webhook_secret=os.environ["WEBHOOK_SECRET"],
    )
    app[TALKS] = set()
    app.router.add_post("/", webhook)
    web.run_app(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8080")))


if __name__ == "__main__":
    main()
