"""The legs of a WHIP call: one peer publishes the caller's voice, others play the agent's.

    publisher ── RTP ──> PublisherLeg ──> the call
    players  <── RTP ── PlayerLeg ×n <── PublisherLeg <── the call

The call has one leg, the publisher's: it receives from the publisher and sends to the players.
"""

from typing import Any

from aiortc import RTCDataChannel

from offhook.media.leg import LegError
from offhook.media.pcm import PACKET_MS, Pcm
from offhook.signaling.peer_io import PeerLeg

MAX_PLAYERS = 4
"""Maximum players of one call, each of which is sent audio encoded for it alone; further ones are
refused with 503 and Retry-After."""
FIRST_PLAYER_MS = 5000
"""How long the agent's first words wait for a player, which can join only once the call exists."""


def _ignore(channel: RTCDataChannel) -> None:
    """Takes a data channel that means nothing here."""


class PlayerLeg(PeerLeg):
    """A WHEP peer: it is sent what a publisher's call says, and what it sends is ignored."""

    direction = "sendonly"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_channel = _ignore

    def forward(self, said: Pcm | None, now: float) -> None:
        """Send the 20 ms of a tick, or nothing; called in each tick of the publisher."""
        self._send(said, now)


class PublisherLeg(PeerLeg):
    """A WHIP peer: it is heard by the call, and its players hear the call."""

    direction = "recvonly"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.on_channel = _ignore
        self.players: list[PlayerLeg] = []
        """At most MAX_PLAYERS, connected or not."""
        self._waiting = True
        """The agent's first words wait for a player."""

    def send_dtmf(self, digits: str) -> None:
        raise LegError("this leg cannot send DTMF")

    def _next_packet(self) -> Pcm | None:
        if self._waiting:
            played = any(player.connected for player in self.players)
            self._waiting = not played and self.ticks * PACKET_MS < FIRST_PLAYER_MS
            if self._waiting:
                return None
        return self.playout.pop()

    def _send(self, said: Pcm | None, now: float) -> None:
        super()._send(None, now)  # RTCP
        for player in tuple(self.players):
            player.forward(said, now)
