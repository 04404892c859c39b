"""The client of a provider's REST API: dial, hang up, transfer."""

import asyncio
import os
import ssl
from dataclasses import replace
from pathlib import Path
from time import time

import aiohttp
from yarl import URL

from offhook.telephony.carriers.rest.providers import api
from offhook.telephony.carriers.rest.request import DialRequest, RestError, RestRequest
from offhook.telephony.carriers.settings import CarrierSettings

CONNECT_TIMEOUT_S = 5.0
"""Time limit in s for connecting, TLS included; then the request has failed."""
RESPONSE_TIMEOUT_S = 15.0
"""Time limit in s for a whole request, from connecting to the last byte of the response; then it
has failed, although the provider may have carried it out."""
RETRY_DELAY_S = 0.5
"""Delay before the one retry after a failed connection."""
MAX_RESPONSE_BYTES = 256 * 1024
"""Maximum size of a response, of which a call resource has about 2 kB; with a longer one the
request has failed."""

_PEM_BEGINS = "-----BEGIN "


class CarrierRestClient:
    """The REST API of one carrier. Its methods raise RestError, whose text is written for users."""

    def __init__(self, settings: CarrierSettings, session: aiohttp.ClientSession) -> None:
        """`session` is not closed here. Raises RestError if the private key cannot be read."""
        self._settings = _with_key(settings)
        self._session = session

    async def dial(
        self,
        to: str,
        caller: str,
        webhook_url: str,
        status_url: str = "",
        ring_seconds: float = 60.0,
        stream_url: str = "",
    ) -> str:
        """Place a call to a number (E.164) or SIP URI and return the provider's call id, before it
        rings. `caller` "" means the carrier's own number. When the call is answered the provider
        requests `webhook_url`; Exotel and Telnyx Call Control connect to `stream_url` (wss://)
        instead. `status_url` receives the progress of the call."""
        provider = api(self._settings)
        caller = caller or self._settings.number
        call = DialRequest(to, caller, webhook_url, status_url, ring_seconds, stream_url)
        # Never retried: the call may have been placed although no response came.
        return provider.read_dial(*await self._request(provider.title, provider.dial(call)))

    async def hang_up(self, call_id: str) -> None:
        """End a call, ringing or answered; one that has already ended is not an error."""
        provider = api(self._settings)
        request = provider.hang_up(call_id)
        provider.read_hang_up(*await self._request(provider.title, request, tries=2))

    async def transfer(self, call_id: str, target: str, outcome_url: str = "") -> None:
        """Connect the far end of a call to a number (E.164) or SIP URI instead of us. Returns once
        the provider accepts, before anyone has answered; how it ends the provider says at
        `outcome_url`, if it can."""
        provider = api(self._settings)
        request = provider.transfer(call_id, target, outcome_url)
        provider.read_transfer(*await self._request(provider.title, request))

    def control(self, call_id: str) -> "CallControl":
        """Return the `CarrierControl` of one call, for its leg."""
        return CallControl(self, call_id, api(self._settings).ends_calls)

    async def _request(self, title: str, request: RestRequest, tries: int = 1) -> tuple[int, bytes]:
        while True:
            tries -= 1
            try:
                return await self._send(title, request)
            except aiohttp.ConnectionTimeoutError:
                raise RestError(
                    0,
                    f"{title} cannot be reached: no connection within {CONNECT_TIMEOUT_S:g} s: "
                    "check rest_url and the network",
                ) from None
            except TimeoutError:
                raise RestError(
                    0,
                    f"{title} did not answer within {RESPONSE_TIMEOUT_S:g} s: the request may "
                    "have been carried out all the same",
                ) from None
            except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
                if tries == 0 or not isinstance(error, aiohttp.ClientConnectionError):
                    raise RestError(0, f"{title} cannot be reached: {_describe(error)}") from None
            await asyncio.sleep(RETRY_DELAY_S)

    async def _send(self, title: str, request: RestRequest) -> tuple[int, bytes]:
        headers = {
            **request.headers,
            "Authorization": request.auth.header(time()),
            "Accept-Encoding": "identity",
            # A kept-alive connection may be closed by the provider just as we dial on it, and then
            # it is unknown whether there is a call.
            "Connection": "close",
        }
        timeout = aiohttp.ClientTimeout(total=RESPONSE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        async with self._session.request(
            request.method,
            URL(request.url, encoded=True),
            data=request.body or None,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,  # never send our credentials elsewhere
        ) as answer:
            body = bytearray()
            async for chunk in answer.content.iter_chunked(MAX_RESPONSE_BYTES):
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise RestError(
                        answer.status,
                        f"{title}'s response is longer than {MAX_RESPONSE_BYTES} bytes: "
                        "check rest_url",
                    )
            return answer.status, bytes(body)


class CallControl:
    """Hangs up and transfers one call through the REST API."""

    def __init__(self, rest: CarrierRestClient, call_id: str, ends_calls: bool) -> None:
        self._rest = rest
        self._call_id = call_id
        self._ends_calls = ends_calls

    async def hang_up(self) -> None:
        """Hang up. No-op if the end of the stream ends the call. Raises RestError."""
        if self._ends_calls:
            await self._rest.hang_up(self._call_id)

    async def transfer(self, target: str, outcome_url: str = "") -> None:
        """Transfer the call. Raises RestError."""
        await self._rest.transfer(self._call_id, target, outcome_url)


def _with_key(settings: CarrierSettings) -> CarrierSettings:
    """Read the private key, which may be given as a file name."""
    key = settings.api_key
    if settings.provider != "vonage" or not key or key.lstrip().startswith(_PEM_BEGINS):
        return settings
    try:
        return replace(settings, api_key=Path(key).read_text())
    except (OSError, ValueError) as error:
        # Do not show the path: it may be a malformed key.
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise RestError(
            0, f"carrier {settings.name!r}: cannot read the file that api_key names: {why}"
        ) from None


def _describe(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate of {error.host} is not trusted"
        case aiohttp.ClientConnectorDNSError():
            return f"{error.host} not found in DNS, check rest_url and the network"
        case aiohttp.ClientSSLError():
            return f"TLS with {error.host} failed, check rest_url"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno or 0
            why = os.strerror(number).lower() if number > 0 else "no connection"
            return f"{why} ({error.host}:{error.port}), check rest_url and the network"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return "it closed the connection before the response was complete"
        case aiohttp.ClientResponseError():
            return "the server does not speak HTTP, check rest_url"
        case _:
            return "the connection was lost"
