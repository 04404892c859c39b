"""Carriers of `offhook serve` with two processes: a stream reaches the process whose call it is."""

import asyncio
import json
from contextlib import suppress
from urllib.parse import urlsplit

import aiohttp
import numpy as np

from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_asterisk import ChanWebSocket
from benchmarks.carriers.far_ends.far_end_io import FarEndCall
from benchmarks.carriers.far_ends.far_end_json import Twilio
from offhook.telephony.carriers.streams.frames import Opcode
from tests.attack.carriers import PROXIES, REPLAYS, streams_behind_proxies, webhook_replays
from tests.support.waiting import HANGS_S, until
from tests.telephony.carriers.masked import sent
from tests.telephony.sip.phones import is_tone
from tests.web.edge.test_carriers import OUR_TONE, TOKEN, stream_url
from tests.web.edge.test_processes import TwoProcesses

BOT = f"""
import numpy as np

async def bot(arguments):
    leg = arguments.webrtc_connection
    seconds = np.arange(24000) / 24000
    leg.playout.write((8000 * np.sin(2 * np.pi * {OUR_TONE} * seconds)).astype(np.int16))
    await leg.until_closed()
"""
CONFIG = f"""
[[carriers]]
provider = "twilio"
insecure = true
[[carriers]]
provider = "twilio"
name = "signed"
secret = "{TOKEN}"
[[carriers]]
provider = "chan_websocket"
[[carriers]]
provider = "chan_websocket"
name = "elsewhere"
addresses = ["192.0.2.1"]
[[carriers]]
provider = "audiosocket"
port = 0
"""
LOUD = 1000
LOOKED_AT = 6000
"""Samples of the tone."""
TRIES = 6
"""Each may reach either process."""


async def played(call: FarEndCall, url: str) -> np.ndarray:
    """What somebody hears who stays until the tone has been there for as long as is looked at."""
    player = call.far_end.player

    def loud() -> int:
        sound = np.concatenate([np.zeros(0, np.int16), *player.played])
        found = np.flatnonzero(np.abs(sound) > LOUD)
        return len(sound) - int(found[0]) if len(found) else 0

    await call.start(url)
    await until(lambda: loud() >= LOOKED_AT)
    await call.close()
    return np.concatenate(player.played)


async def hurried(url: str, call_id: str, pause: float) -> list[str]:
    """The events of what a caller is sent who says all at once, byte by byte, and does not wait
    for the answer to the handshake."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    lines = (
        *(f"GET {at.path} HTTP/1.1", f"Host: {at.netloc}", "Upgrade: websocket"),
        *("Connection: Upgrade", "Sec-WebSocket-Version: 13"),
        *("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""),
    )
    start = {"streamSid": f"MZ{call_id}", "callSid": call_id}
    text = json.dumps({"event": "start", "streamSid": f"MZ{call_id}", "start": start})
    data = "\r\n".join(lines).encode() + sent(Opcode.TEXT, text.encode())
    step = 1 if pause else len(data)
    for n in range(0, len(data), step):
        writer.write(data[n : n + step])
        await asyncio.sleep(pause)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    events = []
    with suppress(asyncio.IncompleteReadError):
        while len(events) < 20:
            first, length = await reader.readexactly(2)
            if length == 126:
                length = int.from_bytes(await reader.readexactly(2), "big")
            payload = await reader.readexactly(length)
            assert first == 0x81
            events.append(json.loads(payload)["event"])
    writer.close()
    return events


async def test_streams_are_heard_whichever_process_they_come_to(tmp_path):
    (tmp_path / "bot.py").write_text(BOT)
    (tmp_path / "offhook.toml").write_text(CONFIG)
    server = TwoProcesses(tmp_path, "--bot", str(tmp_path / "bot.py"), SERVER_MAX_CALLS="20")
    try:
        await server.ready()
        async with aiohttp.ClientSession(server.url) as http:

            async def by_webhook(number: int) -> np.ndarray:
                fields = {"CallSid": f"CA{number}", "From": "+491701", "To": "+493099"}
                async with http.post("/carriers/twilio/voice", data=fields) as answer:
                    url, parameters = stream_url("twilio", await answer.text())
                facts = CallFacts(call_id=f"CA{number}", parameters=parameters)
                return await played(FarEndCall(Twilio(facts)), url)

            async def direct() -> np.ndarray:
                url = f"{server.url.replace('http', 'ws')}/carriers/chan_websocket/stream"
                return await played(FarEndCall(ChanWebSocket()), url)

            calls = (*(by_webhook(n) for n in range(TRIES)), *(direct() for _ in range(TRIES)))
            sounds = await asyncio.gather(*calls)
            urls = []
            for number in range(TRIES):
                fields = {"CallSid": f"CB{number}", "From": "+491701", "To": "+493099"}
                async with http.post("/carriers/twilio/voice", data=fields) as answer:
                    urls.append(stream_url("twilio", await answer.text())[0])
            said = (hurried(url, f"CB{n}", (n % 2) * 0.001) for n, url in enumerate(urls))
            for events in await asyncio.wait_for(asyncio.gather(*said), HANGS_S):
                assert events.count("media") >= 8
            assert {url.rpartition("/")[2][:2] for url in urls} <= {"1-", "2-"}
            for number in range(TRIES):  # nobody becomes somebody else on the way
                path = f"/carriers/elsewhere/stream/{1 + number % 2}-x"
                forged = {"X-Offhook-Peer": "192.0.2.1"}
                async with http.get(path, headers=forged) as answer:
                    assert answer.status == 403
            got = await webhook_replays(server.url, HANGS_S, TOKEN, "signed")
            assert got == f"1 calls of {REPLAYS} webhooks, 0 refused"
            for path in ("elsewhere", "chan_websocket"):  # whichever process verifies it
                stream = f"/carriers/{path}/stream"
                got = await streams_behind_proxies(server.url, HANGS_S, stream)
                assert got == f"refused {len(PROXIES) + 2} of {len(PROXIES) + 2} with 400, 403"
            async with asyncio.timeout(HANGS_S):
                while (await (await http.get("/calls")).json())["calls"]:
                    await asyncio.sleep(0.05)
        for sound in sounds:
            loud = np.flatnonzero(np.abs(sound) > LOUD)
            assert is_tone(sound[loud[0] :][:LOOKED_AT], 8000, OUR_TONE)
    finally:
        server.process.terminate()
        server.process.wait()
