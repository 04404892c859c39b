"""`python -m benchmarks NAME`: experiments, and comparisons with peers."""

import argparse
import sys
from importlib import import_module

NAMES = {
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
    "loss": "media.loss",
    "marks": "calls.marks",
    "media": "media.media",
    "nemotron": "recognition.nemotron",
    "opus_modes": "media.opus_modes",
    "phone_lines": "media.phone_lines",
    "pocket": "voices.pocket",
    "realtime": "realtime.realtime",
    "realtime_agent": "calls.realtime_agent",
    "recordings": "media.recordings",
    "sherpa": "recognition.sherpa",
    "sip": "sip.sip",
    "soak": "calls.soak",
    "stream_lines": "carriers.stream_lines",
    "tts": "voices.tts",
    "tts_compiled": "voices.tts_compiled",
    "turn_taking": "turn_taking.turn_taking",
    "turns": "calls.turns",
    "understood": "calls.understood",
    "vad": "media.vad",
    "voice_failover": "calls.voice_failover",
    "voice_fronts": "scale.voice_fronts",
    "words": "calls.words",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=sorted(NAMES))
    parser.add_argument("options", nargs=argparse.REMAINDER, help="see NAME --help")
    arguments = parser.parse_args()
    result: int = import_module(f"benchmarks.{NAMES[arguments.name]}").main(arguments.options)
    return result


if __name__ == "__main__":
    sys.exit(main())
