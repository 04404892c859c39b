"""Asterisk's WebSocket channels: known by a password, a token or their address."""

from collections.abc import Mapping
from typing import ClassVar

from offhook.telephony.carriers.auth.signatures import (
    TOKEN_PARAMETER,
    Nonces,
    SignedRequest,
    check_address,
    check_password,
    is_listed,
)
from offhook.telephony.carriers.chan_websocket.stream import ChanWebSocketStream
from offhook.telephony.carriers.provider import Provider


class ChanWebSocket(Provider):
    name = "chan_websocket"
    meanings: ClassVar = {"account": "the user", "secret": "the password"}
    required = ()
    proves_calls = False
    protocols = ("media",)

    def authenticate(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        if is_listed(self.settings, request.peer):
            return
        if not self.settings.secret:
            check_address(self.settings, request)
        check_password(self.settings, request, self.settings.account)

    def stream(self, query: Mapping[str, str]) -> ChanWebSocketStream:
        own = {name: value for name, value in query.items() if name != TOKEN_PARAMETER}
        return ChanWebSocketStream(own)
