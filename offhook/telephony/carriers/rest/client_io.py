"""The client of a provider's REST API: dial, hang up, transfer."""

import asyncio
import os
import ssl
from time import time

import aiohttp
from yarl import URL

from offhook.media.answer_status import Mode
from offhook.telephony.carriers.rest.request import Api, DialRequest, RestError, RestRequest
from offhook.telephony.carriers.streams.stream import Format

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


class CarrierRestClient:
    """The REST API of one carrier. Its methods raise RestError, whose text is written for users."""

    def __init__(self, api: Api, session: aiohttp.ClientSession) -> None:
        """`session` is not closed here."""
        self.api = api
        self._session = session

    async def dial(
        self,
        to: str,
        caller: str,
        webhook_url: str,
        status_url: str = "",
        ring_seconds: float = 60.0,
        stream_url: str = "",
        detection: Mode | None = None,
    ) -> str:
        """Place a call to a number (E.164) or SIP URI and return the provider's call id, before it
        rings. `caller` "" means the carrier's own number. When the call is answered the provider
        requests `webhook_url`, or connects to `stream_url` (wss://) at once. `status_url`
        receives the progress of the call, and who has answered if `detection` asks for that."""
        caller = caller or self.api.settings.number
        call = DialRequest(to, caller, webhook_url, status_url, ring_seconds, stream_url, detection)
        # Never retried: the call may have been placed although no response came.
        return self.api.read_dial(*await self._request(self.api.dial(call)))

    async def hang_up(self, call_id: str) -> None:
        """End a call, ringing or answered; one that has already ended is not an error."""
        self.api.read_hang_up(*await self._request(self.api.hang_up(call_id), tries=2))

    async def transfer(self, call_id: str, target: str, outcome_url: str = "") -> None:
        """Connect the far end of a call to a number (E.164) or SIP URI instead of us. Returns once
        the provider accepts, before anyone has answered; how it ends the provider says at
        `outcome_url`, if it can."""
        request = self.api.transfer(call_id, target, outcome_url)
        self.api.read_transfer(*await self._request(request))

    async def connect(self, call_id: str, stream_url: str, form: Format) -> None:
        """Connect a call to a stream, both ways in this format, if the API `connects`."""
        request = self.api.connect(call_id, stream_url, form)
        self.api.read_transfer(*await self._request(request))

    async def _request(self, request: RestRequest, tries: int = 1) -> tuple[int, bytes]:
        title = self.api.title
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
