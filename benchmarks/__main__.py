"""Benchmarks: `offhook bench NAME`, or `python -m benchmarks NAME` in a checkout."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

SIZING = {
    "calls": "calls.calls",
    "cpu": "engines.cpu",
    "edge": "calls.edge",
    "failover": "calls.failover",
    "http": "speech.http_requests",
    "records": "records.kept_calls",
    "sip": "sip.sip",
    "stream": "speech.stream",
    "turns": "calls.call_turns",
    "words": "calls.call_words",
}
"""Those that size a machine, or compare engines on it."""
COMPARING = {
    "answers": "answers.answers",
    "asr": "recognition.asr",
    "asr_call": "calls.asr_call",
    "asr_host": "recognition.asr_host",
    "balance": "scale.balance",
    "browser_lines": "media.browser_lines",
    "carriers": "carriers.carriers",
    "conversations": "scale.conversations",
    "cpu_calls": "calls.cpu_calls",
    "handovers": "calls.handovers",
    "keys": "media.keys",
    "knowledge": "calls.knowledge",
    "loss": "media.loss",
    "marks": "calls.marks",
    "media": "media.media",
    "nemotron": "recognition.nemotron",
    "opus_modes": "media.opus_modes",
    "phone_lines": "media.phone_lines",
    "rooms": "media.rooms",
    "pocket": "voices.pocket",
    "realtime": "realtime.realtime",
    "realtime_agent": "calls.realtime_agent",
    "recorded_turns": "calls.recordings.recorded_turns",
    "recorded_words": "calls.recordings.recorded_words",
    "recordings": "media.recordings",
    "sherpa": "recognition.sherpa",
    "soak": "calls.soak",
    "stream_lines": "carriers.stream_lines",
    "tts": "voices.tts",
    "tts_compiled": "voices.tts_compiled",
    "turn_cost": "calls.turn_cost",
    "turn_taking": "turn_taking.turn_taking",
    "understood": "calls.understood",
    "vad": "media.vad",
    "voice_failover": "calls.voice_failover",
    "voice_fronts": "scale.voice_fronts",
}
"""Those that compare parts of offhook with peers, and with other ways of doing the same."""
NAMES = {**SIZING, **COMPARING}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="offhook bench",
        description="Each NAME explains itself by --help.",
        epilog=f"To size a machine: {', '.join(SIZING)}. Parts of offhook, beside peers: "
        f"{', '.join(COMPARING)}.",
    )
    parser.add_argument("name", choices=NAMES, metavar="NAME")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="see offhook bench NAME --help")
    arguments = parser.parse_args(argv)
    result: int = import_module(f"benchmarks.{NAMES[arguments.name]}").main(arguments.options)
    return result


if __name__ == "__main__":
    sys.exit(main())
