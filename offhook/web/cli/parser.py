"""The arguments of the command line."""

import argparse
import os
from pathlib import Path
from typing import Any

from offhook import __version__

MODEL_HELP = "an id, with @ and a branch, tag or commit if need be,"
BENCHMARKS = ("edge", "turns", "sip", "http", "stream")


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

    serve = commands.add_parser("serve", help="take calls")
    serve.add_argument("--config", type=Path, help="default: offhook.toml, if there is one")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="default 7860")
    serve.add_argument("--bot", type=Path, metavar="FILE", help="run this Pipecat bot file")

    speech = commands.add_parser("speech", help="the speech API for programs, without calls")
    speech.add_argument("--config", type=Path, help="default: offhook.toml, if there is one")
    speech.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="HOST:PORT or unix:PATH; may be given several times (default 127.0.0.1:7862)",
    )

    call = commands.add_parser("call", help="place a scripted call and report")
    call.add_argument(
        "url",
        nargs="?",
        default="",
        help="where the server is, as http://localhost:7860 (default: where the configuration has "
        "this machine's)",
    )
    call.add_argument(
        "--say",
        dest="script",
        action=_InOrderAction,
        metavar="TEXT",
        help="speak this line; lines and files are used in the order given",
    )
    call.add_argument(
        "--play", dest="script", action=_InOrderAction, metavar="FILE", help="play this sound file"
    )
    call.add_argument(
        "--interrupt-after",
        type=float,
        metavar="S",
        help="start the next line S seconds into the reply instead of waiting for its end",
    )
    call.add_argument("--record", type=Path, metavar="DIR", help="keep sound and events here")
    call.add_argument("--api-key", default="", help="when the server wants one")
    _config_argument(call)
    call.add_argument("--json", action="store_true", help="one JSON object on standard output")

    _phone_parsers(commands)

    transcribe = commands.add_parser("transcribe", help="write down what audio or video files say")
    transcribe.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="- for standard input, which is read to its end first",
    )
    _asr_arguments(transcribe, "openai")
    _server_arguments(transcribe)
    transcribe.add_argument("--language", help='as "en" or "pt-BR"; default: what the engine finds')
    transcribe.add_argument("--context", default="", help="names and words to expect")
    transcribe.add_argument(
        "--format",
        choices=("text", "json", "srt", "vtt"),
        default="text",
        help="json: an object a file, in a line; srt, vtt: captions, of one file",
    )
    transcribe.add_argument(
        "--json", dest="format", action="store_const", const="json", help="as --format json"
    )
    transcribe.add_argument(
        "--words",
        action="store_true",
        help="when each word was said: a line a word, with its begin and end in seconds",
    )

    _speak_parser(commands.add_parser("speak", help="say a text, into a file or to a player"))
    _voice_parser(commands.add_parser("voice", help="people's voices, cloned from recordings"))

    worker = commands.add_parser("worker", help="one speech model as a server of its own")
    kinds = worker.add_subparsers(dest="kind", required=True, metavar="KIND")
    asr = kinds.add_parser("asr", help="speech recognition at /ws/transcribe")
    _asr_arguments(asr)
    asr.add_argument(
        "--max-batch-latency-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="of nemotron: how long a chunk may wait for more streams (default 0)",
    )
    _worker_arguments(asr, 7870)
    tts = kinds.add_parser("tts", help="speech synthesis at /ws/speak")
    _tts_arguments(tts)
    tts.add_argument(
        "--audio-cache",
        default="",
        metavar="URL",
        help="a Redis for short replies said before, shared with other workers; off: none is kept",
    )
    _worker_arguments(tts, 7871)

    doctor = commands.add_parser("doctor", help="what this machine can run, and why not")
    doctor.add_argument("--config", type=Path)
    doctor.add_argument("--json", action="store_true")

    bench = commands.add_parser("bench", help="measure, beside a peer in the same run")
    bench.add_argument("name", choices=BENCHMARKS)
    bench.add_argument("options", nargs=argparse.REMAINDER, help="see offhook bench NAME --help")
    return parser


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
    dial.add_argument("to", metavar="NUMBER", help="a number, or a SIP URI")
    dial.add_argument("--trunk", default="", help="by its name (default: the first with a server)")
    dial.add_argument("--carrier", default="", metavar="NAME", help="by its name, not by SIP")
    dial.add_argument("--caller", default="", metavar="NUMBER", help="to show")
    dial.add_argument("--caller-name", default="", metavar="NAME", help="to show")
    dial.add_argument("--agent", default="", metavar="NAME", help="of [agents.NAME]")
    dial.add_argument("--ring-seconds", type=float, metavar="S", help="then nobody is there")
    dial.add_argument(
        "--variable",
        dest="variables",
        action=_PairAction,
        metavar="NAME=VALUE",
        help="for the agent; may be given several times",
    )
    dial.add_argument(
        "--header",
        dest="headers",
        action=_PairAction,
        metavar="X-NAME=VALUE",
        help="for the INVITE; may be given several times",
    )
    trace = commands.add_parser("sip-trace", help="what a running server and its phones said")
    trace.add_argument(
        "call", nargs="?", default="", metavar="CALL_ID", help="then its messages, in full"
    )
    for command in (dial, trace):
        command.add_argument(
            "--url",
            default="",
            help="of the server, or unix:PATH (default: as the configuration has it)",
        )
        command.add_argument(
            "--admin-key", default="", metavar="KEY", help="default: as the configuration has it"
        )
        _config_argument(command)
    dial.add_argument("--json", action="store_true", help="one JSON object a line as it happens")
    trace.add_argument("--json", action="store_true", help="one JSON object")


def _config_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, help="of this machine's server (default: offhook.toml, if there is)"
    )


def _asr_arguments(parser: argparse.ArgumentParser, *more: str) -> None:
    """Adds the ASR options; `more` lists further engines."""
    engines = ("pocketsphinx", "qwen3-asr", "nemotron", "qwen3-asr-official", *more)
    parser.add_argument("--engine", choices=engines, default="pocketsphinx")
    parser.add_argument("--model", default="", help=f"{MODEL_HELP} or a folder")
    _hub_argument(parser)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--final-model", default="", metavar="MODEL", help="for final texts, a larger one"
    )
    parser.add_argument(
        "--aligner", default="", metavar="MODEL", help="for times of words (Qwen3-ForcedAligner)"
    )
    precisions = ("bf16", "fp8-weights", "int8-weights")
    parser.add_argument(
        "--precision", choices=precisions, default="bf16", help="of the weights in decode steps"
    )


def _tts_arguments(parser: argparse.ArgumentParser, *more: str) -> None:
    """Adds the TTS options; `more` lists further engines."""
    engines = ("auto", "flite", "espeak", "qwen3-tts", "qwen3-tts-official", *more)
    parser.add_argument("--engine", choices=engines, default="auto")
    parser.add_argument("--model", default="", help=f"of qwen3-tts: {MODEL_HELP} or a folder")
    _hub_argument(parser)
    _voices_argument(parser)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")


def _hub_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hub",
        default="",
        metavar="URL",
        help="where models come from: a mirror of the Hugging Face hub, or modelscope",
    )


def _server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default="",
        help="of a worker: http://host:port or unix:PATH; with --engine openai of a server of "
        "OpenAI's audio API: http://host:port/v1",
    )
    parser.add_argument("--api-key", default="", help="when it wants one")


def _voices_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--voices", default="", metavar="FOLDER", help="of cloned and described ones"
    )


def _worker_arguments(parser: argparse.ArgumentParser, port: int) -> None:
    parser.add_argument(
        "--listen",
        default=f"127.0.0.1:{port}",
        metavar="ADDRESS",
        help="HOST:PORT or unix:PATH (default %(default)s)",
    )
    parser.add_argument("--max-streams", type=int, default=64, help="default %(default)s")
    parser.add_argument(
        "--idle-seconds",
        type=float,
        default=0,
        metavar="S",
        help="end after so long without a stream in use (default: never)",
    )
    parser.add_argument(
        "--api-key",
        default=os.environ.get("OFFHOOK_WORKER_API_KEY", ""),
        help="what clients must send as a bearer token (default: $OFFHOOK_WORKER_API_KEY)",
    )
    parser.add_argument(
        "--metrics",
        choices=("open", "key"),
        default="open",
        help="who may read /metrics: everybody, or only who has the key (default %(default)s)",
    )
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    parser.add_argument("--log-level", default="INFO", choices=levels)


def _speak_parser(speak: argparse.ArgumentParser) -> None:
    what = speak.add_mutually_exclusive_group(required=True)
    what.add_argument("text", nargs="?", help="what to say; - for standard input, as it comes")
    what.add_argument("--file", type=Path, metavar="F", help="say what is in this text file")
    _tts_arguments(speak, "openai")
    _server_arguments(speak)
    speak.add_argument("--voice", default="", help="by its name (default: the engine's usual one)")
    speak.add_argument("--language", default="", help='as "en"; default: what the text is in')
    speak.add_argument("--instructions", default="", help='how to speak, as "in a whisper"')
    speak.add_argument("--speed", type=float, default=1.0, help="0.5 to 2 (default 1)")
    speak.add_argument("--seed", type=int, help="the same again with the same seed")
    speak.add_argument(
        "-o",
        "--output",
        default="speech.wav",
        metavar="FILE",
        help=".wav, .mp3, .ogg, .opus, .flac or .aac (default %(default)s); - for WAV to standard "
        "output, as in: offhook speak Hello -o - | aplay",
    )
    speak.add_argument("--json", action="store_true", help="a JSON object, with times of words")


def _voice_parser(voice: argparse.ArgumentParser) -> None:
    actions = voice.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="clone one")
    add.add_argument("name", metavar="NAME")
    add.add_argument("file", type=Path, metavar="FILE", help="3 to 30 s of one person speaking")
    add.add_argument("--consent", action="store_true", help="the speaker has agreed; needed")
    add.add_argument("--text", default="", metavar="WORDS", help="said in it: a better likeness")
    add.add_argument("--language", default="", help='as "en"; default: what each text is in')
    every = actions.add_parser("list", help="those that were cloned or described")
    remove = actions.add_parser("remove", help="forget one")
    remove.add_argument("name", metavar="NAME")
    for action in (add, every, remove):
        action.add_argument(
            "--model", default="", help="the worker's: an id or a folder of a Base model"
        )
        _hub_argument(action)
        _voices_argument(action)
