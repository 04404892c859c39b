"""The leg of a call that we record for another system (RFC 7866): its streams are received, and
nothing is sent.

Each stream is a SipLeg that only receives, with a jitter buffer and decoders of its own. Together
they look like one leg: what the first of them has is heard from the caller, and what the others
have, mixed, is as if said to the caller. So the two sides are the two tracks of a recording.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from offhook.media.codecs.resample import Resampler
from offhook.media.leg import Leg, LegListener, LegStatistics, NoPorts
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, Pcm
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import NotAcceptable
from offhook.telephony.sip.media.offer_answer import Direction
from offhook.telephony.sip.messages.recording_metadata import Metadata
from offhook.telephony.sip.messages.sdp import Media, SdpError
from offhook.telephony.sip.siprec.recorded_streams import (
    LIVE,
    TABLE,
    OfferedStream,
    OurDescription,
    StreamAction,
    StreamEvent,
    StreamState,
    labelled,
    offered_streams,
    refused,
)

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


@dataclass(eq=False)
class RecordedStream:
    """One stream of a recorded call."""

    media: Media
    """As the far end has offered it last."""
    label: str = ""
    state: StreamState = StreamState.NEW
    leg: SipLeg | None = None
    """Receives it while it is live."""
    heard: Pcm = field(default_factory=lambda: _SILENCE)
    """What was received in this tick."""

    def receive(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        """Take what its leg has received in a tick."""
        self.heard = heard


class RecordedLeg(Leg):
    """The streams of one recorded call as a leg."""

    def __init__(self, call_id: str, make_leg: Callable[[], SipLeg]) -> None:
        """`make_leg` makes the leg of a stream."""
        super().__init__(call_id)
        self.metadata: Metadata | None = None
        """What is known of the recorded call; None before any metadata."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when streams have come or gone, or who takes part has changed."""
        self._make_leg = make_leg
        self._streams: list[RecordedStream] = []
        """By their places in the description."""
        self._description = OurDescription(random.getrandbits(62))
        self._said = Resampler(RATE_IN, RATE_OUT)

    @property
    def streams(self) -> list[RecordedStream]:
        """Returns the audio streams that there have been, the caller's first."""
        return [stream for stream in self._streams if stream.media.kind == "audio"]

    @property
    def live(self) -> list[SipLeg]:
        """Returns the legs of the streams that have not ended."""
        return [stream.leg for stream in self._streams if stream.leg is not None]

    @property
    def labels(self) -> tuple[str, ...]:
        """Returns the labels of the audio streams, the caller's first."""
        return tuple(stream.label for stream in self.streams)

    @property
    def first(self) -> RecordedStream | None:
        """Returns the stream of the caller's side: the first audio."""
        return next(iter(self.streams), None)

    # --- offer and answer ---

    async def answer(self, sdp: str) -> str:
        """Answer an offer of the recording client. Raises SdpError, NoPorts, and NotAcceptable for
        a first offer of which nothing can be received."""
        offered, first = offered_streams(sdp), not self._streams
        faults: list[NotAcceptable | NoPorts] = []
        answers = [await self._answer_stream(stream, faults) for stream in offered]
        if first and not self.live:
            raise faults[0] if faults else NotAcceptable(304, "no audio is offered")
        self._changed()
        return self._description.combined(answers)

    async def _answer_stream(
        self, offered: OfferedStream, faults: list[NotAcceptable | NoPorts]
    ) -> str | Media:
        if offered.index == len(self._streams):
            self._streams.append(RecordedStream(offered.media))
        stream = self._streams[offered.index]
        stream.media, stream.label = offered.media, offered.label
        stream.state, actions = TABLE[stream.state, offered.says]
        answer: str | Media = refused(offered.media)
        try:
            for action in actions:
                match action:
                    case StreamAction.OPEN:
                        await self._open_stream(stream)
                    case StreamAction.ANSWER:
                        assert stream.leg is not None
                        answer = labelled(stream.leg.answer(offered.sdp), offered.label)
                    case StreamAction.CLOSE:
                        await self._close_stream(stream)
        except (NotAcceptable, NoPorts) as error:
            faults.append(error)
            stream.state, _ = TABLE[stream.state, StreamEvent.ENDS]
            await self._close_stream(stream)
        if stream.leg is not None and self.connected:
            stream.leg.connect()
        return answer

    async def _open_stream(self, stream: RecordedStream) -> None:
        leg = self._make_leg()
        await leg.bind()
        leg.negotiation.only_receive()
        if self.closed is not None:  # meanwhile
            await leg.hang_up(self.closed)
            raise NotAcceptable(304, "the call is over")
        leg.listener = StreamKeys(self)
        leg.listen(stream.receive)
        stream.leg, stream.heard = leg, _SILENCE

    async def _close_stream(self, stream: RecordedStream) -> None:
        leg, stream.leg, stream.heard = stream.leg, None, _SILENCE
        if leg is not None:
            await leg.hang_up("the stream has ended")

    def offer(self, direction: Direction = "recvonly") -> str:
        """Return our description again, for a re-INVITE that asks for it or refreshes the call:
        `direction` is always that we receive."""
        return self._description.combined(
            [
                refused(stream.media)
                if stream.leg is None
                else labelled(stream.leg.offer("recvonly"), stream.label)
                for stream in self._streams
            ]
        )

    def accept(self, sdp: str) -> None:
        """Apply the answer to our offer. Raises SdpError or NotAcceptable."""
        answered = offered_streams(sdp)
        if len(answered) != len(self._streams):
            raise SdpError("the answer has another number of streams than the offer")
        for stream, answer in zip(self._streams, answered, strict=True):
            if stream.leg is not None and answer.says is not StreamEvent.ENDS:
                stream.leg.accept(answer.sdp)
                stream.state, _ = TABLE[stream.state, answer.says]
        self._changed()

    def rollback(self) -> None:
        """Withdraw our offer, which was refused."""
        for leg in self.live:
            leg.negotiation.rollback()

    def update(self, change: Metadata) -> None:
        """Take what a recording client says of the recorded call."""
        self.metadata = change if self.metadata is None else self.metadata.updated(change)
        self.on_change()

    def _changed(self) -> None:
        states = [stream.state for stream in self._streams if stream.state in LIVE]
        self.set_held(StreamState.RECEIVING not in states)
        self.on_change()

    # --- ticks ---

    def begin_tick(self) -> None:
        for leg in self.live:
            leg.begin_tick()

    def unread_since(self, at: float | None) -> None:
        for leg in self.live:
            leg.unread_since(at)

    def _receive(self, now: float) -> Pcm:
        for leg in self.live:
            leg.receive_tick(now)
            leg.send_tick(now)  # reports on what was received
        return self.first.heard if self.first is not None else _SILENCE

    def _next_packet(self) -> Pcm | None:
        others = [s.heard for s in self.streams if s is not self.first and s.leg is not None]
        return self._said.process(_mixed(others))

    def _send(self, said: Pcm | None, now: float) -> None:
        """Send nothing."""

    # --- status ---

    @property
    def codec(self) -> str:
        """The codec of the first stream."""
        return next((leg.codec for leg in self.live), "")

    @property
    def srtp(self) -> str:
        """Key exchange and suite of the first stream; "" for none."""
        return next((leg.srtp for leg in self.live), "")

    def media_timeout(
        self, now: float, initial_s: float, mid_call_s: float
    ) -> Literal["initial", "mid-call"] | None:
        """Return whether nothing was received for too long in all streams that should have
        something: one side may be silent for long."""
        due = [leg for leg in self.live if leg.receiving]
        outcomes = {leg.media_timeout(now, initial_s, mid_call_s) for leg in due}
        if not outcomes or None in outcomes:
            return None
        return "mid-call" if "mid-call" in outcomes else "initial"

    def statistics(self) -> LegStatistics:
        """Return the sums of all streams, and of quality the worst."""
        all_of = [leg.statistics() for leg in self.live]
        if not all_of:
            return LegStatistics()
        return LegStatistics(
            packets_received=sum(one.packets_received for one in all_of),
            packets_lost=sum(one.packets_lost for one in all_of),
            packets_late=sum(one.packets_late for one in all_of),
            concealed_ms=sum(one.concealed_ms for one in all_of),
            loss=max(one.loss for one in all_of),
            jitter_ms=max(one.jitter_ms for one in all_of),
            buffer_ms=max(one.buffer_ms for one in all_of),
            mos=min((one.mos for one in all_of if one.mos is not None), default=None),
        )

    # --- life ---

    def connect(self) -> None:
        for leg in self.live:
            leg.connect()
        super().connect()

    async def hang_up(self, reason: str) -> None:
        """Close the ports. The session is ended by its call. Idempotent."""
        self.close(reason)
        await asyncio.gather(*(leg.hang_up(reason) for leg in self.live))


class StreamKeys(LegListener):
    """Passes the keys that are pressed in a stream on to the recorded call."""

    def __init__(self, call: RecordedLeg) -> None:
        self._call = call

    def on_dtmf(self, digit: str) -> None:
        self._call.receive_digit(digit)


def _mixed(sounds: Sequence[Pcm]) -> Pcm:
    if len(sounds) == 1:
        return sounds[0]
    if not sounds:
        return _SILENCE
    total = np.sum(sounds, axis=0, dtype=np.int32)
    return np.clip(total, -32768, 32767).astype(np.int16)
