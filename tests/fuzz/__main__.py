"""Damaged messages of every protocol that strangers speak here: does anything raise, hang or grow?

    python -m tests.fuzz [--part parser] [--messages 100000] [--seed 1] [--json]

    parser     SIP messages through the parser and the framer of streams (parser.py)
    agent      calls of two user agents over a network that means ill (agent.py)
    sdp        offers and answers through MediaNegotiation (sdp.py)
    media      RTP, RTCP, key presses, comfort noise, SRTP and DTLS into a SipLeg (media.py)
    ice        STUN and anything else to the port of all WebRTC calls (ice.py)
    sctp       chunks to the association of a caller's data channels (sctp.py)
    http       requests to an edge with all its routes (http.py)
    multipart  forms with a file to the parser of uploads (http.py)
    realtime   events of OpenAI's Realtime protocol to a conversation (realtime.py)

The compiled path of packets has a fuzzer of its own, tests.fuzz.packets, for `sanitized`.

Each message is one that is well-formed with bytes flipped, left out, doubled, exchanged for what
has a meaning there, or spliced with another. No exception may escape, none may take longer than a
few milliseconds, and when all is over nothing may be left and the process not have grown. Progress
goes to standard error. `OMP_NUM_THREADS=1 nice python -m tests.fuzz --part http --messages 1000000`
takes minutes.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence

from tests.fuzz import agent, http, ice, media, parser, realtime, sctp, sdp
from tests.fuzz.result import Result

PARTS: Mapping[str, Callable[[int, int, bool], Result]] = {
    "parser": parser.run,
    "agent": agent.run,
    "sdp": sdp.run,
    "media": media.run,
    "ice": ice.run,
    "sctp": sctp.run,
    "http": http.heads,
    "multipart": http.forms,
    "realtime": realtime.run,
}
"""Each takes the number of messages, the seed, and whether to show progress."""


def main(argv: Sequence[str] | None = None) -> int:
    command = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("--part", choices=PARTS, default="parser")
    command.add_argument("--messages", type=int, default=100_000)
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--json", action="store_true")
    arguments = command.parse_args(argv)
    result = PARTS[arguments.part](arguments.messages, arguments.seed, not arguments.json)
    print(json.dumps(result.report()) if arguments.json else "\n".join(result.lines()))
    return 0 if result.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
