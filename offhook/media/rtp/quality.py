"""Call quality on the MOS scale, estimated while the call runs: the E-model of ITU-T G.107 with all
terminal parameters at their defaults, so that only delay and loss vary.

    R = 93.2 - Id(delay) - Ie,eff(loss, codec);  MOS = G.107 Annex B of R

The scale is narrowband: G.711 on a perfect line reaches 4.4, and a wideband codec gets no credit
for its bandwidth, so figures of calls with different codecs can be compared.
"""

from dataclasses import dataclass
from math import log2, pow

R_DEFAULT = 93.2
"""Ro - Is with all parameters at their defaults (G.107 §7.1)."""
NOTICED_DELAY_MS = 100.0
"""mT of G.107 §7.4: delay below it does not affect a conversation."""


@dataclass(frozen=True)
class CodecRobustness:
    """A codec's Ie, its impairment without loss, and Bpl, its robustness to loss (both on the R
    scale of G.107 §7.5)."""

    ie: float
    bpl: float


CODECS = {
    # G.113 Appendix I: G.711 with packet loss concealment, random loss.
    "pcmu": CodecRobustness(0.0, 25.1),
    "pcma": CodecRobustness(0.0, 25.1),
    # Alahmadi, Pocta, Melvin, "An Adaptive Bitrate Switching Algorithm for Speech Applications in
    # Context of WebRTC", ACM TOMM 17(4), 2021: super-wideband VBR at 31 kb/s, random loss, no FEC.
    # Its Ie of 16.8 is on a scale up to 148 and lies wholly above narrowband's ceiling.
    "opus": CodecRobustness(0.0, 10.44),
    # Its Ie,wb of 13 (G.113 Appendix IV, scale up to 129) also lies above the ceiling. There is no
    # planning value for the concealment we use; it is taken to bear loss no better than Opus.
    "g722": CodecRobustness(0.0, 10.0),
}


def delay_impairment(delay_ms: float) -> float:
    """Idd of G.107 §7.4: the impairment by mouth-to-ear delay alone, with echo cancelled."""
    if delay_ms <= NOTICED_DELAY_MS:
        return 0.0
    x = log2(delay_ms / NOTICED_DELAY_MS)
    return 25.0 * (pow(1 + pow(x, 6), 1 / 6) - 3 * pow(1 + pow(x / 3, 6), 1 / 6) + 2)


def loss_impairment(loss_fraction: float, codec: CodecRobustness) -> float:
    """Ie,eff of G.107 §7.5: the impairment by the codec and by random loss (0..1)."""
    percent = 100.0 * loss_fraction
    return codec.ie + (95.0 - codec.ie) * percent / (percent + codec.bpl)


def mos(delay_ms: float, loss_fraction: float, codec: str = "opus") -> float:
    """Estimate the mean opinion score of a conversation, 1.0 .. 4.5 (G.107 Annex B).

    `delay_ms` is one way, mouth to ear: half the round trip, the jitter buffer, packet and codec.
    `loss_fraction` (0..1) counts packets never played, late ones included, after FEC. `codec`
    is an SDP encoding name, in any case; one without planning values is rated as G.711.
    """
    robustness = CODECS.get(codec.lower(), CODECS["pcmu"])
    r = R_DEFAULT - delay_impairment(delay_ms)
    r -= loss_impairment(min(max(loss_fraction, 0.0), 1.0), robustness)
    if r <= 0:
        return 1.0
    # Annex B's cubic dips below 1 for R under 6.5.
    return min(max(1.0 + 0.035 * r + 7e-6 * r * (r - 60) * (100 - r), 1.0), 4.5)
