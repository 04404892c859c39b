"""A page that talks with an agent by OpenAI's agents SDK, and the route that gives it a client
secret for each call. The key stays here.

    npm install && npm run build
    pip install aiohttp openai
    export OFFHOOK_URL=http://localhost:7860/v1 OFFHOOK_KEY=KEY
    python server.py                                    then http://localhost:8000

The server's configuration needs [server] api_key = "KEY" and origins = ["http://localhost:8000"],
and an agent of kind "openai"; see docs/call-control.md.
"""

import os
from pathlib import Path

import openai
from aiohttp import web

HERE = Path(__file__).parent
CLIENT = web.AppKey("client", openai.AsyncOpenAI)


async def page(request: web.Request) -> web.FileResponse:
    return web.FileResponse(HERE / "index.html")


async def bundle(request: web.Request) -> web.FileResponse:
    return web.FileResponse(HERE / "bundle.js")


async def secret(request: web.Request) -> web.Response:
    """A secret for one call. Whoever may use this route may talk with the agent."""
    client = request.app[CLIENT]
    made = await client.realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60}, session={"type": "realtime"}
    )
    return web.json_response({"value": made.value, "url": f"{client.base_url}realtime/calls"})


def main() -> None:
    app = web.Application()
    app[CLIENT] = openai.AsyncOpenAI(
        base_url=os.environ["OFFHOOK_URL"], api_key=os.environ["OFFHOOK_KEY"]
    )
    app.router.add_get("/", page)
    app.router.add_get("/bundle.js", bundle)
    app.router.add_post("/secret", secret)
    web.run_app(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))


if __name__ == "__main__":
    main()
