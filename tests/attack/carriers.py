"""What strangers try at the doors of carriers and of the operator: proxies, host names, replays."""

import asyncio
import base64
import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Mapping
from urllib.parse import urlencode, urlsplit

import aiohttp

PROXIES: tuple[tuple[str, str], ...] = (
    ("X-Real-IP", "198.51.100.7"),
    ("Via", "1.1 proxy"),
    ("CF-Connecting-IP", "198.51.100.7"),
    ("CF-Ray", "8a1"),
    ("CDN-Loop", "cloudflare"),
    ("X-Client-IP", "198.51.100.7"),
    ("Client-IP", "198.51.100.7"),
    ("True-Client-IP", "198.51.100.7"),
    ("X-Cluster-Client-IP", "198.51.100.7"),
    ("Fastly-Client-IP", "198.51.100.7"),
    ("Fly-Client-IP", "198.51.100.7"),
    ("Akamai-Origin-Hop", "1"),
    ("X-Akamai-Edgescape", "country=DE"),
    ("X-Azure-ClientIP", "198.51.100.7"),
    ("X-ARR-LOG-ID", "1"),
    ("X-AppEngine-User-IP", "198.51.100.7"),
    ("X-Amzn-Trace-Id", "Root=1"),
    ("X-Envoy-External-Address", "198.51.100.7"),
    ("X-Forwarded", "for=198.51.100.7"),
    ("X-Forwarded-For", "127.0.0.1"),
    ("X-Forwarded-Proto", "https"),
    ("Forwarded", "for=127.0.0.1"),
    ("Forwarded-For", "198.51.100.7"),
    ("X-Original-URL", "/"),
    ("X-Original-Forwarded-For", "198.51.100.7"),
    ("X-ProxyUser-IP", "198.51.100.7"),
    ("X-Proxy-ID", "1"),
    ("Proxy-Client-IP", "198.51.100.7"),
    ("WL-Proxy-Client-IP", "198.51.100.7"),
    ("Proxy-Connection", "keep-alive"),
    ("X-Remote-Addr", "198.51.100.7"),
    ("X-Host", "voice.example"),
    ("X-Scheme", "https"),
    ("X-Varnish", "1"),
    ("X-Vercel-IP-Country", "DE"),
    ("X-NF-Client-Connection-IP", "198.51.100.7"),
    ("Ali-CDN-Real-IP", "198.51.100.7"),
    ("Incap-Client-IP", "198.51.100.7"),
    ("X-Sucuri-ClientIP", "198.51.100.7"),
    ("Tailscale-User-Login", "a@example.org"),
    ("Remote-User", "a"),
    ("Max-Forwards", "9"),
    ("Early-Data", "1"),
    ("X-Made-Up-By-A-Proxy", "1"),
)
"""Headers by which proxies and content delivery networks tell who asked them."""
HOSTS = (
    *("[::1]evil.example", "[::1]:7860@evil.example", "[::1", "[::1]]", "[::1%25evil.example]"),
    *("127.0.0.1:1@evil.example", "127.0.0.1@evil.example", "localhost@evil.example"),
    *("localhost:x", "localhost:7860:evil.example", "localhost:99999", "localhost:/evil.example"),
    *("127.0.0.1/evil.example", "localhost?evil.example", "localhost#evil.example"),
    *("localhost,evil.example", "localhost evil.example", "localhost\\evil.example"),
    *("[localhost]", "[127.0.0.1]", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("::1", "2130706433", "0x7f.0.0.1", "%6cocalhost", "user:password@localhost"),
)
"""Host headers that begin with or contain a name of this machine, and are not one."""
REPLAYS = 20
_UPGRADE = (
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="),
    ("Sec-WebSocket-Protocol", "media"),
)
Try = tuple[str, tuple[tuple[str, str], ...], str, bytes]
"""Its name, its headers, the version of HTTP, and what precedes the request."""
_ANSWER_S = 10.0
"""Seconds for an answer to one request; then the attacker gives up."""


async def status_of(
    base: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (),
    version: str = "1.1",
    before: bytes = b"",
) -> int:
    """The status of a GET with exactly these headers; 0 if the connection closes without one."""
    host, port = urlsplit(base).hostname, urlsplit(base).port
    reader, writer = await asyncio.open_connection(host, port)
    try:
        lines = [f"GET {target} HTTP/{version}", *(f"{name}: {value}" for name, value in headers)]
        writer.write(before + "\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(_ANSWER_S):
            first = await reader.readline()
        return int(first.split()[1]) if first.startswith(b"HTTP/1.") else 0
    except (ConnectionError, TimeoutError):
        return 0
    finally:
        writer.close()


async def streams_behind_proxies(
    base: str, seconds: float, path: str = "/carriers/chan_websocket/stream"
) -> str:
    """Opens an Asterisk's WebSocket, known by its address alone, as proxies on that address do."""
    own = (("Host", urlsplit(base).netloc), *_UPGRADE)
    tries: list[Try] = [(name, (*own, (name, value)), "1.1", b"") for name, value in PROXIES]
    tries.append(("HTTP/1.0", own, "1.0", b""))
    tries.append(("PROXY", own, "1.1", b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n"))
    return await _opened(base, path, tries, 101, seconds)


async def operators_host_names(base: str, seconds: float, path: str = "/calls") -> str:
    """Asks for the operator's list of calls under names that only look like this machine's."""
    tries: list[Try] = [(host, (("Host", host),), "1.1", b"") for host in HOSTS]
    return await _opened(base, path, tries, 200, seconds)


def twilio_signature(url: str, fields: Mapping[str, str], secret: str) -> str:
    """What Twilio sends along with a form."""
    text = url + "".join(name + fields[name] for name in sorted(fields))
    return base64.b64encode(hmac.digest(secret.encode(), text.encode(), hashlib.sha1)).decode()


async def webhook_replays(base: str, seconds: float, secret: str, name: str = "twilio") -> str:
    """Sends a webhook of Twilio's, as it was read on its way, again and again: each would be
    another call."""
    url = f"{base}/carriers/{name}/voice"
    fields = {"CallSid": "CA-replayed", "From": "+491701", "To": "+493099"}
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Twilio-Signature": twilio_signature(url, fields, secret),
        "I-Twilio-Idempotency-Token": "1",
    }
    answers: Counter[tuple[int, str]] = Counter()
    until = asyncio.get_running_loop().time() + seconds
    for _ in range(REPLAYS):
        # a connection each, so that they come to every process of the server
        async with (
            aiohttp.ClientSession() as http,
            http.post(url, data=urlencode(fields), headers=headers) as answer,
        ):
            answers[answer.status, await answer.text()] += 1
        if asyncio.get_running_loop().time() > until:
            break
    taken = sum("<Stream" in text for _, text in answers)
    refused = sum(count for (status, _), count in answers.items() if status == 403)
    return f"{taken} calls of {answers.total()} webhooks, {refused} refused"


async def _opened(base: str, path: str, tries: list[Try], success: int, seconds: float) -> str:
    opened, statuses, made = [], set(), 0
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    for name, headers, version, before in tries:
        if loop.time() > until:
            break
        made += 1
        status = await status_of(base, path, headers, version, before)
        statuses.add(status)
        if status == success:
            opened.append(name)
    if opened:
        return f"opened {len(opened)} of {made}: {', '.join(opened)}"
    return f"refused {made} of {made} with {', '.join(map(str, sorted(statuses)))}"
