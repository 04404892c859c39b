"""Asking a provider's REST: dial, hang up, transfer."""

import asyncio
import os
import ssl
from dataclasses import replace
from pathlib import Path
from time import time

import aiohttp
from yarl import URL

from offhook.telephony.carriers.rest.providers import api
from offhook.telephony.carriers.rest.request import Dial, RestError, RestRequest
from offhook.telephony.carriers.settings import CarrierSettings

CONNECT_S = 5.0
"""For a connection with TLS."""
ANSWER_S = 15.0
"""For the whole of a request, from the connection to the last byte of the answer."""
RETRY_S = 0.5
"""Between a connection that failed and the one other try."""
MAX_ANSWER_BYTES = 256 * 1024
"""A call resource has some 2 kB."""

_PEM_BEGINS = "-----BEGIN "


class Rest:
    """The REST of one carrier. All it does raises RestError, whose text is for people."""

    def __init__(self, settings: CarrierSettings, session: aiohttp.ClientSession) -> None:
        """`session` stays the caller's. Raises RestError for a private key that is not there."""
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
        """Place a call to a number (E.164) or SIP URI; returns the provider's id of it, while it
        does not ring yet. `caller` "" for the carrier's own number. Once it is answered,
        the provider asks `webhook_url` what to do; Exotel, which cannot, is told `stream_url`
        (wss://), and so are applications of Telnyx' Call Control. `status_url` hears how it goes.
        """
        provider = api(self._settings)
        caller = caller or self._settings.number
        call = Dial(to, caller, webhook_url, status_url, ring_seconds, stream_url)
        # Never asked twice: the call may have been placed though no answer came.
        return provider.read_dial(*await self._ask(provider.title, provider.dial(call)))

    async def hang_up(self, call_id: str) -> None:
        """End a call, whether it rings or talks; one that has ended already is no error."""
        provider = api(self._settings)
        request = provider.hang_up(call_id)
        provider.read_hang_up(*await self._ask(provider.title, request, tries=2))

    async def transfer(self, call_id: str, target: str) -> None:
        """Connect the far end of a call with a number (E.164) or SIP URI instead of us; returns
        when the provider has taken it on, before anyone has answered there."""
        provider = api(self._settings)
        request = provider.transfer(call_id, target)
        provider.read_transfer(*await self._ask(provider.title, request))

    def control(self, call_id: str) -> "Control":
        """Of one call, for its leg."""
        return Control(self, call_id, api(self._settings).ends_calls)

    async def _ask(self, title: str, request: RestRequest, tries: int = 1) -> tuple[int, bytes]:
        while True:
            tries -= 1
            try:
                return await self._send(title, request)
            except aiohttp.ConnectionTimeoutError:
                raise RestError(
                    0,
                    f"{title} cannot be reached: no connection within {CONNECT_S:g} s: "
                    "check rest_url and the network",
                ) from None
            except TimeoutError:
                raise RestError(
                    0,
                    f"{title} did not answer within {ANSWER_S:g} s: it may have done what "
                    "it was asked all the same",
                ) from None
            except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
                if tries == 0 or not isinstance(error, aiohttp.ClientConnectionError):
                    raise RestError(0, f"{title} cannot be reached: {_why(error)}") from None
            await asyncio.sleep(RETRY_S)

    async def _send(self, title: str, request: RestRequest) -> tuple[int, bytes]:
        headers = {
            **request.headers,
            "Authorization": request.auth.header(time()),
            "Accept-Encoding": "identity",
            # One that was kept open may be closed by the provider while we dial on it, and then
            # nobody knows whether there is a call.
            "Connection": "close",
        }
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S)
        async with self._session.request(
            request.method,
            URL(request.url, encoded=True),
            data=request.body or None,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,  # nobody else is shown our credentials
        ) as answer:
            body = bytearray()
            async for chunk in answer.content.iter_chunked(MAX_ANSWER_BYTES):
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise RestError(
                        answer.status,
                        f"{title}'s answer is longer than {MAX_ANSWER_BYTES} bytes: "
                        "is rest_url right?",
                    )
            return answer.status, bytes(body)


class Control:
    """What a leg asks of its call."""

    def __init__(self, rest: Rest, call_id: str, ends_calls: bool) -> None:
        self._rest = rest
        self._call_id = call_id
        self._ends_calls = ends_calls

    async def hang_up(self) -> None:
        """Raises RestError. Nothing to ask where the end of the stream ends the call."""
        if self._ends_calls:
            await self._rest.hang_up(self._call_id)

    async def transfer(self, target: str) -> None:
        """Raises RestError."""
        await self._rest.transfer(self._call_id, target)


def _with_key(settings: CarrierSettings) -> CarrierSettings:
    """A private key may be given as the file it is in."""
    key = settings.api_key
    if settings.provider != "vonage" or not key or key.lstrip().startswith(_PEM_BEGINS):
        return settings
    try:
        return replace(settings, api_key=Path(key).read_text())
    except (OSError, ValueError) as error:
        # Not the path: it may be a key that somebody wrote wrongly.
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise RestError(
            0, f"carrier {settings.name!r}: the file that api_key names cannot be read: {why}"
        ) from None


def _why(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate of {error.host} is not to be trusted"
        case aiohttp.ClientConnectorDNSError():
            return f"DNS has no {error.host}, check rest_url and the network"
        case aiohttp.ClientSSLError():
            return f"TLS with {error.host} failed, check rest_url"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno or 0
            why = os.strerror(number).lower() if number > 0 else "no connection"
            return f"{why} ({error.host}:{error.port}), check rest_url and the network"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return "it closed the connection without a whole answer"
        case aiohttp.ClientResponseError():
            return "what answered does not speak HTTP, check rest_url"
        case _:
            return "the connection broke"
