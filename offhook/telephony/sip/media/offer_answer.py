"""Offer and answer of one call's audio (RFC 3264): two descriptions become a plan of what to send
where and what may arrive.

payload_types.py handles payload types and keying.py encryption; this file the streams, their order,
addresses and directions, and what is kept between exchanges.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address

from offhook.telephony.sip.media.keying import (
    Dtls,
    Keying,
    KeyingError,
    Profile,
    Sdes,
    Security,
    crypto_lines_of,
    is_secure,
    new_crypto_line,
)
from offhook.telephony.sip.media.media_plan import (
    Codec,
    Direction,
    MediaPlan,
    MediaSettings,
    NotAcceptable,
    SavedMedia,
)
from offhook.telephony.sip.media.payload_types import (
    CN,
    CODECS,
    COMFORT_NOISE,
    COMFORT_NOISE_TYPE,
    EVENT,
    EVENT_CODES,
    EVENT_RATES,
    FIRST_NUMBERS,
    Numbering,
    adopt,
    choose_codec,
    choose_event,
    encoding_of,
    event_rate,
    first_number,
    listing,
    offered_codecs,
    packet_ms,
)
from offhook.telephony.sip.messages.sdp import (
    Attributes,
    Description,
    Media,
    Origin,
    RtpMap,
    SdpError,
    parse,
)

__all__ = [
    "Codec",
    "Direction",
    "Dtls",
    "MediaNegotiation",
    "MediaPlan",
    "MediaSettings",
    "NotAcceptable",
    "SavedMedia",
    "Sdes",
    "SdpError",
    "wants_ice",
]

_PROTOCOLS = frozenset(
    ("RTP/AVP", "RTP/AVPF", "RTP/SAVP", "RTP/SAVPF", "UDP/TLS/RTP/SAVP", "UDP/TLS/RTP/SAVPF")
)
_DIRECTIONS: dict[tuple[bool, bool], Direction] = {
    (True, True): "sendrecv",
    (True, False): "sendonly",
    (False, True): "recvonly",
    (False, False): "inactive",
}
"""(we send, we receive) → ours."""

_RTCP_MUX = ("rtcp-mux", None)
"""RFC 5761 §5.1.1."""


@dataclass(frozen=True)
class _Agreed:
    """The state of both ends after an exchange."""

    local: tuple[Media, ...] = ()
    """The media of our description."""
    index: int = 0
    """Index of the audio among them."""
    wanted: Direction = "sendrecv"
    """The direction we want; the plan's is what the far end leaves of it."""
    numbers: Numbering = field(default_factory=lambda: FIRST_NUMBERS)
    codecs: tuple[str, ...] = ()
    """Codecs in the order of our next offer."""
    plan: MediaPlan | None = None


class MediaNegotiation:
    """One end of a call's offers and answers, in whichever order they come.

    `address`, `port` and `rtcp_port` are where we receive, as the far end should see them;
    `fingerprint` is the value of our a=fingerprint line, "" without DTLS; `make_key(n)` returns n
    random bytes. Methods that raise change nothing.
    """

    def __init__(
        self,
        settings: MediaSettings,
        address: str,
        port: int,
        rtcp_port: int,
        session_id: int,
        fingerprint: str = "",
        make_key: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._settings = settings
        self._address = self._origin = address
        self._make_key = make_key
        self._port = port
        self._rtcp_port = rtcp_port
        self._keying = Keying(
            settings.srtp, fingerprint if settings.dtls else "", address, make_key
        )
        self._session_id = session_id
        self._version = 0
        self._sent: tuple[Media, ...] = ()
        self._agreed = _Agreed(codecs=settings.codecs)
        self._offered: _Agreed | None = None

    @property
    def plan(self) -> MediaPlan | None:
        """The plan in force; None before the first exchange is complete."""
        return self._agreed.plan

    @property
    def wanted(self) -> Direction:
        """The direction we currently want."""
        return self._agreed.wanted

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Profiles our first offer may use, in the order to try; none once media are negotiated,
        since later offers keep the profile."""
        return () if self._agreed.local else self._keying.profiles

    def only_receive(self) -> None:
        """Have our answers from now on leave sending to the far end."""
        self._agreed = replace(self._agreed, wanted="recvonly")

    def offer(self, direction: Direction = "sendrecv", profile: Profile | None = None) -> str:
        """Return our offer with everything we support; payload types, keys and order of the call
        are kept (RFC 3264 §8). `profile` applies to a first offer; None for the default."""
        agreed = self._agreed
        protocol: str
        if agreed.local:
            protocol, keying = self._next_offer_keying(agreed)
        else:
            protocol = chosen = profile or self._keying.profiles[0]
            keying = self._keying.first_offer(chosen)
        audio = self._audio(
            protocol,
            self._offered_payloads(agreed),
            self._settings.ptime_ms,
            (*self._rtcp_port_line(), _RTCP_MUX),
            keying,
            direction,
        )
        local = [_refused(media) for media in agreed.local] or [audio]
        local[agreed.index] = audio
        self._offered = replace(agreed, local=tuple(local), wanted=direction)
        return self._describe(self._offered.local)

    # --- continued at another server ---

    @property
    def version(self) -> int:
        """Version of our last description."""
        return self._version

    def saved(self) -> SavedMedia | None:
        """Return what another server needs to continue the call by a re-offer; None before the
        first exchange is complete, and with DTLS, whose association cannot be continued."""
        agreed, security = self._agreed, _security(self._agreed)
        if agreed.plan is None or isinstance(security, Dtls):
            return None
        local = tuple(_without(media, "crypto", "fingerprint", "setup") for media in agreed.local)
        text = str(Description(self._last_origin, connection=self._address, media=local))
        if security is None:
            return SavedMedia(text)
        return SavedMedia(text, security.tag, security.suite)

    def restore(self, saved: SavedMedia) -> None:
        """Continue the call of another server: `offer` then keeps the payload types, the streams
        and the origin (RFC 3264 §8), with our address and, for SRTP, a new key. Raises SdpError, or
        NotAcceptable if the settings exclude its encryption."""
        description = parse(saved.description)
        local, origin = description.media, description.origin
        index = next((i for i, m in enumerate(local) if m.kind == "audio" and m.port), None)
        if index is None or origin is None or local[index].profile not in _PROTOCOLS:
            raise SdpError("a saved description has no audio that can be continued")
        keys: Attributes = ()
        try:
            if saved.suite:
                keys = new_crypto_line(saved.crypto_tag, saved.suite, self._make_key)
            self._keying.check_policy(bool(keys), is_secure(local[index]))
        except KeyingError as error:
            raise NotAcceptable(302, str(error)) from error
        ours = replace(local[index], attributes=(*local[index].attributes, *keys))
        known = [key for key in listing(ours).values() if key in self._settings.codecs]
        others = [name for name in self._settings.codecs if name not in known]
        self._agreed = _Agreed(
            local=tuple(ours if i == index else _refused(m) for i, m in enumerate(local)),
            index=index,
            numbers=adopt(FIRST_NUMBERS, ours),
            codecs=(*known, *others),
        )
        self._offered = None
        self._session_id, self._version = origin.session_id, origin.version
        self._origin = origin.address

    def rollback(self) -> None:
        """Withdraw our offer, which was rejected: the previous state remains (RFC 3264 §8)."""
        self._offered = None

    def accept(self, answer: str) -> MediaPlan:
        """Apply the answer to our last offer, which may be repeated, as in a 183 and the 200 after
        it. Raises SdpError, or NotAcceptable if it leaves no audio."""
        offered = self._offered
        if offered is None:
            raise SdpError("an answer without an offer")
        media = parse(answer).resolved()
        ours = offered.local[offered.index]
        theirs = media[offered.index] if offered.index < len(media) else None
        if theirs is None or theirs.kind != "audio" or not theirs.port:
            raise NotAcceptable(304, "the answer rejects the audio")
        # Some answer with a dynamic payload type without repeating its rtpmap.
        rtpmaps = tuple(pair for pair in ours.attributes if pair[0] == "rtpmap")
        theirs = replace(theirs, attributes=theirs.attributes + rtpmaps)
        known = set(listing(ours).values())
        chosen = choose_codec(listing(theirs), known.intersection(self._settings.codecs))
        if chosen is None:
            raise NotAcceptable(305, "the answer has no codec from the offer")
        try:
            security = self._keying.accept(ours, theirs)
        except KeyingError as error:
            raise NotAcceptable(302, str(error)) from error
        plan = self._plan(ours, theirs, chosen, security, offered.wanted)
        self._agreed = self._offered = replace(offered, plan=plan)
        return plan

    def answer(self, offer: str) -> str:
        """Return our answer to the far end's offer; `plan` is then in force. Raises SdpError, or
        NotAcceptable if nothing in it is acceptable."""
        media = parse(offer).resolved()
        refusal: NotAcceptable | None = None
        for index in self._candidates(media):
            try:
                agreed = self._answer_audio(media, index)
            except NotAcceptable as error:
                refusal = refusal or error
                continue
            self._agreed, self._offered = agreed, None
            return self._describe(agreed.local)
        raise refusal or NotAcceptable(304, "no audio is offered")

    def _candidates(self, media: tuple[Media, ...]) -> list[int]:
        """Usable audio streams: the current one first, then those with SRTP if we support it
        (phones for which it is optional offer the same audio twice), then in order."""
        usable = [i for i, m in enumerate(media) if m.kind == "audio" and m.port]
        srtp = self._settings.srtp != "off"
        present = self._agreed.index if self._agreed.local else None
        return sorted(usable, key=lambda i: (i != present, srtp and not is_secure(media[i])))

    def _answer_audio(self, media: tuple[Media, ...], index: int) -> _Agreed:
        agreed, theirs = self._agreed, media[index]
        if theirs.profile not in _PROTOCOLS:
            raise NotAcceptable(302, theirs.protocol[:40])
        listed = listing(theirs)
        chosen = choose_codec(listed, self._settings.codecs)
        if chosen is None:
            raise NotAcceptable(305, self._no_codec(theirs))
        try:
            security, keying = self._keying.answer(theirs, _security(agreed))
        except KeyingError as error:
            raise NotAcceptable(302, str(error)) from error
        numbers = adopt(agreed.numbers, theirs)
        # One codec only: given several, some phones send a second offer at once to settle on one.
        codec = chosen[1]
        payloads = dict([numbers[codec]])
        noise = first_number(listed, COMFORT_NOISE)
        if noise is not None and CODECS[codec].clock_rate == CN.clock_rate:
            payloads[noise] = CN
        if event := choose_event(listed, codec):
            payloads.update([numbers[f"{EVENT}{event[1]}"]])
        ours = self._audio(
            theirs.protocol,
            payloads,
            packet_ms(theirs, self._settings.ptime_ms),
            (_RTCP_MUX,) if theirs.rtcp_mux else self._rtcp_port_line(),
            keying,
            _mirrored(agreed.wanted, theirs),
        )
        return replace(
            agreed,
            local=tuple(ours if i == index else _refused(m) for i, m in enumerate(media)),
            index=index,
            numbers=numbers,
            codecs=(codec, *(name for name in self._settings.codecs if name != codec)),
            plan=self._plan(ours, theirs, chosen, security, agreed.wanted),
        )

    def _no_codec(self, theirs: Media) -> str:
        """Say what is offered and what we speak (RFC 3261 §21.4.26)."""
        offered = ", ".join(offered_codecs(theirs)) or "none that is known"
        ours = ", ".join(encoding_of(CODECS[name]) for name in self._settings.codecs)
        return f"no codec in common: offered {offered}, we speak {ours}"

    def _plan(
        self,
        ours: Media,
        theirs: Media,
        chosen: tuple[int, str],
        security: Security,
        wanted: Direction,
    ) -> MediaPlan:
        number, codec = chosen
        told, listed = listing(ours), listing(theirs)
        before = listing(self._agreed.local[self._agreed.index]) if self._agreed.local else {}
        arriving = listed | before | told
        known = set(told.values())
        events = {n: key for n, key in listed.items() if key in known}
        noise = {n for n, key in arriving.items() if key == COMFORT_NOISE}
        if COMFORT_NOISE_TYPE not in arriving:
            noise.add(COMFORT_NOISE_TYPE)
        mux = ours.rtcp_mux and theirs.rtcp_mux
        remote = self._remote_address(theirs), theirs.port
        events_out, tones = choose_event(events, codec), self._settings.tones
        return MediaPlan(
            remote=remote,
            remote_rtcp=remote if mux else self._remote_rtcp(theirs, remote[0]),
            rtcp_mux=mux,
            codec=Codec(codec, number, CODECS[codec].clock_rate, theirs.fmtp.get(number, "")),
            receive={n: key for n, key in arriving.items() if key in self._settings.codecs},
            events_out=events_out,
            events_in={n: rate for n, key in arriving.items() if (rate := event_rate(key))},
            comfort_noise=frozenset(noise),
            ptime_ms=packet_ms(theirs, self._settings.ptime_ms),
            direction=_mirrored(wanted, theirs),
            tones=(events_out is None and codec != "opus") if tones is None else tones,
            security=security,
        )

    def _offered_payloads(self, agreed: _Agreed) -> dict[int, RtpMap]:
        keys = [*agreed.codecs]
        keys += [f"{EVENT}{rate}" for rate in EVENT_RATES if rate == 8_000 or "opus" in keys]
        return dict(agreed.numbers[key] for key in keys if key in agreed.numbers)

    def _next_offer_keying(self, agreed: _Agreed) -> tuple[str, Attributes]:
        """Keep the keys in force (RFC 4568 §7.1.4) and the DTLS association."""
        ours = agreed.local[agreed.index]
        security = _security(agreed)
        if isinstance(security, Dtls):
            return ours.protocol, self._keying.dtls_lines(security.role)
        return ours.protocol, crypto_lines_of(ours)

    def _audio(
        self,
        protocol: str,
        payloads: Mapping[int, RtpMap],
        ptime: int,
        rtcp: Attributes,
        keying: Attributes,
        direction: Direction,
    ) -> Media:
        attributes: list[tuple[str, str | None]] = []
        for number, rtpmap in payloads.items():
            attributes.append(("rtpmap", f"{number} {encoding_of(rtpmap)}"))
            if rtpmap.name == "opus" and self._settings.opus_fmtp:
                attributes.append(("fmtp", f"{number} {self._settings.opus_fmtp}"))
            elif rtpmap.name == "telephone-event":
                attributes.append(("fmtp", f"{number} {EVENT_CODES}"))
        attributes.append(("ptime", str(ptime)))
        return Media(
            "audio",
            self._port,
            protocol,
            tuple(str(number) for number in payloads),
            attributes=(*attributes, *rtcp, *keying, (direction, None)),
        )

    def _rtcp_port_line(self) -> Attributes:
        """Needed only if RTCP is not on the next port (RFC 3605 §2.1)."""
        return () if self._rtcp_port == self._port + 1 else (("rtcp", str(self._rtcp_port)),)

    def _describe(self, media: tuple[Media, ...]) -> str:
        """Format our description. Its version increases with each change and only then (RFC 3264
        §8)."""
        if media != self._sent:
            self._version += 1
            self._sent = media
        return str(Description(self._last_origin, connection=self._address, media=media))

    @property
    def _last_origin(self) -> Origin:
        return Origin(self._session_id, self._version, self._origin)

    def _remote_address(self, theirs: Media) -> str:
        """The address to send to. Raises SdpError if there is none, NotAcceptable if we cannot send
        to it."""
        told = theirs.connection
        if told is None:
            raise SdpError("no c= line for the audio")
        ipv6 = ":" in self._address
        if not _is_reachable(told):
            return "::" if ipv6 else "0.0.0.0"
        if not _is_unicast(told) or (":" in told) != ipv6:
            raise NotAcceptable(301, told[:60])
        return told

    def _remote_rtcp(self, theirs: Media, address: str) -> tuple[str, int]:
        """Port and address of RTCP (RFC 3605); by default the next port (RFC 3550 §11)."""
        port, own = theirs.rtcp or (min(theirs.port + 1, 65_535), None)
        if own and _is_unicast(own) and (":" in own) == (":" in address):
            address = own
        return address, port


def wants_ice(sdp: str) -> bool:
    """Return whether an offer is a browser's: its audio has ICE (RFC 8839) with DTLS (RFC 5763) on
    one port (RFC 5761). A phone that offers ICE on two ports is answered without ICE; it then sends
    to the address in its m-line (RFC 8839 §4.2.5)."""
    try:
        media = parse(sdp).resolved()
    except SdpError:
        return False
    audio = next((m for m in media if m.kind == "audio" and m.port), None)
    return bool(audio and audio.attribute("ice-ufrag") and audio.fingerprints and audio.rtcp_mux)


def remaining_profiles(profiles: Sequence[Profile], refusal: str | None) -> list[Profile]:
    """Return the profiles that may succeed after a rejection, whose body may say what the far end
    supports (RFC 3261 §21.4.26)."""
    try:
        media = parse(refusal).media if refusal else ()
    except SdpError:
        media = ()
    wanted = {m.profile.removesuffix("F") for m in media if m.kind == "audio"}
    return [p for p in profiles if not wanted or p in wanted]


def is_hold(sdp: str) -> bool:
    """Return whether an offer puts us on hold: nothing is to be sent to it (RFC 3264 §8.4)."""
    audio = next((m for m in parse(sdp).resolved() if m.kind == "audio" and m.port), None)
    return audio is None or audio.direction in ("sendonly", "inactive")


def _security(agreed: _Agreed) -> Security:
    return agreed.plan.security if agreed.plan else None


def _without(media: Media, *names: str) -> Media:
    kept = tuple(pair for pair in media.attributes if pair[0] not in names)
    return replace(media, attributes=kept)


def _refused(media: Media) -> Media:
    """A rejected stream: port 0 in the same place, with the one format that is required (RFC 3264
    §6)."""
    return Media(media.kind, 0, media.protocol, media.formats[:1] or ("0",))


def _mirrored(wanted: Direction, theirs: Media) -> Direction:
    """Our direction: what we want, minus what the far end does not (RFC 3264 §6.1). An unspecified
    address is the old way of hold (§8.4)."""
    sends = theirs.direction in ("sendrecv", "recvonly") and _is_reachable(theirs.connection or "")
    receives = theirs.direction in ("sendrecv", "sendonly")
    return _DIRECTIONS[
        wanted in ("sendrecv", "sendonly") and sends,
        wanted in ("sendrecv", "recvonly") and receives,
    ]


def _is_reachable(address: str) -> bool:
    """False for placeholders: 0.0.0.0, ::, a name under .invalid (RFC 6157 §4)."""
    try:
        return not ip_address(address).is_unspecified
    except ValueError:
        return not address.lower().endswith(".invalid")


def _is_unicast(address: str) -> bool:
    try:
        ip = ip_address(address)
    except ValueError:
        return False  # names too: answering a call must not wait for DNS
    return not (ip.is_multicast or ip.is_unspecified or address == "255.255.255.255")
