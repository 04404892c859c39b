"""The REST of Twilio, Telnyx, Plivo, Vonage and Exotel, on a port of this machine.

Each provider checks who asks and what it must be told as its documents say, keeps the calls it was
asked to place, and answers in its own words, with its own errors. `asked` is all it was asked.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any
from xml.etree import ElementTree

from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding

from offhook.telephony.carriers.settings import CarrierSettings
from tests.telephony.carriers.rest.fake_rest_words import (
    DIGITS,
    E164,
    EXOTEL_SID,
    NUMBER,
    SIP,
    TELNYX_APPLICATION,
    TOKEN,
    TWILIO_TEST_NUMBERS,
    VONAGE_APPLICATION,
    Asked,
    Call,
    basic,
    exotel_error,
    plivo_error,
    plivo_refusal,
    read,
    settings_for,
    telnyx_error,
    telnyx_missing,
    telnyx_numbers,
    telnyx_refusal,
    telnyx_stream,
    twilio_call,
    twilio_error,
    twilio_refusal,
    unbase64,
    vonage_endpoint,
    vonage_error,
    vonage_key,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeRest:
    """An async context manager, whose `url` is where all five are."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.calls: dict[str, Call] = {}
        self.next: list[Handler] = []
        """Answers that come before it looks at what it was asked, the first one first."""
        self.silent = asyncio.Event()
        """Set: nothing is answered."""
        self.url = ""
        self._ids = itertools.count(1)
        self._tokens_seen: set[str] = set()

    async def __aenter__(self) -> "FakeRest":
        app = web.Application()
        v1, calls = "/v1/Account/{account}/Call/", "/v2/calls"
        accounts = "/2010-04-01/Accounts/{account}"
        for method, path, handler in (
            ("POST", accounts + "/Calls.json", self._twilio_create),
            ("POST", accounts + "/Calls/{call}.json", self._twilio_update),
            ("POST", calls + "/{call}/actions/{action}", self._telnyx_command),
            ("POST", "/v2/texml/calls/{application}", self._telnyx_texml),
            ("POST", v1, self._plivo_create),
            ("POST", v1 + "{call}/", self._plivo_transfer),
            ("DELETE", v1 + "{call}/", self._plivo_hang_up),
            ("POST", "/v1/calls", self._vonage_create),
            ("PUT", "/v1/calls/{call}", self._vonage_update),
            ("POST", "/v1/Accounts/{account}/Calls/connect.json", self._exotel_connect),
        ):
            app.router.add_route(method, path, self._door(handler))
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def settings(self, provider: str, **changes: Any) -> CarrierSettings:
        return settings_for(provider, self.url, **changes)

    def call(self, provider: str, state: str = "in-progress", **values: Any) -> Call:
        """A call of the provider's, as one that somebody placed to us."""
        n = next(self._ids)
        uuid = f"{n:08x}-1111-4222-8333-444444444444"
        call_id = {
            "twilio": f"CA{n:032x}",
            "telnyx": f"v3:{n:04d}MdI91X4lWFEs7IgbBEOT9M4AigoY08M0WWZFISt1Yw2axZ_IiE4pqg",
            "exotel": f"{n:032x}",
        }.get(provider, uuid)
        self.calls[call_id] = Call(provider, call_id, values, state)
        return self.calls[call_id]

    def answer_next(
        self, status: int, body: str | bytes | dict[str, Any] = b"", **headers: str
    ) -> None:
        data = json.dumps(body) if isinstance(body, dict) else body
        raw = data.encode() if isinstance(data, str) else data
        names = {name.replace("_", "-"): value for name, value in headers.items()}

        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, body=raw, headers=names)

        self.next.append(answer)

    def _door(self, handler: Callable[[Asked, web.Request], web.Response]) -> Any:
        provider = handler.__name__.split("_")[1]

        async def handle(request: web.Request) -> web.StreamResponse:
            asked = await read(provider, request)
            self.asked.append(asked)
            if self.silent.is_set():
                await asyncio.sleep(60)
            if self.next:
                return await self.next.pop(0)(request)
            return handler(asked, request)

        return handle

    def _find(self, provider: str, request: web.Request) -> Call | None:
        call = self.calls.get(request.match_info["call"])
        return call if call and call.provider == provider else None

    # Twilio

    def _twilio_create(self, asked: Asked, request: web.Request) -> web.Response:
        if error := twilio_refusal(asked, request):
            return error
        form = asked.values
        if not form.get("To"):
            return twilio_error(400, 21201, "No 'To' number is specified")
        if not form.get("From"):
            return twilio_error(400, 21213, "'From' phone number is required")
        if not any(form.get(name) for name in ("Url", "Twiml", "ApplicationSid")):
            return twilio_error(400, 21205, "Url parameter is required.")
        for name in ("To", "From"):
            if read_error := TWILIO_TEST_NUMBERS.get((name, form[name])):
                return twilio_error(400, *read_error)
        if not E164.fullmatch(form["To"]) and not SIP.fullmatch(form["To"]):
            return twilio_error(400, 21211, f"Invalid 'To' Phone Number: {form['To']}")
        if form["From"] != NUMBER:
            text = f"The source phone number provided, {form['From']}, is not yet verified"
            return twilio_error(400, 21210, text)
        call = self.call("twilio", "queued", **form)
        return web.json_response(twilio_call(call), status=201)

    def _twilio_update(self, asked: Asked, request: web.Request) -> web.Response:
        if error := twilio_refusal(asked, request):
            return error
        call = self._find("twilio", request)
        if call is None:
            text = f"The requested resource {request.path} was not found"
            return twilio_error(404, 20404, text)
        form = asked.values
        if "Status" in form:
            if form["Status"] not in ("completed", "canceled"):
                return twilio_error(400, 21218, "Invalid status")
            if call.state == "completed":
                return twilio_error(400, 21220, "Call is not in-progress. Cannot redirect.")
            call.state = "completed"
        elif "Twiml" in form or "Url" in form:
            if call.state != "in-progress":
                return twilio_error(400, 21220, "Call is not in-progress. Cannot redirect.")
            if "Twiml" in form:
                ElementTree.fromstring(form["Twiml"])
            call.transferred = form.get("Twiml") or form["Url"]
        return web.json_response(twilio_call(call))

    # Telnyx

    def _telnyx_texml(self, asked: Asked, request: web.Request) -> web.Response:
        if error := telnyx_refusal(asked):
            return error
        body = asked.values
        if request.match_info["application"] != TELNYX_APPLICATION:
            return telnyx_error(404, "10005", "Resource not found", "no such TeXML application")
        if error := telnyx_missing(body, "To", "From"):
            return error
        if error := telnyx_numbers(body, "To", "From"):
            return error
        call = self.call("telnyx", "queued", **body)
        answer = {"from": body["From"], "to": body["To"], "status": "queued", "call_sid": call.id}
        return web.json_response(answer)

    def _telnyx_command(self, asked: Asked, request: web.Request) -> web.Response:
        if error := telnyx_refusal(asked):
            return error
        call = self._find("telnyx", request)
        if call is None:
            text = "The call_control_id provided was not valid."
            return telnyx_error(422, "90015", "Invalid Call Control ID", text)
        if call.state == "completed":
            text = "This call is no longer active and can't receive commands."
            return telnyx_error(422, "90018", "Call has already ended", text)
        match request.match_info["action"]:
            case "hangup":
                call.state = "completed"
            case "transfer":
                missing = telnyx_missing(asked.values, "to")
                if error := missing or telnyx_numbers(asked.values, "to"):
                    return error
                call.transferred = asked.values
            case "streaming_start":
                if error := telnyx_missing(asked.values, "stream_url") or telnyx_stream(asked):
                    return error
                call.streams.append(asked.values["stream_url"])
            case _:
                return telnyx_error(404, "10005", "Resource not found", "no such command")
        return web.json_response({"data": {"result": "ok"}})

    # Plivo

    def _plivo_create(self, asked: Asked, request: web.Request) -> web.Response:
        if error := plivo_refusal(asked, request):
            return error
        for name in ("from", "to", "answer_url"):
            if not asked.values.get(name):
                return plivo_error(400, f"{name} parameter not present")
        # "<" lies between the destinations of a bulk call.
        for to in asked.values["to"].split("<"):
            if not DIGITS.fullmatch(to) and not SIP.fullmatch(to):
                return plivo_error(400, f"{to} is not a valid phone number")
        calls = [
            self.call("plivo", "queued", **asked.values) for _ in asked.values["to"].split("<")
        ]
        ids = [call.id for call in calls]
        answer = {
            "api_id": "ff09383e-246f-11ed-a1fc-0242ac110004",
            "message": "call fired" if len(ids) == 1 else "calls fired",
            "request_uuid": ids[0] if len(ids) == 1 else ids,
        }
        return web.json_response(answer, status=201)

    def _plivo_transfer(self, asked: Asked, request: web.Request) -> web.Response:
        if error := plivo_refusal(asked, request):
            return error
        call = self._find("plivo", request)
        if call is None or call.state == "completed":
            return plivo_error(404, "not found")
        if asked.values.get("legs", "aleg") in ("aleg", "both") and not asked.values.get(
            "aleg_url"
        ):
            return plivo_error(400, "aleg_url is required")
        call.transferred = asked.values.get("aleg_url")
        answer = {"message": "call transferred", "call_uuids": [call.id], "api_id": "08c94608"}
        return web.json_response(answer, status=202)

    def _plivo_hang_up(self, asked: Asked, request: web.Request) -> web.Response:
        if error := plivo_refusal(asked, request):
            return error
        call = self._find("plivo", request)
        if call is None or call.state == "completed":
            return plivo_error(404, "not found")
        call.state = "completed"
        return web.Response(status=204)

    # Vonage

    def _vonage_create(self, asked: Asked, request: web.Request) -> web.Response:
        if error := self._vonage_refusal(asked):
            return error
        body = asked.values
        wrong = {}
        if not isinstance(body.get("to"), list) or len(body["to"]) != 1:
            wrong["to"] = "Is required."
        elif not vonage_endpoint(body["to"][0]):
            wrong["to"] = "Invalid endpoint."
        if not vonage_endpoint(body.get("from")):
            wrong["from"] = "Invalid endpoint."
        if ("ncco" in body) == ("answer_url" in body):
            wrong["answer_url"] = "Either ncco or answer_url is required."
        elif "answer_url" in body and not isinstance(body["answer_url"], list):
            wrong["answer_url"] = "Must be an array."
        if not 1 <= body.get("ringing_timer", 60) <= 120:
            wrong["ringing_timer"] = "Must be between 1 and 120."
        if wrong:
            return vonage_error(400, "Bad Request", invalid_parameters=wrong)
        call = self.call("vonage", "queued", **body)
        answer = {
            "uuid": call.id,
            "status": "started",
            "direction": "outbound",
            "conversation_uuid": "CON-f972836a-550f-45fa-956c-12a2ab5b7d22",
        }
        return web.json_response(answer, status=201)

    def _vonage_update(self, asked: Asked, request: web.Request) -> web.Response:
        if error := self._vonage_refusal(asked):
            return error
        call = self._find("vonage", request)
        if call is None or call.state == "completed":
            return vonage_error(404, "Not Found")
        match asked.values:
            case {"action": "hangup"}:
                call.state = "completed"
            case {"action": "transfer", "destination": {"type": "ncco", "ncco": [*actions]}}:
                for action in actions:
                    if action["action"] == "connect" and not all(
                        map(vonage_endpoint, action["endpoint"])
                    ):
                        wrong = {"destination": "Invalid endpoint."}
                        return vonage_error(400, "Bad Request", invalid_parameters=wrong)
                call.transferred = actions
            case {"action": "transfer", "destination": {"type": "ncco", "url": [url]}}:
                call.transferred = url
            case _:
                return vonage_error(400, "Bad Request", invalid_parameters={"action": "Invalid."})
        return web.Response(status=204)

    def _vonage_refusal(self, asked: Asked) -> web.Response | None:
        """Reads the token by RFC 7515 and RFC 7519, knowing only the public key."""
        scheme, _, token = asked.headers.get("Authorization", "").partition(" ")
        try:
            head, body, signature = token.split(".")
            vonage_key().public_key().verify(
                unbase64(signature), f"{head}.{body}".encode(), padding.PKCS1v15(), hashes.SHA256()
            )
            claims = json.loads(unbase64(body))
            now = time.time()
            fine = (
                scheme == "Bearer"
                and json.loads(unbase64(head)) == {"alg": "RS256", "typ": "JWT"}
                and claims["application_id"] == VONAGE_APPLICATION
                and claims["iat"] - 5 <= now < claims["exp"] <= claims["iat"] + 24 * 3600
                and claims["jti"] not in self._tokens_seen
            )
        except (ValueError, KeyError, InvalidSignature):
            fine = False
        if fine:
            self._tokens_seen.add(claims["jti"])
            return None
        answer = {
            "type": "https://developer.nexmo.com/api-errors#unauthorized",
            "title": "Unauthorized",
            "detail": "You did not provide correct credentials.",
            "instance": "bf0ca0bf927b3b52e3cb03217e1a1ddf",
        }
        return web.json_response(answer, status=401)

    # Exotel

    def _exotel_connect(self, asked: Asked, request: web.Request) -> web.Response:
        if basic(asked) != ("the-api-key", TOKEN):
            text = "Authentication failed. Invalid API Key or Token."
            return exotel_error(401, text, "UNAUTHORIZED")
        if request.match_info["account"] != EXOTEL_SID:
            return exotel_error(403, "The account is not yours", "FORBIDDEN")
        form = asked.values
        streams = form.get("StreamUrl", "").startswith(("ws://", "wss://"))
        streams = streams and form.get("StreamType") == "bidirectional"
        if not form.get("From") or not form.get("CallerId") or not (streams or form.get("Url")):
            return exotel_error(400, "Mandatory Parameter missing", "34001")
        call = self.call("exotel", "queued", **form)
        answer = {
            "Sid": call.id,
            "AccountSid": EXOTEL_SID,
            "Status": "in-progress",
            "From": form["From"],
        }
        return web.json_response({"Call": answer})
