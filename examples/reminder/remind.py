"""Calls everybody of a CSV file (number,name,appointment) and tells what came of it.

python remind.py tomorrow.csv
"""

import csv
import json
import sys
import time
from typing import Any
from urllib.request import Request, urlopen

SERVER = "http://localhost:7860"


def ask(path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(SERVER + path, data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=10) as response:
        return json.load(response)


def remind(row: dict[str, str]) -> str:
    """Returns what came of a call."""
    variables = {name: row[name] for name in ("name", "appointment")}
    asked = {"to": row["number"], "agent": "reminder", "variables": variables}
    call = ask("/calls", asked)["call_id"]
    while (state := ask(f"/calls/{call}"))["state"] != "ended":
        time.sleep(1)
    record = state["record"]
    if record["answered"] is None:
        return f"not reached: {record['end_reason']}"
    suits = record["collected"].get("suits")
    return {True: "comes", False: "does not come", None: "no answer"}[suits]


if __name__ == "__main__":
    with open(sys.argv[1], newline="") as file:
        for row in csv.DictReader(file):
            print(row["number"], remind(row), sep=": ", flush=True)  # noqa: T201
