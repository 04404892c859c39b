"""A leg whose packets get lost and come late, in both directions."""

import asyncio
from typing import Any

from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.web.app.callers.way import Way


class ImpairedLeg(RtpLeg):
    """An RTP leg on a bad network, as `way` describes it."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.way = Way()

    def receive_rtp(self, data: bytes, now: float) -> None:
        if self.way.loses():
            return
        if delay := self.way.delay_s():
            loop = asyncio.get_running_loop()
            loop.call_later(delay, super().receive_rtp, data, now + delay)
        else:
            super().receive_rtp(data, now)

    def _send_rtp(self, packet: bytes) -> None:
        if self.way.loses():
            return
        if delay := self.way.delay_s():
            asyncio.get_running_loop().call_later(delay, self._send_late, packet)
        else:
            super()._send_rtp(packet)  # type: ignore[safe-super]

    def _send_late(self, packet: bytes) -> None:
        if self.closed is None:
            super()._send_rtp(packet)  # type: ignore[safe-super]
