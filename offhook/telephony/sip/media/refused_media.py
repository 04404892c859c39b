"""Says once a call why media of the far end are not taken."""

from loguru import logger

from offhook.telephony.sip.media.latch import Address
from offhook.telephony.sip.media.srtp import SdesSrtp

SRTP_FAILURES_LOGGED = 25
"""SRTP packets in a row that are not authentic, half a second of audio, after which the log says
why: once a call."""


class RefusedMedia:
    """The packets of one call that are refused, for the log."""

    def __init__(self, call_id: str) -> None:
        self._call_id = call_id
        self._foreign_logged = False
        self._failures, self._failed_at = 0, 0.0
        """SRTP packets of the far end that failed one after the other, and when the last did."""
        self._failures_logged = False

    def add_foreign(self, source: Address, expected: Address | None) -> None:
        """A packet is from elsewhere than the SDP says."""
        if self._foreign_logged:
            return
        self._foreign_logged = True
        logger.warning(
            "{}: RTP from {}:{} is refused, the SDP says {}:{}: if it is the caller's, and the "
            'caller a trunk\'s, set its media_from = "anywhere"',
            self._call_id,
            *source,
            *(expected or ("nothing", 0)),
        )

    def add_failure(
        self, data: bytes, source: Address, srtp: SdesSrtp, authentic_at: float, now: float
    ) -> None:
        """A packet of the far end is not authentic; the last that was came at `authentic_at`."""
        if self._failures_logged:
            return
        if authentic_at >= self._failed_at:  # others were authentic meanwhile
            self._failures = 0
        self._failures += 1
        self._failed_at = now
        if self._failures < SRTP_FAILURES_LOGGED:
            return
        self._failures_logged = True
        why = "its key is not that of its SDP, or the packets were changed on the way"
        if srtp.has_restarted(data):
            why = "its sequence numbers have begun again under the same key (RFC 3711 §3.3.2)"
        logger.warning("{}: SRTP from {}:{} is not authentic: {}", self._call_id, *source, why)
