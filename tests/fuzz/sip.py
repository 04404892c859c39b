"""Damaged SIP, SDP and RTP: does anything raise, hang or grow?

    python -m tests.fuzz.sip [--part parser] [--messages 100000] [--seed 1] [--json]

    parser   messages through the parser and the framer of streams (sip_fuzz_parser)
    agent    calls of two user agents over a network that means ill (sip_fuzz_agent)
    sdp      offers and answers through MediaNegotiation (sip_fuzz_sdp)
    media    RTP, RTCP, key presses, comfort noise, SRTP and DTLS into a SipLeg (sip_fuzz_media)
    ice      STUN and anything else to the port of all WebRTC calls (ice)

Each message is one that is well-formed with bytes flipped, left out, doubled, exchanged for what
has a meaning there, or spliced with another. No exception may escape, none may take longer than a
few milliseconds, and when all is over nothing may be left and the process not have grown.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence

from tests.fuzz import agent as sip_fuzz_agent
from tests.fuzz import ice as ice_fuzz
from tests.fuzz import media as sip_fuzz_media
from tests.fuzz import parser as sip_fuzz_parser
from tests.fuzz import sdp as sip_fuzz_sdp
from tests.fuzz.result import Result

PARTS: Mapping[str, Callable[[int, int, bool], Result]] = {
    "parser": sip_fuzz_parser.run,
    "agent": sip_fuzz_agent.run,
    "sdp": sip_fuzz_sdp.run,
    "media": sip_fuzz_media.run,
    "ice": ice_fuzz.run,
}
"""Each takes the number of messages, the seed, and whether to show progress."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz.sip", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--part", choices=PARTS, default="parser")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    result = PARTS[arguments.part](arguments.messages, arguments.seed, not arguments.json)
    print(json.dumps(result.report()) if arguments.json else "\n".join(result.lines()))
    return 0 if result.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
