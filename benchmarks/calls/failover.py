"""`offhook bench failover --kill FAULT...`: what callers notice of faults, or of "all" of them.

The same as `offhook bench calls --kill`, with browsers only, nobody interrupting, and 40 s a run.
"""

from collections.abc import Sequence

from benchmarks.calls import calls

DEFAULTS = {
    "kill": ["worker"],
    "mix": "webrtc",
    "minutes": 2 / 3,
    "at": 15.0,
    "workers": 2,
    "interrupting": 0.0,
    "pressing": 0.0,
}


def main(argv: Sequence[str] | None = None) -> int:
    return calls.main(argv, "offhook bench failover", **DEFAULTS)


if __name__ == "__main__":
    raise SystemExit(main())
