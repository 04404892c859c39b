"""What the fake REST knows and says: accounts, credentials, and errors in each provider's words."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs

from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from offhook.telephony.carriers.settings import CarrierSettings

TWILIO_SID = "AC" + "0123456789abcdef" * 2
TWILIO_KEY = "SK" + "f" * 32
PLIVO_ID = "MAXXXXXXXXXXXXXXXXXX"
VONAGE_APPLICATION = "aaaaaaaa-bbbb-4ccc-8ddd-0123456789ab"
TELNYX_KEY = "KEY0123456789ABCDEF"
TELNYX_APPLICATION = "1293384261075731499"
TELNYX_PUBLIC_KEY = base64.b64encode(bytes(32)).decode()
EXOTEL_SID = "offhook1"
TOKEN = "a-token-nobody-knows"
KEY_SECRET = "the-secret-of-the-key"
NUMBER = "+15005550006"
"""Ours, with all of them; that which Twilio's test credentials may call from."""

PROVIDERS = ("twilio", "telnyx", "plivo", "vonage", "exotel")
E164 = re.compile(r"\+[1-9][0-9]{5,14}")
DIGITS = re.compile(r"[1-9][0-9]{6,14}")
SIP = re.compile(r"sips?:[^\s<>@]+@[^\s<>@]+")

TWILIO_TEST_NUMBERS = {
    ("To", "+15005550001"): (21217, "Phone number does not appear to be valid"),
    ("To", "+15005550002"): (21214, "'To' phone number cannot be reached"),
    ("To", "+15005550003"): (21215, "Account not authorized to call +15005550003."),
    ("To", "+15005550004"): (21216, "Account not allowed to call +15005550004"),
    ("From", "+15005550001"): (21212, "The source phone number provided is not valid"),
}
"""Those that Twilio's documents give for tests, with what they lead to."""


@lru_cache(maxsize=1)
def vonage_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def vonage_pem() -> str:
    return (
        vonage_key()
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        .decode()
    )


def settings_for(provider: str, rest_url: str, **changes: Any) -> CarrierSettings:
    """A carrier that the fake knows."""
    known: dict[str, dict[str, str]] = {
        "twilio": {"account": TWILIO_SID, "secret": TOKEN},
        "telnyx": {
            "account": TELNYX_APPLICATION,
            "secret": TELNYX_PUBLIC_KEY,
            "api_key": TELNYX_KEY,
        },
        "plivo": {"account": PLIVO_ID, "secret": TOKEN},
        "vonage": {"account": VONAGE_APPLICATION, "secret": TOKEN, "api_key": vonage_pem()},
        "exotel": {"account": EXOTEL_SID, "secret": TOKEN, "api_key": "the-api-key"},
        "genesys": {"secret": base64.b64encode(TOKEN.encode()).decode(), "api_key": "the-api-key"},
    }
    values: dict[str, Any] = {
        "number": NUMBER,
        "public_url": "https://voice.example.org",
        "rest_url": rest_url,
        **known.get(provider, {}),
    }
    return CarrierSettings(provider=provider, **(values | changes))  # type: ignore[arg-type]


@dataclass
class Asked:
    """One request."""

    provider: str
    method: str
    path: str
    values: dict[str, Any]
    """Its form (the last of a name; `lists` has all) or its JSON."""
    headers: Mapping[str, str]
    lists: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Call:
    provider: str
    id: str
    values: dict[str, Any]
    """What it was asked for with."""
    state: str = "queued"
    """queued, in-progress or completed."""
    transferred: Any = None
    """The markup, NCCO, command or URL that it was last sent to."""
    streams: list[str] = field(default_factory=list)
    """URLs of the streams that it was connected to by a command."""


async def read(provider: str, request: web.Request) -> Asked:
    body = await request.text()
    if request.content_type == "application/json" and body:
        values, lists = json.loads(body), {}
    else:
        lists = parse_qs(body, keep_blank_values=True)
        values = {name: given[-1] for name, given in lists.items()}
    return Asked(provider, request.method, request.raw_path, values, request.headers, lists)


def basic(asked: Asked) -> tuple[str, str]:
    scheme, _, credentials = asked.headers.get("Authorization", "").partition(" ")
    try:
        user, _, password = base64.b64decode(credentials).decode().partition(":")
    except ValueError:
        return "", ""
    return (user, password) if scheme == "Basic" else ("", "")


def unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def twilio_refusal(asked: Asked, request: web.Request) -> web.Response | None:
    known = ((TWILIO_SID, TOKEN), (TWILIO_KEY, KEY_SECRET))
    if basic(asked) not in known or request.match_info["account"] != TWILIO_SID:
        return twilio_error(401, 20003, "Authenticate")
    if request.content_type != "application/x-www-form-urlencoded":
        return twilio_error(400, 20001, "the parameters of 2010-04-01 come in a form")
    return None


def twilio_error(status: int, code: int, message: str) -> web.Response:
    more = f"https://www.twilio.com/docs/errors/{code}"
    body = {"code": code, "message": message, "more_info": more, "status": status}
    return web.json_response(body, status=status)


def twilio_call(call: Call) -> dict[str, Any]:
    return {
        "sid": call.id,
        "account_sid": TWILIO_SID,
        "api_version": "2010-04-01",
        "status": call.state,
        "to": call.values.get("To"),
        "from": call.values.get("From"),
        "direction": "outbound-api",
        "uri": f"/2010-04-01/Accounts/{TWILIO_SID}/Calls/{call.id}.json",
    }


def telnyx_refusal(asked: Asked) -> web.Response | None:
    if asked.headers.get("Authorization") == f"Bearer {TELNYX_KEY}":
        return None
    text = "Could not find any usable credentials in the request."
    return telnyx_error(401, "10009", "Authentication failed", text)


def telnyx_error(status: int, code: str, title: str, detail: str) -> web.Response:
    errors = [{"code": code, "title": title, "detail": detail, "source": {"pointer": "/"}}]
    return web.json_response({"errors": errors}, status=status)


def telnyx_missing(body: dict[str, Any], *names: str) -> web.Response | None:
    for name in names:
        if not body.get(name):
            text = f"The '{name}' parameter is required."
            return telnyx_error(422, "10004", "Missing required parameter", text)
    return None


def telnyx_numbers(body: dict[str, Any], *names: str) -> web.Response | None:
    for name in names:
        if not E164.fullmatch(body[name]) and not SIP.fullmatch(body[name]):
            text = f"The '{name}' parameter must be in +E164 format or a SIP URI."
            return telnyx_error(422, "10016", "Phone number must be in +E.164 format", text)
    return None


def telnyx_stream(asked: Asked) -> web.Response | None:
    known: dict[str, tuple[Any, ...]] = {
        "stream_track": ("inbound_track", "outbound_track", "both_tracks"),
        "stream_codec": ("PCMU", "PCMA", "G722", "OPUS", "AMR-WB", "L16", "default"),
        "stream_bidirectional_mode": ("mp3", "rtp"),
        "stream_bidirectional_codec": ("PCMU", "PCMA", "G722", "OPUS", "AMR-WB", "L16"),
        "stream_bidirectional_sampling_rate": (8000, 16000, 22050, 24000, 48000),
    }
    for name, values in known.items():
        if name in asked.values and asked.values[name] not in values:
            return telnyx_error(422, "10015", "Bad Request", f"{name} is not one of {values}")
    return None


def plivo_refusal(asked: Asked, request: web.Request) -> web.Response | None:
    if basic(asked) == (PLIVO_ID, TOKEN) and request.match_info["account"] == PLIVO_ID:
        return None
    text = (
        "Could not verify your access level for that URL.\n"
        "You have to login with proper credentials"
    )
    return web.Response(status=401, text=text)


def plivo_error(status: int, text: str) -> web.Response:
    return web.json_response({"api_id": "97ceeb52-58b6-11e1-86da", "error": text}, status=status)


def vonage_error(status: int, title: str, **more: Any) -> web.Response:
    body = {"type": title.upper().replace(" ", "_"), "error_title": title, **more}
    return web.json_response(body, status=status)


def vonage_endpoint(value: Any) -> bool:
    match value:
        case {"type": "phone", "number": str(number)}:
            return bool(DIGITS.fullmatch(number))
        case {"type": "sip", "uri": str(uri)}:
            return bool(SIP.fullmatch(uri))
        case {"type": "websocket", "uri": str(uri)}:
            return uri.startswith(("ws://", "wss://"))
    return False


def exotel_error(status: int, message: str, code: str) -> web.Response:
    body = {"RestException": {"Status": status, "Message": message, "Code": code}}
    return web.json_response(body, status=status)
