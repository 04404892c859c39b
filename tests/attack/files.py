"""Files that are made to hurt whoever decodes them: uploads, each with what its sender got."""

import asyncio
import io
import json
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from fractions import Fraction
from functools import partial
from time import monotonic
from typing import Any

import aiohttp
import av
import numpy as np

UPLOAD_S = 120.0
"""Seconds for one answer."""
RATE = 16_000
TICK = Fraction(1, 1000)
MP4_TIMES = 3_000_000_000
"""Samples that a table of MP4 says it has."""


def encoded(seconds: float, kind: str, codec: str, options: dict[str, str] | None = None) -> bytes:
    """Silence in a container."""
    data = io.BytesIO()
    with av.open(data, "w", format=kind) as container:
        stream: Any = container.add_stream(codec, rate=RATE, layout="mono", options=options or {})
        for at in range(0, int(seconds * RATE), 10 * RATE):
            size = min(10 * RATE, int(seconds * RATE) - at)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, size), np.int16), "s16", "mono")
            frame.sample_rate, frame.pts = RATE, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return data.getvalue()


def long_silence(hours: float) -> bytes:
    """Hours of Opus in some MB: the packets of a minute, again and again."""
    minute = io.BytesIO(encoded(60, "ogg", "libopus", {"frame_duration": "60"}))
    data = io.BytesIO()
    with av.open(minute, "r") as source, av.open(data, "w", format="ogg") as container:
        stream = container.add_stream_from_template(source.streams.audio[0])
        packets, at = [bytes(packet) for packet in source.demux() if packet.size], 0
        for number in range(int(hours * 60 * len(packets))):
            packet = av.Packet(packets[number % len(packets)])
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, at, at, TICK
            at += 60
            container.mux(packet)
    return data.getvalue()


# --- WAV ---


def wav(
    data: bytes = b"\1\0" * RATE,
    *,
    form: int = 1,
    channels: int = 1,
    rate: int = RATE,
    bits: int = 16,
    align: int = 2,
    riff_bytes: int | None = None,
    data_bytes: int | None = None,
    before: bytes = b"",
) -> bytes:
    head = struct.pack("<HHIIHH", form, channels, rate, rate * align & 0xFFFFFFFF, align, bits)
    body = b"WAVE" + before + b"fmt " + struct.pack("<I", len(head)) + head
    body += b"data" + struct.pack("<I", len(data) if data_bytes is None else data_bytes) + data
    return b"RIFF" + struct.pack("<I", len(body) if riff_bytes is None else riff_bytes) + body


# --- MP4 ---


def box(kind: bytes, content: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack(">I", 8 + len(content) if size is None else size) + kind + content


def mp4(tables: bytes, data: bytes = bytes(2000), url: bytes = b"") -> bytes:
    """Of one track, with the tables of its samples."""
    entry = (
        bytes(6) + struct.pack(">H", 1) + bytes(8) + struct.pack(">HHIH", 1, 16, 0, RATE) + bytes(2)
    )
    described = box(b"stsd", struct.pack(">II", 0, 1) + box(b"sowt", entry))
    link = box(b"url ", struct.pack(">I", 0 if url else 1) + url)
    references = box(b"dinf", box(b"dref", struct.pack(">II", 0, 1) + link))
    times = struct.pack(">IIIII", 0, 0, 0, RATE, RATE * 60)
    media = box(b"mdhd", struct.pack(">IIIIIHH", 0, 0, 0, RATE, RATE * 60, 0x55C4, 0))
    media += box(b"hdlr", bytes(8) + b"soun" + bytes(13))
    media += box(b"minf", box(b"smhd", bytes(8)) + references + box(b"stbl", described + tables))
    header = box(b"tkhd", struct.pack(">IIIII", 7, 0, 0, 1, 0) + bytes(64))
    movie = box(b"mvhd", times + bytes(80)) + box(b"trak", header + box(b"mdia", media))
    return box(b"ftyp", b"M4A \0\0\0\0") + box(b"moov", movie) + box(b"mdat", data)


def table(kind: bytes, *values: int) -> bytes:
    return box(kind, struct.pack(f">I{len(values)}I", 0, *values))


def nested(kind: bytes, depth: int) -> bytes:
    return b"".join(struct.pack(">I", 8 * (depth - at)) + kind for at in range(depth))


# --- Matroska ---


def element(number: bytes, content: bytes, size: int | None = None) -> bytes:
    length = len(content) if size is None else size
    return number + (0x0100000000000000 | length).to_bytes(8, "big") + content


def matroska(inside: bytes) -> bytes:
    head = element(b"\x42\x82", b"matroska")
    return element(b"\x1a\x45\xdf\xa3", head) + element(b"\x18\x53\x80\x67", inside)


def _tags(depth: int) -> bytes:
    """Tags within tags."""
    inside = b""
    for _ in range(depth):
        inside = element(b"\x67\xc8", inside)
    return element(b"\x12\x54\xc3\x67", element(b"\x73\x73", inside))


# --- others ---


def id3(size: int, content: bytes = b"") -> bytes:
    """A tag that says it has `size` bytes."""
    told = bytes(size >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\4\0\0" + told + content


def chained(links: int) -> bytes:
    """An Ogg file of many short ones."""
    one = encoded(0.1, "ogg", "libopus")
    return one * links


def small_packets() -> bytes:
    """A CAF file whose packets are two samples long."""
    data = bytearray(encoded(120, "caf", "pcm_s16le"))
    description = data.index(b"desc") + 12
    data[description + 20 : description + 24] = (2).to_bytes(4, "big")
    return bytes(data)


def zipped() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.wav", bytes(50_000_000))
    return data.getvalue()


def moov_compressed() -> bytes:
    """A QuickTime header that is 100 MB of zeros, deflated."""
    content = zlib.compress(bytes(100_000_000))
    inside = box(b"dcom", b"zlib") + box(b"cmvd", struct.pack(">I", 100_000_000) + content)
    return box(b"ftyp", b"qt  \0\0\0\0") + box(b"moov", box(b"cmov", inside))


def flac_picture() -> bytes:
    """A FLAC file whose picture says it has 4 GB."""
    data = encoded(1, "flac", "flac")
    picture = struct.pack(">II", 3, 0xFFFFFFFF) + bytes(100)
    head = bytes([6]) + len(picture).to_bytes(3, "big")
    return data[:4] + bytes([data[4] & 0x7F]) + data[5:42] + head + picture + data[42:]


def hls(url: str) -> bytes:
    return f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{url}\n#EXT-X-ENDLIST\n".encode()


def concat(url: str) -> bytes:
    return f"ffconcat version 1.0\nfile '{url}'\n".encode()


def sdp(url: str) -> bytes:
    port = int(url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])
    return (
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
        f"m=audio {port} RTP/AVP 0\r\n"
    ).encode()


def dash(url: str) -> bytes:
    return (
        f'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period>'
        f'<AdaptationSet mimeType="audio/mp4"><Representation id="1"><BaseURL>{url}</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>"
    ).encode()


def elsewhere(url: str) -> bytes:
    """A film whose samples are in another file."""
    return mp4(
        table(b"stts", 1, 1000, 1)
        + table(b"stsc", 1, 1, 1000, 1)
        + table(b"stsz", 2, 1000)
        + table(b"stco", 1, 0),
        url=url.encode() + b"\0",
    )


PLAIN = table(b"stts", 1, 1000, 1) + table(b"stsc", 1, 1, 1000, 1) + table(b"stsz", 2, 1000)

MADE: dict[str, Callable[[], bytes]] = {
    "wav: sizes that lie.wav": lambda: wav(riff_bytes=0xFFFFFFFF, data_bytes=0xFFFFFFFF),
    "wav: nothing where all is.wav": lambda: wav(riff_bytes=0, data_bytes=0),
    "wav: no channel.wav": lambda: wav(channels=0, align=0),
    "wav: 65,535 channels.wav": lambda: wav(channels=65_535, align=65_534),
    "wav: 2^31 Hz.wav": lambda: wav(rate=1 << 31),
    "wav: 1 Hz.wav": lambda: wav(rate=1),
    "wav: no Hz.wav": lambda: wav(rate=0),
    "wav: no bits.wav": lambda: wav(bits=0, align=0),
    "wav: 65,535 bits.wav": lambda: wav(bits=65_535),
    "wav: G.729 in it.wav": lambda: wav(form=0x83),
    "wav: a chunk of 4 GB.wav": lambda: wav(before=b"LIST\xff\xff\xff\xff"),
    "ogg: five thousand links.ogg": lambda: chained(5_000),
    "ogg: three hours of silence.ogg": lambda: long_silence(3),
    "mp4: 1,073,741,823 chunks.mp4": lambda: mp4(PLAIN + table(b"stco", 0x3FFFFFFF, *range(400))),
    "mp4: 3,000,000,000 samples.mp4": lambda: mp4(
        table(b"stts", 1, MP4_TIMES, 1)
        + table(b"stsc", 1, 1, MP4_TIMES, 1)
        + table(b"stsz", 2, MP4_TIMES)
        + table(b"stco", 1, 700)
    ),
    "mp4: boxes in boxes.mp4": lambda: box(b"ftyp", b"M4A \0\0\0\0") + nested(b"moov", 100_000),
    "mp4: a compressed header.mov": moov_compressed,
    "mp4: a box of no size.mp4": lambda: mp4(PLAIN) + box(b"free", b"", 0) * 100_000,
    "mkv: tags in tags.mkv": lambda: matroska(_tags(2_000)),
    "mkv: an element of 2^55 bytes.mkv": lambda: matroska(
        element(b"\x16\x54\xae\x6b", b"", (1 << 55) - 1)
    ),
    "mp3: a tag of 256 MB.mp3": lambda: id3((1 << 28) - 1) + bytes(100_000),
    "mp3: a tag compressed.mp3": lambda: id3(
        2_000, b"TXXX\0\0\x0f\x00\0\x09\x7f\x7f\x7f\x7f" + zlib.compress(bytes(10_000_000))[:1_980]
    ),
    "mp3: twenty thousand tags.mp3": lambda: id3(10, bytes(10)) * 20_000,
    "flac: a picture of 4 GB.flac": flac_picture,
    "caf: two samples a packet.caf": small_packets,
    "amr: ten million frames without sound.amr": lambda: b"#!AMR\n" + b"\x7c" * 10_000_000,
    "zip: not a sound.wav": zipped,
    "gzip: not a sound.wav": lambda: zlib.compress(wav(bytes(20_000_000)), wbits=31),
    "smk: a game's film.smk": lambda: b"SMK2" + bytes(4_000),
    "text: drawn.txt": lambda: b"The sound of a text.\n" * 500,
}
"""Files by name, which ends as theirs does."""
POINTING: dict[str, Callable[[str], bytes]] = {
    "hls.m3u8": hls,
    "hls as sound.wav": hls,
    "concat.ffconcat": concat,
    "concat as sound.mp3": concat,
    "sdp.sdp": sdp,
    "dash.mpd": dash,
    "mov: samples elsewhere.mov": elsewhere,
}
"""Files that name a URL."""
LONG = ("ogg: three hours of silence.ogg", "amr: ten million frames without sound.amr")
"""Those that take a decoder several seconds."""


async def hostile_files(
    base: str,
    seconds: float,
    *,
    path: str = "/v1/audio/transcriptions",
    key: str = "",
    files: Collection[str] = (),
) -> str:
    """Uploads each file, or `files` of them, four at a time, until the time is over. Returns how
    many were answered how, which took longest, and what was asked of a host that files name."""
    asked: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(repr((await reader.read(80))[:40]))
        writer.close()

    other = await asyncio.start_server(note, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/a.wav"
    names = iter([name for name in (*MADE, *POINTING) if not files or name in files])
    answers, slowest, until = Counter[str](), (0.0, ""), monotonic() + seconds
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def upload(client: aiohttp.ClientSession) -> None:
        nonlocal slowest
        for name in names:
            if monotonic() > until:
                return
            made = MADE[name] if name in MADE else partial(POINTING[name], url)
            data = await asyncio.to_thread(made)
            began = monotonic()
            answers[await sent(client, base + path, name, data)] += 1
            slowest = max(slowest, (monotonic() - began, name))

    async with other:
        limit = aiohttp.ClientTimeout(total=UPLOAD_S)
        async with aiohttp.ClientSession(timeout=limit, headers=headers) as client:
            await asyncio.gather(*(upload(client) for _ in range(4)))
    answered = ", ".join(f"{count} × {what}" for what, count in sorted(answers.items()))
    reached = f"; asked of the host they name: {', '.join(asked)}" if asked else ""
    return f"{answered}; longest {slowest[0]:.1f} s: {slowest[1]}{reached}"


async def sent(client: aiohttp.ClientSession, url: str, name: str, data: bytes) -> str:
    """Uploads a file; returns the status and, of an error, whether it is one of OpenAI's."""
    form = aiohttp.FormData()
    form.add_field("file", data, filename=name.rpartition(": ")[2], content_type="audio/wav")
    try:
        async with client.post(url, data=form) as answer:
            body = await answer.read()
            if answer.status == 200:
                return "200"
            with suppress(ValueError, KeyError, TypeError):
                if json.loads(body)["error"]["message"]:
                    return str(answer.status)
            return f"{answer.status} without an error of OpenAI's"
    except TimeoutError:
        return f"nothing for {UPLOAD_S:g} s"
    except aiohttp.ClientError as error:
        return type(error).__name__
