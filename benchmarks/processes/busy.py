"""Keeps a core busy as a child of a benchmark, until its standard input closes."""

import json
import os
import sys
import threading

ROUND = 100_000
"""Additions between two looks at whether to go on."""


def main() -> None:
    def end() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    print(json.dumps({"ready": True}), flush=True)
    while True:
        sum(range(ROUND))


if __name__ == "__main__":
    main()
