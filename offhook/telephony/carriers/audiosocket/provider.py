"""Asterisk's AudioSocket: a TCP connection for each call, from addresses that are known."""

from collections.abc import Mapping

from offhook.telephony.carriers.audiosocket.server_io import AudioSocketServer
from offhook.telephony.carriers.audiosocket.stream import AudioSocketStream
from offhook.telephony.carriers.auth.signatures import Nonces, SignedRequest, check_address
from offhook.telephony.carriers.provider import OpenLeg, Provider


class AudioSocket(Provider):
    name = "audiosocket"
    required = ()
    proves_calls = False
    listens = "AudioSocket"

    def authenticate(self, request: SignedRequest, now: float, seen: Nonces) -> None:
        check_address(self.settings, request)

    def stream(self, query: Mapping[str, str]) -> AudioSocketStream:
        return AudioSocketStream()

    def listener(self, host: str, open_leg: OpenLeg) -> AudioSocketServer:
        settings = self.settings
        return AudioSocketServer(host, settings.port, settings.addresses, open_leg)
