"""A stock Firefox without a screen, driven by WebDriver BiDi (W3C), without a program beside it."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.waiting import HANGS_S

LOOK_S = 0.1
"""Between two looks at what is waited for."""
PREFERENCES: Mapping[str, bool | int | str] = {
    "media.navigator.streams.fake": True,
    "media.navigator.permission.disabled": True,
    "media.autoplay.default": 0,
    "media.autoplay.blocking_policy": 0,
    "media.peerconnection.ice.loopback": True,
    "media.peerconnection.ice.obfuscate_host_addresses": False,
    "media.gmp-manager.updateEnabled": False,
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}


class FirefoxError(Exception):
    """A command failed; the message is Firefox's."""


class Firefox:
    """One page in one Firefox."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.troubles: list[str] = []
        """Errors on the page's console."""
        self._socket = socket
        self._ids = itertools.count()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._context = ""
        self._reader = asyncio.create_task(self._read(), name="firefox")

    async def _open(self) -> None:
        await self.command("session.new", capabilities={})
        await self.command("session.subscribe", events=["log.entryAdded"])
        tree = await self.command("browsingContext.getTree")
        self._context = tree["contexts"][0]["context"]

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if told["type"] != "event":
                self._answers.pop(told["id"]).set_result(told)
            elif told["params"].get("level") == "error":
                self.troubles.append(str(told["params"]["text"]))

    async def command(self, method: str, **parameters: Any) -> Any:
        """Raises FirefoxError."""
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        told = await asyncio.wait_for(answer, HANGS_S)
        if told["type"] == "error":
            raise FirefoxError(f"{method}: {told['message']}")
        return told["result"]

    async def before_every_page(self, function: str) -> None:
        """Run a JavaScript function in each page before its own scripts."""
        await self.command("script.addPreloadScript", functionDeclaration=function)

    async def goto(self, url: str) -> None:
        await self.command(
            "browsingContext.navigate", context=self._context, url=url, wait="complete"
        )

    async def evaluate(self, expression: str) -> Any:
        """What an expression of the page is, as JSON has it; promises are awaited."""
        result = await self.command(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})))()",
            target={"context": self._context},
            awaitPromise=True,
            userActivation=True,
        )
        if result["type"] != "success":
            raise FirefoxError(result["exceptionDetails"]["text"])
        value = result["result"].get("value")
        return None if value is None else json.loads(value)

    async def until(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression of the page is true. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not await self.evaluate(f"Boolean({condition})"):
                await asyncio.sleep(LOOK_S)

    async def click(self, selector: str) -> None:
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")


@asynccontextmanager
async def firefox(program: str, profile: Path) -> AsyncIterator[Firefox]:
    """A Firefox with a profile of its own in that folder, and a microphone that hums."""
    lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in PREFERENCES.items())
    await asyncio.to_thread((profile / "user.js").write_text, "\n".join(lines))
    process = await asyncio.create_subprocess_exec(
        *(program, "--headless", "--no-remote", "--profile", str(profile)),
        *("--remote-debugging-port", "0", "about:blank"),
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    listening = asyncio.get_running_loop().create_future()

    async def read() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            if (
                found := re.search(rb"BiDi listening on (ws://\S+)", line)
            ) and not listening.done():
                listening.set_result(found[1].decode())

    reader = asyncio.create_task(read(), name="firefox's log")
    try:
        url = await asyncio.wait_for(listening, HANGS_S)
        async with (
            aiohttp.ClientSession() as http,
            http.ws_connect(f"{url}/session", max_msg_size=0) as socket,
        ):
            page = Firefox(socket)
            try:
                await page._open()
                yield page
            finally:
                await page.close()
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), HANGS_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        await reader
