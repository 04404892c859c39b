"""What it costs to have the agent elsewhere, behind OpenAI's Realtime API: the response time of the
front desk in a server's own process, and of the same front desk at a second server whose Realtime
API the first one calls.

Two servers are started. The scripted caller has the same conversation with each in turn, by WebRTC
and by SIP.
"""

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import aiohttp

from benchmarks.calls.call_turns import START_S
from benchmarks.command import command
from benchmarks.processes.own_server import free_port, started
from benchmarks.speech.lines import CONVERSATION, voiced
from offhook.web.app.cli.caller_io import ScriptedCall, ScriptLine

IN_PROCESS, ELSEWHERE = "in-process", "Realtime elsewhere"


@dataclass
class Row:
    agent: str
    line: str
    """WebRTC or SIP."""
    turns: int
    answered: int
    p50_ms: float
    p95_ms: float


def configuration(agent: str) -> tuple[str, int, int]:
    """Returns a configuration file's text, and its ports for HTTP and SIP."""
    port, phones = free_port(), free_port()
    text = (
        f'[server]\nport = {port}\n[webrtc]\naddresses = ["127.0.0.1"]\n'
        f"[sip]\nudp = {phones}\ntcp = false\nallow_anonymous = true\n[agent]\n{agent}"
    )
    return text, port, phones


@asynccontextmanager
async def serving(agent: str) -> AsyncIterator[tuple[str, str]]:
    """Runs a server; yields its URL and the address of its phone."""
    text, port, phones = configuration(agent)
    url = f"http://127.0.0.1:{port}"

    async def is_there() -> bool:
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "offhook.toml"
        file.write_text(text)
        arguments = ("serve", "--config", str(file))
        async with started(arguments, is_there, START_S, "the server did not start"):
            yield url, f"sip:desk@127.0.0.1:{phones}"


async def measure(calls: int) -> list[Row]:
    """Places `calls` calls of each kind, one after the other, the kinds by turns."""
    script = [ScriptLine(text, pcm) for text, pcm in (await voiced(*CONVERSATION)).items()]
    times = dict[tuple[str, str], list[int | None]]()
    async with serving('kind = "frontdesk"') as here:
        realtime = f'kind = "realtime"\nmodel = "gpt-realtime"\nbase_url = "{here[0]}/v1"'
        async with serving(realtime) as there:
            for _ in range(calls):
                for agent, line in product((IN_PROCESS, ELSEWHERE), ("WebRTC", "SIP")):
                    url, phone = here if agent == IN_PROCESS else there
                    call = ScriptedCall(url if line == "WebRTC" else phone, script)
                    report = await call.run()
                    found = [turn.response_ms for turn in report.turns]
                    times.setdefault((agent, line), []).extend(found)
    return [_row(*kind, found) for kind, found in times.items()]


def _row(agent: str, line: str, found: Sequence[int | None]) -> Row:
    answers = sorted(ms for ms in found if ms is not None)
    last = answers[-1 - len(answers) // 20]
    return Row(agent, line, len(found), len(answers), statistics.median(answers), last)


def _print(rows: Sequence[Row]) -> None:
    print(f"{'agent':20} {'line':8} {'turns':>6} {'answered':>9} {'p50 ms':>8} {'p95 ms':>8}")
    for row in rows:
        print(
            f"{row.agent:20} {row.line:8} {row.turns:6} {row.answered:9} "
            f"{row.p50_ms:8.0f} {row.p95_ms:8.0f}"
        )
    p50 = {(row.agent, row.line): row.p50_ms for row in rows}
    for line in ("WebRTC", "SIP"):
        cost = p50[ELSEWHERE, line] - p50[IN_PROCESS, line]
        print(f"{line}: the protocol costs {cost:.0f} ms (p50)")


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("realtime_agent", __doc__)
    parser.add_argument("--calls", type=int, default=4, help="calls of each kind, of five turns")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    rows = asyncio.run(measure(arguments.calls))
    if arguments.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
    else:
        _print(rows)
    return 0
