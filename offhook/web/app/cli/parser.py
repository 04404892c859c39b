"""The arguments of the command line."""

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from offhook import __version__
from offhook.pipeline.engines.shared.capacity import SHARED
from offhook.pipeline.engines.shared.tts_models import CACHE_MB
from offhook.pipeline.speech.engine_spec import Kind
from offhook.pipeline.speech.engines import (
    aligner,
    cloner,
    is_known,
    spec_of,
    specs,
    stand_in,
    with_setting,
)
from offhook.web.app.evals.line_settings import OVER

MODEL_HELP = "a hub id, optionally with @ and a branch, tag or commit,"
MAX_COUNT = 1000
"""Maximum of counts on the command line."""


class _InOrderAction(argparse.Action):
    """Collects --say and --play in one list, in the order given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.script = [*(namespace.script or []), (option.lstrip("-"), values)]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="offhook", description="A self-hosted real-time voice server."
    )
    parser.add_argument("--version", action="version", version=f"offhook {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    _init_parser(commands.add_parser("init", help="write a configuration, from five questions"))
    _serve_parser(commands.add_parser("serve", help="run the server"))
    _eval_parser(commands.add_parser("eval", help="try an agent by scenarios, and say what fails"))
    _chat_parser(commands.add_parser("chat", help="talk to an agent by text, with its tools"))
    speech = commands.add_parser("speech", help="the speech API for programs, without calls")
    speech.add_argument("--config", type=Path, help="default: offhook.toml, if it exists")
    speech.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="HOST:PORT or unix:PATH; may be given several times (default 127.0.0.1:7862)",
    )
    speech.add_argument(
        "--wyoming",
        metavar="ADDRESS",
        help="serve Home Assistant too: a port of this machine, as 10300, or HOST:PORT",
    )
    speech.add_argument(
        "--wyoming-network",
        action="append",
        metavar="NETWORK",
        help="a private network that may connect there, as 192.168.1.0/24; may be given several "
        "times (default: this machine only)",
    )

    _history_parser(commands.add_parser("calls", help="find, play, save, export and forget calls"))
    _call_parser(commands.add_parser("call", help="place a scripted call and report"))
    _phone_parsers(commands)
    _campaigns_parser(commands.add_parser("campaigns", help="call many, and see who answered"))
    _queues_parser(commands.add_parser("queues", help="show queues, pause and resume members"))
    _transcribe_parser(commands.add_parser("transcribe", help="transcribe audio or video files"))
    _align_parser(commands.add_parser("align", help="find when the words of a text are spoken"))
    _speak_parser(commands.add_parser("speak", help="synthesize a text to a file or a player"))
    _voice_parser(commands.add_parser("voice", help="manage voices cloned from recordings"))
    _models_parser(commands.add_parser("models", help="list, download and remove models"))

    _worker_parser(commands.add_parser("worker", help="serve one speech model"))
    doctor = commands.add_parser("doctor", help="check what this machine can run, and why not")
    doctor.add_argument("--config", type=Path)
    doctor.add_argument("--json", action="store_true")
    doctor.add_argument(
        "--calls",
        type=_calls,
        metavar="N",
        help="say what N calls at once need instead: machines, cores, memory and GPUs, from what "
        "this machine measures and the configured engines",
    )

    bench = commands.add_parser("bench", help="run a benchmark, with a peer in the same run")
    bench.add_argument("name", nargs="?", default="--help", help="without it they are listed")
    bench.add_argument("options", nargs=argparse.REMAINDER, help="see offhook bench NAME --help")
    return parser


def _init_parser(init: argparse.ArgumentParser) -> None:
    init.add_argument(
        "file", nargs="?", type=Path, default=Path("offhook.toml"), help="default: offhook.toml"
    )
    init.add_argument(
        "--model-url",
        metavar="URL",
        help="server of the language model, with /v1; empty for the built-in front desk",
    )
    init.add_argument("--model", metavar="NAME", help="name of the model there")
    init.add_argument("--instructions", metavar="TEXT", help="what the agent is to do")
    init.add_argument("--greeting", metavar="TEXT", help="its first words; empty: it finds its own")
    init.add_argument("--language", metavar="TAG", help="what callers speak, as en or de-AT")
    init.add_argument("--yes", action="store_true", help="ask nothing: defaults for the rest")
    init.add_argument("--force", action="store_true", help="replace a file that is there")


def _chat_parser(chat: argparse.ArgumentParser) -> None:
    chat.add_argument(
        "agent", nargs="?", default="", help="one of [agents.NAME] (default: that of [agent])"
    )
    chat.add_argument(
        "--say",
        dest="lines",
        action="append",
        default=[],
        metavar="TEXT",
        help="say this instead of what is typed; may be given several times",
    )
    chat.add_argument("--caller", default="", metavar="NUMBER", help="number of the caller")
    chat.add_argument(
        "--variable",
        dest="variables",
        action=_PairAction,
        metavar="NAME=VALUE",
        help="variable of the call; may be given several times",
    )
    _config_argument(chat)
    chat.add_argument("--json", action="store_true", help="one JSON object per line and answer")


def _eval_parser(evals: argparse.ArgumentParser) -> None:
    evals.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="a file of scenarios in Pipecat's format, or a folder of them",
    )
    evals.add_argument(
        "--from",
        dest="from_call",
        default="",
        metavar="CALL_ID",
        help="print a scenario made from a call that is kept, and try nothing",
    )
    evals.add_argument(
        "--agent",
        default="",
        metavar="NAME",
        help="one of [agents.NAME] (default: that of [agent])",
    )
    evals.add_argument(
        "--only", default="*", metavar="NAME", help="only scenarios of this name; * stands for any"
    )
    evals.add_argument("--runs", type=_count, default=1, metavar="N", help="run each N times")
    evals.add_argument(
        "--at-once", type=_count, default=1, metavar="N", help="conversations at a time"
    )
    evals.add_argument(
        "--over",
        choices=OVER,
        help="call the agent by a real line on this machine, and speak: by WebRTC, by SIP, or as "
        "Twilio passes a call on (default: as the scenario says, or by no line)",
    )
    for name, metavar, what in (
        ("loss", "PERCENT", "packets that this line loses in each direction"),
        ("jitter", "MS", "time by which its packets are late, at most"),
        ("noise", "DBFS", "level of the noise behind the caller, e.g. -45 (default: none)"),
        ("level", "DB", "by how much the caller is louder, or quieter if below 0"),
    ):
        evals.add_argument(f"--{name}", type=float, metavar=metavar, help=what)
    evals.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit's XML to this file")
    _config_argument(evals)
    evals.add_argument("--json", action="store_true", help="one JSON object per line and run")


def _count(text: str) -> int:
    """Reads a number from 1 to MAX_COUNT."""
    if not text.isdecimal() or not 1 <= int(text) <= MAX_COUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {MAX_COUNT}")
    return int(text)


def _serve_parser(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--config", type=Path, help="default: offhook.toml, if it exists")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="default 7860")
    serve.add_argument(
        "--engines",
        choices=("auto",),
        help="hear and speak with the best engines that this machine can run, instead of those of "
        "the configuration: they are downloaded while calls go on with the embedded ones",
    )
    serve.add_argument(
        "--offline",
        action="store_true",
        help="download nothing: use only the models that are on this machine",
    )
    serve.add_argument("--bot", type=Path, metavar="FILE", help="run this Pipecat bot file")
    serve.add_argument(
        "--dev",
        action="store_true",
        help="use changes of the configuration, and of the files and Python modules that it names, "
        "from the next call on",
    )


def _calls(text: str) -> int:
    """Reads a number of calls."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of calls")
    return int(text)


def _url(text: str) -> str:
    """An address of a server, with its scheme."""
    if text and not text.startswith(("http://", "https://", "unix:")):
        raise argparse.ArgumentTypeError(f"{text!r} is no URL: write http://{text}")
    return text


def _call_parser(call: argparse.ArgumentParser) -> None:
    call.add_argument(
        "url",
        type=_url,
        nargs="?",
        default="",
        help="URL of the server, e.g. http://localhost:7860 (default: that of "
        "this machine's configuration)",
    )
    call.add_argument(
        "--say",
        dest="script",
        action=_InOrderAction,
        metavar="TEXT",
        help="speak this line; lines and files are used in the order given",
    )
    call.add_argument(
        "--play", dest="script", action=_InOrderAction, metavar="FILE", help="play this audio file"
    )
    call.add_argument(
        "--interrupt-after",
        type=float,
        metavar="S",
        help="start the next line S seconds into the reply instead of waiting for its end",
    )
    call.add_argument("--record", type=Path, metavar="DIR", help="save audio and events here")
    call.add_argument("--api-key", default="", help="API key of the server")
    _config_argument(call)
    call.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _transcribe_parser(transcribe: argparse.ArgumentParser) -> None:
    transcribe.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="- for standard input, which is read to its end first",
    )
    _asr_arguments(transcribe, elsewhere=True)
    _server_arguments(transcribe)
    transcribe.add_argument("--language", help='e.g. "en" or "pt-BR"; default: detected')
    transcribe.add_argument("--context", default="", help="names and words to expect")
    transcribe.add_argument(
        "--format",
        choices=("text", "json", "srt", "vtt"),
        default="text",
        help="json: one object per file and line; srt, vtt: captions of one file",
    )
    transcribe.add_argument(
        "--json", dest="format", action="store_const", const="json", help="same as --format json"
    )
    transcribe.add_argument(
        "--words",
        action="store_true",
        help="word times: a line per word with its start and end in seconds",
    )


def _align_parser(align: argparse.ArgumentParser) -> None:
    align.add_argument("file", type=Path, metavar="FILE", help="audio or video of up to 3 minutes")
    what = align.add_mutually_exclusive_group(required=True)
    what.add_argument("--text", help="what is said in it")
    what.add_argument("--text-file", type=Path, metavar="F", help="the same, in this file")
    align.add_argument("--language", required=True, metavar="CODE", help='of the text, e.g. "en"')
    align.add_argument("--model", default=aligner().name, help="or a folder (default %(default)s)")
    _hub_argument(align)
    _device_argument(align, DEVICES)
    align.add_argument(
        "--url",
        default="",
        help="URL of a worker with an aligner, or of a gateway: http://host:port or unix:PATH",
    )
    align.add_argument("--api-key", default="", help="API key of that server")
    align.add_argument(
        "--format",
        choices=("labels", "json", "srt", "vtt"),
        default="labels",
        help="labels: a line per word with its start and end in seconds; srt, vtt: captions",
    )


def _worker_parser(worker: argparse.ArgumentParser) -> None:
    kinds = worker.add_subparsers(dest="kind", required=True, metavar="KIND")
    asr = kinds.add_parser("asr", help="speech recognition at /ws/transcribe")
    _asr_arguments(asr, devices=WORKER_DEVICES)
    asr.add_argument(
        "--max-batch-latency-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help=f"{_of('asr', 'max_batch_latency_ms')}: how long a chunk may wait for more streams "
        "(default 0)",
    )
    _worker_arguments(asr, 7870)
    tts = kinds.add_parser("tts", help="speech synthesis at /ws/speak")
    _tts_arguments(tts, devices=WORKER_DEVICES)
    tts.add_argument(
        "--audio-cache",
        default="",
        metavar="URL",
        help="URL of a Redis cache of short replies, shared by workers; off: no cache",
    )
    tts.add_argument(
        "--audio-cache-mb",
        type=int,
        default=CACHE_MB,
        metavar="MB",
        help="size of the cache of short replies in memory (default %(default)s)",
    )
    _worker_arguments(tts, 7871)


class _PairAction(argparse.Action):
    """Collects --variable NAME=VALUE in one table."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        name, equals, value = values.partition("=")
        if not name or not equals:
            parser.error(f"{option}: {values!r} is not NAME=VALUE")
        table = dict(getattr(namespace, self.dest) or {})
        setattr(namespace, self.dest, {**table, name: value})


def _phone_parsers(commands: Any) -> None:
    dial = commands.add_parser("dial", help="call a phone through a running server")
    dial.add_argument("to", metavar="NUMBER", help="a number or SIP URI")
    dial.add_argument(
        "--trunk", default="", help="name of the trunk (default: the first with a server)"
    )
    dial.add_argument(
        "--carrier", default="", metavar="NAME", help="name of a carrier, instead of SIP"
    )
    dial.add_argument("--caller", default="", metavar="NUMBER", help="caller id to show")
    dial.add_argument("--caller-name", default="", metavar="NAME", help="caller name to show")
    dial.add_argument("--agent", default="", metavar="NAME", help="one of [agents.NAME]")
    dial.add_argument("--ring-seconds", type=float, metavar="S", help="maximum ringing time")
    dial.add_argument(
        "--machine-detection",
        choices=("off", "detect", "message"),
        help="what is done about who answers (default: as the trunk or the agent has it)",
    )
    dial.add_argument(
        "--message", default="", metavar="TEXT", help="what is left on an answering machine"
    )
    dial.add_argument(
        "--variable",
        dest="variables",
        action=_PairAction,
        metavar="NAME=VALUE",
        help="variable for the agent; may be given several times",
    )
    dial.add_argument(
        "--header",
        dest="headers",
        action=_PairAction,
        metavar="X-NAME=VALUE",
        help="header of the INVITE; may be given several times",
    )
    trace = commands.add_parser("sip-trace", help="show recent SIP messages of a running server")
    trace.add_argument(
        "call", nargs="?", default="", metavar="CALL_ID", help="show the full messages of this call"
    )
    people = commands.add_parser("extensions", help="show extensions, their phones and messages")
    people.add_argument("--json", action="store_true", help="a JSON object for each extension")
    for command in (dial, trace, people):
        _operator_arguments(command)
    dial.add_argument("--json", action="store_true", help="one JSON object per line for each event")
    form = trace.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument(
        "--pcap", type=Path, metavar="FILE", help="write the messages as a pcap, for Wireshark"
    )


def _operator_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--url",
        type=_url,
        default="",
        help="URL of the server, or unix:PATH (default: as in the configuration)",
    )
    command.add_argument(
        "--admin-key", default="", metavar="KEY", help="default: as in the configuration"
    )
    _config_argument(command)


def _campaigns_parser(campaigns: argparse.ArgumentParser) -> None:
    actions = campaigns.add_subparsers(dest="action", required=True, metavar="ACTION")
    start = actions.add_parser("start", help="call the recipients of a file")
    every = actions.add_parser("list", help="list campaigns with their progress, the last first")
    show = actions.add_parser("show", help="show one campaign: who is left, and how calls ended")
    pause = actions.add_parser("pause", help="place no more calls for now; those in progress go on")
    resume = actions.add_parser("resume", help="go on with a campaign that was paused")
    cancel = actions.add_parser("cancel", help="give up all who were not called yet")
    append = actions.add_parser("append", help="add the recipients of a file")
    report = actions.add_parser("report", help="write all recipients with their outcomes as CSV")
    forbid = actions.add_parser("do-not-call", help="list the numbers that no campaign calls")
    _campaign_arguments(start)
    for command in (show, pause, resume, cancel, append, report):
        command.add_argument("campaign", metavar="CAMPAIGN_ID")
    append.add_argument("file", type=Path, metavar="FILE", help="CSV or JSON, as of start")
    forbid.add_argument("--add", nargs="+", metavar="NUMBER", help="add numbers instead")
    forbid.add_argument("--remove", nargs="+", metavar="NUMBER", help="remove numbers instead")
    forbid.add_argument("--reason", default="", help="why they are added")
    for command in (start, every, show, pause, resume, cancel, append, report, forbid):
        _operator_arguments(command)
        if command is not report:
            command.add_argument("--json", action="store_true", help="one JSON object")


def _campaign_arguments(start: argparse.ArgumentParser) -> None:
    start.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="CSV with a column number, and id, time_zone and variables if wanted; or JSON",
    )
    for name, metavar, what in (
        ("id", "ID", "id of the campaign (default: a new one)"),
        ("name", "NAME", "what lists call it"),
        ("agent", "NAME", "one of [agents.NAME]"),
        ("trunk", "NAME", "name of the trunk (default: the first with a server)"),
        ("carrier", "NAME", "name of a carrier, instead of SIP"),
        ("caller", "NUMBER", "caller id to show"),
        ("time-zone", "ZONE", "of recipients who name none, as Europe/Berlin"),
        ("at-once", "N", "maximum calls in progress (default 5)"),
        ("per-second", "N", "maximum calls placed in a second (default 1)"),
        ("ring-seconds", "S", "maximum ringing time"),
        ("message", "TEXT", "what is left on an answering machine"),
    ):
        start.add_argument(f"--{name}", metavar=metavar, help=what)
    start.add_argument(
        "--machine-detection",
        choices=("off", "detect", "message"),
        help="what is done about who answers (default: as the trunk or the agent has it)",
    )
    start.add_argument(
        "--window",
        dest="windows",
        action="append",
        metavar="TIMES",
        help='when to call, as "Mon-Fri 09:00-18:00"; may be given several times',
    )
    start.add_argument(
        "--holiday",
        dest="holidays",
        action="append",
        metavar="DATE",
        help="a day without calls, as 12-25; may be given several times",
    )
    start.add_argument(
        "--retry",
        dest="retries",
        action=_PairAction,
        metavar="OUTCOME=TIMES[/MINUTES]",
        help="call again, as busy=2/15: of machine, busy, no_answer, failed and unknown; may be "
        "given several times",
    )
    start.add_argument("--paused", action="store_true", help="call nobody before it is resumed")


def _queues_parser(queues: argparse.ArgumentParser) -> None:
    actions = queues.add_subparsers(dest="action", required=True, metavar="ACTION")
    every = actions.add_parser("list", help="show who waits in each queue, and its members")
    show = actions.add_parser("show", help="show one queue")
    pause = actions.add_parser("pause", help="have a member rung no more")
    ready = actions.add_parser("ready", help="have a member rung again")
    every.set_defaults(queue="")
    for command in (show, pause, ready):
        command.add_argument("queue", metavar="QUEUE")
    for command in (pause, ready):
        command.add_argument("member", metavar="MEMBER", help="the address, as the queue has it")
    for command in (every, show, pause, ready):
        command.add_argument("--json", action="store_true", help="a JSON object for each queue")
        _operator_arguments(command)


def _history_parser(calls: argparse.ArgumentParser) -> None:
    actions = calls.add_subparsers(dest="action", required=True, metavar="ACTION")
    every = actions.add_parser("list", help="list calls, the last first")
    show = actions.add_parser("show", help="show one call: what was said and done, and when")
    play = actions.add_parser("play", help="play the recording of a call")
    save = actions.add_parser("save", help="write the recording of a call into a folder, decrypted")
    export = actions.add_parser("export", help="write calls as JSON lines or CSV")
    forget = actions.add_parser("forget", help="delete what is known of a number, or of one call")
    actions.add_parser("key", help="make a key with which recordings are encrypted")
    for command in (show, play, save):
        command.add_argument("call", metavar="CALL_ID")
    save.add_argument("folder", type=Path, nargs="?", default=Path(), help="default: this one")
    analyze = actions.add_parser(
        "analyze", help="have a call analysed, or all of a search, also once more"
    )
    analyze.add_argument("call", metavar="CALL_ID", nargs="?", default="")
    for command in (every, export, analyze):
        _search_arguments(command)
    analyze.set_defaults(limit="1000")
    export.set_defaults(limit="1000")
    export.add_argument("--csv", action="store_true", help="CSV without what was said")
    webhooks = actions.add_parser("webhooks", help="list webhooks that wait or were given up")
    webhooks.add_argument(
        "--replay",
        nargs="?",
        const="",
        metavar="CALL_ID",
        help="try all of them again now, or those of one call",
    )
    forget.add_argument("number_or_id", metavar="NUMBER|CALL_ID")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    for command in (every, show, analyze, webhooks):
        command.add_argument("--json", action="store_true")
    for command in (every, show, play, save, export, analyze, forget, webhooks):
        _config_argument(command)


def _search_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--from",
        dest="start",
        metavar="WHEN",
        help="2026-03-14T15:10 as it is here, or 24h, 7d ago",
    )
    command.add_argument("--to", dest="end", metavar="WHEN", help="the same; exclusive")
    command.add_argument("--number", help="the last digits, three or more, of either number")
    command.add_argument("--agent")
    command.add_argument("--trunk")
    command.add_argument("--tenant", help="one of the customers who share the server")
    command.add_argument("--reason", help="why the call ended, as `the caller hung up`")
    command.add_argument("--text", help="words that were said; lett* for a beginning")
    command.add_argument("--min-latency", metavar="MS", help="of the slowest answer")
    command.add_argument("--failed", action="store_true", help="where something has failed")
    command.add_argument("--interrupted", action="store_true", help="where the caller did")
    command.add_argument("--edge", help="webrtc, sip, or a carrier's provider")
    command.add_argument("--state", choices=("live", "ended"))
    command.add_argument("--limit", default=str(20), metavar="N", help="20, at most 1000")
    outcomes = ("success", "failure", "unknown", "done", "error", "waiting")
    command.add_argument("--analysis", choices=outcomes, help="what an analysis has found")
    command.add_argument("--criterion", metavar="NAME", help="of which --analysis is the verdict")


def _config_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        help="configuration of this machine's server (default: offhook.toml, if it exists)",
    )


DEVICES = ("auto", "cpu", "cuda")
WORKER_DEVICES = (*DEVICES, "all")
DEVICE_HELP = (
    "all: a worker for each GPU, on as many ports from that of --listen on, which /workers of each "
    "lists"
)


class EngineNames:
    """The engines of a kind as choices: those of other packages are known, but not listed.
    Programs may name `openai` only where they can name its address."""

    def __init__(self, kind: Kind, elsewhere: bool) -> None:
        self._kind, self._elsewhere = kind, elsewhere

    def __iter__(self) -> Iterator[str]:
        for spec in specs(self._kind):
            if spec.opens or self._elsewhere:
                yield spec.name

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or not is_known(self._kind, name):
            return False
        return self._elsewhere or bool(spec_of(self._kind, name).opens)


def _of(kind: Kind, setting: str) -> str:
    """Returns the names of the engines with a setting, in words."""
    return " and ".join(with_setting(kind, setting))


def _asr_arguments(
    parser: argparse.ArgumentParser, elsewhere: bool = False, devices: Sequence[str] = DEVICES
) -> None:
    """Adds the ASR options; `elsewhere`: a server elsewhere is an engine too."""
    _engine_argument(parser, "asr", elsewhere)
    parser.add_argument("--model", default="", help=f"{MODEL_HELP} or a folder")
    _hub_argument(parser)
    _device_argument(parser, devices)
    parser.add_argument(
        "--final-model", default="", metavar="MODEL", help="larger model for final texts"
    )
    parser.add_argument(
        "--aligner",
        default="",
        metavar="MODEL",
        help=f"for word times, such as {aligner().name}",
    )
    precisions = ("auto", "fp32", "bf16", "int8", "fp8-weights", "int8-weights")
    help = f"number format of {_of('asr', 'precision')}; int8 is for CPUs, 8-bit weights for GPUs"
    parser.add_argument("--precision", choices=precisions, default="auto", help=help)


def _engine_argument(parser: argparse.ArgumentParser, kind: Kind, elsewhere: bool) -> None:
    parser.add_argument(
        "--engine",
        choices=EngineNames(kind, elsewhere),
        default=stand_in(kind).name,
        help="or one of another package: its name, or module:Class (default %(default)s)",
    )


def _device_argument(parser: argparse.ArgumentParser, devices: Sequence[str]) -> None:
    help = DEVICE_HELP if "all" in devices else None
    parser.add_argument("--device", choices=devices, default="auto", help=help)


def _tts_arguments(
    parser: argparse.ArgumentParser, elsewhere: bool = False, devices: Sequence[str] = DEVICES
) -> None:
    """Adds the TTS options; `elsewhere`: a server elsewhere is an engine too."""
    _engine_argument(parser, "tts", elsewhere)
    usual = ", ".join(f"{spec.name}: {spec.model}" for spec in specs("tts") if spec.model)
    parser.add_argument(
        "--model", default="", help=f"{MODEL_HELP} or a folder; by default, of {usual}"
    )
    _hub_argument(parser)
    _voices_argument(parser)
    _device_argument(parser, devices)
    help = f"number format of {_of('tts', 'precision')} (default: int8)"
    parser.add_argument("--precision", choices=("auto", "fp32", "int8"), default="auto", help=help)


def _hub_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hub",
        default="",
        metavar="URL",
        help="source of models: URL of a Hugging Face hub mirror, or modelscope",
    )


def _server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default="",
        help="URL of a worker, http://host:port or unix:PATH; with --engine openai of a "
        "server with OpenAI's audio API: http://host:port/v1",
    )
    parser.add_argument("--api-key", default="", help="API key of that server")


def _voices_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--voices", default="", metavar="FOLDER", help="folder of cloned and described voices"
    )


def _worker_arguments(parser: argparse.ArgumentParser, port: int) -> None:
    parser.add_argument(
        "--listen",
        default=f"127.0.0.1:{port}",
        metavar="ADDRESS",
        help="HOST:PORT or unix:PATH (default %(default)s)",
    )
    parser.add_argument(
        "--max-streams",
        type=int,
        default=0,
        metavar="N",
        help="streams in use (default and at most: as many as the engine follows in real time; "
        "64 where it does not know)",
    )
    parser.add_argument(
        "--memory-share",
        type=float,
        default=SHARED,
        metavar="SHARE",
        help="of the GPU's memory that a model may take; 1 if the worker has the GPU for itself "
        "(default %(default)s: recognition and synthesis fit on one)",
    )
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=0,
        metavar="S",
        help="exit after this long without a stream in use (default: never)",
    )
    parser.add_argument(
        "--api-key",
        default=os.environ.get("OFFHOOK_WORKER_API_KEY", ""),
        help="bearer token that clients must send (default: $OFFHOOK_WORKER_API_KEY)",
    )
    parser.add_argument(
        "--metrics",
        choices=("open", "key"),
        default="open",
        help="who may read /metrics: anyone, or only holders of the key (default %(default)s)",
    )
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    parser.add_argument("--log-level", default="INFO", choices=levels)


def _speak_parser(speak: argparse.ArgumentParser) -> None:
    what = speak.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "text", nargs="?", help="text to speak; - for standard input, spoken as it arrives"
    )
    what.add_argument("--file", type=Path, metavar="F", help="speak the text of this file")
    _tts_arguments(speak, elsewhere=True)
    _server_arguments(speak)
    speak.add_argument(
        "--voice", default="", help="name of the voice (default: the engine's default)"
    )
    speak.add_argument("--language", default="", help='e.g. "en"; default: detected')
    speak.add_argument("--instructions", default="", help='how to speak, e.g. "in a whisper"')
    speak.add_argument("--speed", type=float, default=1.0, help="0.5 to 2 (default 1)")
    speak.add_argument(
        "--lexicon", type=Path, metavar="F", help='says how words are said, as Kia = "kee-ah"'
    )
    speak.add_argument("--seed", type=int, help="makes the result reproducible")
    speak.add_argument(
        "-o",
        "--output",
        default="speech.wav",
        metavar="FILE",
        help=".wav, .mp3, .ogg, .opus, .flac or .aac (default %(default)s); - for WAV to standard "
        "output, as in: offhook speak Hello -o - | aplay",
    )
    speak.add_argument("--json", action="store_true", help="one JSON object, with word times")


def _voice_parser(voice: argparse.ArgumentParser) -> None:
    actions = voice.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="clone a voice")
    add.add_argument("name", metavar="NAME")
    add.add_argument("file", type=Path, metavar="FILE", help="3 to 30 s of one person speaking")
    add.add_argument(
        "--consent", action="store_true", help="confirm that the speaker has consented; required"
    )
    add.add_argument(
        "--text", default="", metavar="WORDS", help="transcript, for a better likeness"
    )
    add.add_argument("--language", default="", help='e.g. "en"; default: detected in each text')
    every = actions.add_parser("list", help="list voices: cloned, described or built-in ones")
    every.add_argument(
        "--engine",
        choices=[spec.name for spec in specs("tts") if spec.cloning_model or spec.abilities_of],
        default=cloner().name,
        help="the one that clones, or another one: its built-in voices, of --model if it has "
        "several, with their licences",
    )
    remove = actions.add_parser("remove", help="remove a voice")
    remove.add_argument("name", metavar="NAME")
    for action in (add, every, remove):
        action.add_argument(
            "--model", default="", help="the worker's model: a hub id or a folder of a Base model"
        )
        _hub_argument(action)
        _voices_argument(action)


def _models_parser(models: argparse.ArgumentParser) -> None:
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    every = actions.add_parser("list", help="list models: which are here, sizes, licences")
    pull = actions.add_parser("pull", help="download models; what broke off goes on")
    remove = actions.add_parser("rm", help="remove downloaded models")
    name = "a name of the list, or a hub id, optionally with @ and a branch, tag or commit"
    auto = f"{name}; auto or small: those that it chooses on this machine"
    for action, help in ((pull, auto), (remove, name)):
        action.add_argument("names", nargs="+", metavar="NAME", help=help)
    remove.add_argument("--yes", action="store_true", help="do not ask")
    every.add_argument("--json", action="store_true", help="one JSON array")
    pull.add_argument("--json", action="store_true", help="one JSON object per line")
    for action in (every, pull, remove):
        _hub_argument(action)
        _config_argument(action)
