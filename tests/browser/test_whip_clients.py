"""Stock programs that publish by WHIP and play by WHEP, unmodified: what HTTP says, what is heard,
and that a killed one frees its call."""

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import aiohttp
import av
import numpy as np
import pytest
from aiohttp import web
from aioice.ice import get_host_addresses

from tests.browser.conftest import HERE, Server, microphone, serving
from tests.support.waiting import HANGS_S
from tests.web.edge.ffmpeg_publisher import certificate

pytestmark = pytest.mark.slow

KEY = "sesame"
FREED_S = 35
"""From the end of a killed client to the end of its call."""
AUDIO = "wavparse ! audioconvert ! audioresample"
RTP = "application/x-rtp,media=audio,encoding-name=OPUS,payload=111,clock-rate=48000"


@dataclass
class Exchange:
    """A request and the response, as a proxy saw them."""

    method: str
    status: int
    headers: Mapping[str, str]


@dataclass
class Proxy:
    """Stands between a client and the server, and notes what they say."""

    server: str
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def statuses(self, method: str) -> list[int]:
        return [e.status for e in self.exchanges if e.method == method]


@asynccontextmanager
async def proxied(server: Server) -> AsyncIterator[Proxy]:
    proxy = Proxy(server.url)
    async with aiohttp.ClientSession() as http:

        async def forward(request: web.Request) -> web.Response:
            url = f"{proxy.server}{request.path_qs}"
            body = await request.read()
            async with http.request(
                request.method,
                url,
                headers=request.headers,
                data=body,
                skip_auto_headers=("Accept",),
            ) as response:
                proxy.exchanges.append(Exchange(request.method, response.status, response.headers))
                answer = await response.read()
                headers = response.headers.copy()
                headers.popall("Content-Length", None)
                return web.Response(status=response.status, body=answer, headers=headers)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield proxy
        finally:
            await runner.cleanup()


Command = Callable[[str, Path], Sequence[str]]
"""From the URL of a room and the folder of the test to a command line."""


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")


async def has(needed: str, *command: str) -> None:
    """Skips unless what the command prints has what is needed in it."""
    needs(command[0])
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    out, _ = await process.communicate()
    if needed not in out.decode():
        pytest.skip(f"this {command[0]} has no {needed}")


async def inspect(element: str) -> None:
    """Skips without this element of GStreamer."""
    await has(element, "gst-inspect-1.0", element)


def ffmpeg(url: str, folder: Path) -> Sequence[str]:
    own = [text for name, file in certificate(folder).items() for text in (f"-{name}", file)]
    loop = ("-re", "-stream_loop", "-1", "-i", str(folder / "question.wav"))
    opus = ("-c:a", "libopus", "-ar", "48000", "-ac", "2")
    return (
        "ffmpeg",
        "-loglevel",
        "warning",
        *loop,
        *opus,
        *own,
        "-authorization",
        KEY,
        "-f",
        "whip",
        url,
    )


def simple_whip_client(url: str, folder: Path) -> Sequence[str]:
    file = f"filesrc location={folder / 'long.wav'} ! {AUDIO} ! clocksync"
    source = f"{file} ! opusenc ! rtpopuspay pt=111 ! queue ! {RTP}"
    return ("whip-client", "-u", url, "-t", KEY, "-A", source)


def simple_whip_client_at_once(url: str, folder: Path) -> Sequence[str]:
    return (*simple_whip_client(url, folder), "--no-trickle")


def whipclientsink(url: str, folder: Path) -> Sequence[str]:
    source = ("filesrc", f"location={folder / 'long.wav'}", "!", *AUDIO.split(), "!", "clocksync")
    to = (f"signaller::whip-endpoint={url}", f"signaller::auth-token={KEY}")
    return ("gst-launch-1.0", "-e", *source, "!", "whipclientsink", *to)


def libdatachannel(codec: str) -> Command:
    def command(url: str, folder: Path) -> Sequence[str]:
        packets = str(folder / "question.opus")
        asked = {"url": url, "key": KEY, "packets": packets, "codec": codec}
        return ("node", str(HERE / "libdatachannel.mjs"), json.dumps(asked))

    return command


async def sounds(folder: Path) -> None:
    """A question as a sound file, the same for as long as a test takes, and as Opus packets."""
    line = [1.0, "What are your opening hours?", 2.0]
    question = await microphone(folder / "question.wav", line)
    await microphone(folder / "long.wav", [*line, 120.0])
    coder = av.CodecContext.create("libopus", "w")
    coder.sample_rate, coder.layout, coder.format = 48_000, "stereo", "s16"
    resampler = av.AudioResampler("s16", "stereo", 48_000, frame_size=960)
    packets: list[bytes] = []
    with av.open(str(question)) as file:
        for frame in file.decode(audio=0):
            for whole in resampler.resample(frame):
                packets += [bytes(packet) for packet in coder.encode(whole)]
    framed = b"".join(len(packet).to_bytes(2, "big") + packet for packet in packets)
    (folder / "question.opus").write_bytes(framed)


@asynccontextmanager
async def running(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(*command, cwd=HERE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def event(server: Server, name: str, number: int = 1, seconds: float = HANGS_S) -> None:
    async with asyncio.timeout(seconds):
        while len(server.events(name)) < number:
            await asyncio.sleep(0.1)


def serving_programs(port: int) -> AbstractAsyncContextManager[Server]:
    """A server on this machine's own address: GStreamer's ICE, libnice, leaves out loopback."""
    addresses = get_host_addresses(use_ipv4=True, use_ipv6=False)
    if not addresses:
        pytest.skip("needs a network")
    return serving(
        OFFHOOK_SERVER_API_KEY=KEY,
        OFFHOOK_WEBRTC_PORT=str(port),
        OFFHOOK_WEBRTC_ADDRESSES=json.dumps(addresses[:1]),
    )


PUBLISHERS: dict[str, tuple[str, Command]] = {
    "libdatachannel AV1": ("", libdatachannel("AV1")),
    "libdatachannel H264": ("", libdatachannel("H264")),
    "ffmpeg": ("ffmpeg", ffmpeg),
    "simple-whip-client": ("whip-client", simple_whip_client),
    "simple-whip-client --no-trickle": ("whip-client", simple_whip_client_at_once),
    "whipclientsink": ("gst-launch-1.0", whipclientsink),
}
"""By name: the program that is needed, and the command."""


@pytest.mark.parametrize("shared", [True, False], ids=["one port", "own ports"])
@pytest.mark.parametrize("name", PUBLISHERS)
async def test_a_program_publishes(
    name: str, shared: bool, request: pytest.FixtureRequest, tmp_path: Path, unused_udp_port: int
) -> None:
    program, command = PUBLISHERS[name]
    if program:
        needs(program)
    else:
        request.getfixturevalue("packages")
    if name == "whipclientsink":
        await inspect(name)
    if name == "ffmpeg":
        await has("whip", "ffmpeg", "-muxers")
    await sounds(tmp_path)
    async with (
        serving_programs(unused_udp_port if shared else 0) as server,
        proxied(server) as proxy,
    ):
        async with running(command(f"{proxy.url}/whip/room", tmp_path)) as process:
            await event(server, "caller_turn")
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), HANGS_S)
            await event(server, "call_ended")
        async with running(command(f"{proxy.url}/whip/room", tmp_path)) as process:
            await event(server, "caller_turn", 2)
            process.kill()
            killed = monotonic()
            await event(server, "call_ended", 2, FREED_S)
            freed_s = monotonic() - killed
    assert server.faults() == []
    assert proxy.statuses("POST") == [201, 201]
    for posted in (e for e in proxy.exchanges if e.method == "POST"):
        assert posted.headers["Location"].startswith("/whip/room/")
        assert posted.headers["ETag"].startswith('"')
    assert set(proxy.statuses("PATCH")) <= {204}
    assert proxy.statuses("DELETE") == [200]
    assert any("hours" in turn["text"] for turn in server.events("caller_turn"))
    assert server.events("call_ended")[0]["reason"] == "the caller hung up"
    said = [f"{e.method} {e.status}" for e in proxy.exchanges]
    sys.stderr.write(f"{name}: {', '.join(said)}; killed, its call ended in {freed_s:.1f} s\n")


def heard(folder: Path) -> Sequence[str]:
    """What comes after a source of sound."""
    form = "audio/x-raw,format=S16LE,channels=1,rate=48000"
    end = ("filesink", f"location={folder / 'heard.raw'}", "buffer-mode=unbuffered")
    return ("!", "audioconvert", "!", "audioresample", "!", form, "!", *end)


def whepsrc(*settings: str) -> Command:
    def command(url: str, folder: Path) -> Sequence[str]:
        source = ("whepsrc", f"whep-endpoint={url}", f"auth-token={KEY}", *settings)
        depay = ("!", "application/x-rtp,media=audio", "!", "rtpopusdepay", "!", "opusdec")
        return ("gst-launch-1.0", *source, *depay, *heard(folder))

    return command


def whepclientsrc(url: str, folder: Path) -> Sequence[str]:
    of = (f"signaller::whep-endpoint={url}", f"signaller::auth-token={KEY}")
    return ("gst-launch-1.0", "whepclientsrc", "video-codecs=<>", *of, *heard(folder))


PLAYERS: dict[str, tuple[str, Command]] = {
    "whepsrc": ("whepsrc", whepsrc("video-caps=EMPTY", f"audio-caps={RTP}")),
    "whepsrc with video": ("whepsrc", whepsrc()),
    "whepclientsrc": ("whepclientsrc", whepclientsrc),
}
"""By name: the element that is needed, and the command."""


@pytest.mark.parametrize("name", PLAYERS)
async def test_a_program_plays(
    name: str, packages: Path, tmp_path: Path, unused_udp_port: int
) -> None:
    element, command = PLAYERS[name]
    await inspect(element)
    await sounds(tmp_path)
    publisher = libdatachannel("H264")
    file = tmp_path / "heard.raw"

    async def loud() -> None:
        """Until the agent is heard."""
        file.unlink(missing_ok=True)
        async with asyncio.timeout(HANGS_S):
            while not file.exists() or np.abs(np.fromfile(file, np.int16)).max(initial=0) < 2000:
                await asyncio.sleep(0.2)

    async def left(server: Server, number: int, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while sum(" has left: " in line["message"] for line in server.log) < number:
                await asyncio.sleep(0.1)

    async with (
        serving_programs(unused_udp_port) as server,
        proxied(server) as proxy,
        running(publisher(f"{server.url}/whip/room", tmp_path)),
    ):
        await event(server, "call_started")
        async with running(command(f"{proxy.url}/whep/room", tmp_path)) as process:
            await loud()
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), HANGS_S)
            await left(server, 1, HANGS_S)
        async with running(command(f"{proxy.url}/whep/room", tmp_path)) as process:
            await loud()
            process.kill()
            killed = monotonic()
            await left(server, 2, FREED_S)
            freed_s = monotonic() - killed
        assert not server.events("call_ended")
    assert server.faults() == []
    assert proxy.statuses("POST") == [201, 201]
    assert set(proxy.statuses("DELETE")) <= {200}  # whepsrc may forget it
    said = [f"{e.method} {e.status}" for e in proxy.exchanges]
    sys.stderr.write(f"{name}: {', '.join(said)}; killed, it was gone in {freed_s:.1f} s\n")
