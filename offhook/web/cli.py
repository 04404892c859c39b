"""The command line: `offhook serve | call | transcribe | speak | voice | worker | doctor | ...`."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from offhook import __version__
from offhook.pipeline.engine.asr_models import AsrModels
from offhook.pipeline.engine.tts_models import TtsModels
from offhook.web.loop_io import run

if TYPE_CHECKING:
    from offhook.pipeline.recognizer import Progress
    from offhook.web.worker_io import Service


class _InOrder(argparse.Action):
    """--say and --play into one list, in the order given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.script = [*(namespace.script or []), (option.lstrip("-"), values)]


def _parser() -> argparse.ArgumentParser:
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
    serve.set_defaults(run=_serve)

    call = commands.add_parser("call", help="place a scripted call and report")
    call.add_argument("url", help="where the server is, as http://localhost:7860")
    call.add_argument("--say", dest="script", action=_InOrder, metavar="TEXT")
    call.add_argument("--play", dest="script", action=_InOrder, metavar="FILE")
    call.add_argument(
        "--interrupt-after",
        type=float,
        metavar="S",
        help="start the next line S seconds into the reply instead of waiting for its end",
    )
    call.add_argument("--record", type=Path, metavar="DIR", help="keep sound and events here")
    call.add_argument("--api-key", default="", help="when the server wants one")
    call.add_argument("--json", action="store_true", help="one JSON object on standard output")
    call.set_defaults(run=_call)

    transcribe = commands.add_parser("transcribe", help="write down what audio or video files say")
    transcribe.add_argument("files", nargs="+", type=Path, metavar="FILE")
    _asr_arguments(transcribe)
    transcribe.add_argument("--url", default="", help="of a worker: http://host:port or unix:PATH")
    transcribe.add_argument("--api-key", default="", help="when the worker wants one")
    transcribe.add_argument("--language", help='as "en"; default: what the engine finds')
    transcribe.add_argument("--context", default="", help="names and words to expect")
    transcribe.add_argument("--json", action="store_true", help="one JSON object a file, in a line")
    transcribe.add_argument(
        "--words",
        action="store_true",
        help="when each word was said: a line a word, with its begin and end in seconds",
    )
    transcribe.set_defaults(run=_transcribe)

    _speak_parser(commands.add_parser("speak", help="say a text, into a file or to a player"))
    _voice_parser(commands.add_parser("voice", help="people's voices, cloned from recordings"))

    worker = commands.add_parser("worker", help="one speech model as a server of its own")
    kinds = worker.add_subparsers(dest="kind", required=True, metavar="KIND")
    asr = kinds.add_parser("asr", help="speech recognition at /ws/transcribe")
    _asr_arguments(asr)
    _worker_arguments(asr, 7870)
    asr.set_defaults(run=_worker_asr)
    tts = kinds.add_parser("tts", help="speech synthesis at /ws/speak")
    _tts_arguments(tts)
    tts.add_argument(
        "--audio-cache",
        default="",
        metavar="URL",
        help="a Redis for short replies said before, shared with other workers",
    )
    _worker_arguments(tts, 7871)
    tts.set_defaults(run=_worker_tts)

    doctor = commands.add_parser("doctor", help="what this machine can run, and why not")
    doctor.add_argument("--config", type=Path)
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)

    bench = commands.add_parser("bench", help="measure, beside a peer in the same run")
    names = ("media", "edge", "loss", "turns", "words", "soak", "asr", "tts", "marks")
    bench.add_argument("name", choices=names)
    bench.add_argument("options", nargs=argparse.REMAINDER, help="see offhook bench NAME --help")
    bench.set_defaults(run=_bench)
    return parser


def _asr_arguments(parser: argparse.ArgumentParser) -> None:
    engines = ("pocketsphinx", "qwen3-asr")
    parser.add_argument("--engine", choices=engines, default="pocketsphinx")
    parser.add_argument("--model", default="", help="an id or a folder")
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


def _tts_arguments(parser: argparse.ArgumentParser) -> None:
    engines = ("auto", "flite", "espeak", "qwen3-tts")
    parser.add_argument("--engine", choices=engines, default="auto")
    parser.add_argument("--model", default="", help="of qwen3-tts: an id or a folder")
    _voices_argument(parser)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")


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
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    parser.add_argument("--log-level", default="INFO", choices=levels)


def _speak_parser(speak: argparse.ArgumentParser) -> None:
    what = speak.add_mutually_exclusive_group(required=True)
    what.add_argument("text", nargs="?", help="what to say; - for standard input, as it comes")
    what.add_argument("--file", type=Path, metavar="F", help="say what is in this text file")
    _tts_arguments(speak)
    speak.add_argument("--url", default="", help="of a worker: http://host:port or unix:PATH")
    speak.add_argument("--api-key", default="", help="when the worker wants one")
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
        help=".wav or .ogg (default %(default)s); - for WAV to standard output, as in: "
        "offhook speak Hello -o - | aplay",
    )
    speak.add_argument("--json", action="store_true", help="a JSON object, with times of words")
    speak.set_defaults(run=_speak)


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
        _voices_argument(action)
    voice.set_defaults(run=_voice)


def _asr_models(arguments: argparse.Namespace) -> AsrModels:
    a = arguments
    return AsrModels(a.model, a.device, a.final_model, a.aligner, a.precision)


def _tts_models(arguments: argparse.Namespace) -> TtsModels:
    a = arguments
    return TtsModels(a.model, a.device, a.voices, getattr(a, "audio_cache", ""))


def _serve(arguments: argparse.Namespace) -> int:
    from offhook.web import config as configuration
    from offhook.web.logs import set_up

    given = {"HOST": arguments.host, "PORT": arguments.port}
    options = {f"OFFHOOK_SERVER_{k}": str(v) for k, v in given.items() if v is not None}
    config = configuration.load(arguments.config, {**os.environ, **options})
    set_up(config.log)
    if config.server.processes > 1:
        from offhook.web.processes_io import serve_all as serve
    else:
        from offhook.web.server_io import serve
    run(serve(config, arguments.bot))
    return 0


def _call(arguments: argparse.Namespace) -> int:
    from offhook.web.caller_io import CallReport, Line, ScriptedCall, read_audio, spoken, trimmed
    from offhook.web.config import Log
    from offhook.web.engines_io import open_synthesizer
    from offhook.web.logs import set_up

    set_up(Log(level="WARNING"))

    async def place() -> CallReport:
        lines = []
        for kind, value in arguments.script or []:
            if kind == "play":
                pcm = await asyncio.to_thread(read_audio, Path(value))
                lines.append(Line(value, trimmed(pcm)))
            else:
                synthesizer = open_synthesizer()
                await synthesizer.start()
                lines.append(Line(value, trimmed(await spoken(synthesizer, value))))
                await synthesizer.close()
        show = (lambda text: None) if arguments.json else print
        call = ScriptedCall(
            arguments.url, lines, arguments.interrupt_after, arguments.api_key, show
        )
        try:
            return await call.run()
        finally:
            if arguments.record:
                call.save(arguments.record)

    report = run(place())
    print(json.dumps(report.as_dict(), indent=1) if arguments.json else _table(report.as_dict()))
    return 0


def _table(report: dict[str, Any]) -> str:
    """Latencies of the turns, one a line."""
    rows = [f"{'turn':>4} {'here':>7} {'server':>7}  spans (ms)"]
    for number, turn in enumerate(report["turns"], 1):
        spans = turn["latency"].get("spans", [])
        listed = "  ".join(f"{s['name']} {s['ms']}" for s in spans)
        here, there = turn["response_ms"], turn["latency"].get("total_ms")
        rows.append(f"{number:>4} {here or '-':>7} {there or '-':>7}  {listed}")
    return "\n".join(rows)


def _transcribe(arguments: argparse.Namespace) -> int:
    from offhook.pipeline.recognizer import StreamOptions
    from offhook.pipeline.remote_recognizer_io import RemoteRecognizer
    from offhook.web.engines_io import open_recognizer
    from offhook.web.logs import Log, set_up
    from offhook.web.transcribe_io import Bar, Segment, Transcription, transcribe_all

    set_up(Log(level="WARNING"))
    a = arguments
    # Engines that have the times anyway give them unasked.
    words = a.words or bool(a.json and a.aligner)
    options = StreamOptions(language=a.language, context=a.context, words=words, live=False)

    def say(segment: Segment) -> None:
        if not a.json:
            print(segment.in_words() if a.words else segment.text, flush=True)

    def show(transcription: Transcription) -> None:
        if a.json:
            print(json.dumps(transcription.as_dict(), ensure_ascii=False), flush=True)

    async def transcribe() -> list[str]:
        recognizer = (
            RemoteRecognizer(a.url, a.api_key)
            if a.url
            else open_recognizer(a.engine, _asr_models(a), Bar("loading:").loading)
        )
        return await transcribe_all(a.files, recognizer, options, say, show)

    faults = run(transcribe())
    for fault in faults:
        print(f"offhook: {fault}", file=sys.stderr)
    return int(bool(faults))


def _speak(arguments: argparse.Namespace) -> int:
    from offhook.pipeline.remote_synthesizer_io import RemoteSynthesizer
    from offhook.pipeline.synthesizer import Synthesizer, VoiceOptions
    from offhook.web.engines_io import open_synthesizer
    from offhook.web.logs import Log, set_up
    from offhook.web.speak_io import STANDARD, FileError, Spoken, of_pipe, of_text, read_text, speak
    from offhook.web.transcribe_io import Bar

    set_up(Log(level="WARNING"))
    a = arguments
    live = a.output == STANDARD
    if live and a.json:
        raise FileError("--json and -o - both want standard output")
    options = VoiceOptions(a.voice, a.language, a.instructions, a.speed, live=live, seed=a.seed)
    text = read_text(a.file) if a.file else a.text
    typed = text == STANDARD and not a.file

    async def say() -> Spoken:
        synthesizer: Synthesizer = (
            RemoteSynthesizer(a.url, a.api_key)
            if a.url
            else open_synthesizer(a.engine, _tts_models(a), Bar("loading:").loading)
        )
        texts = of_pipe(sys.stdin.buffer) if typed else of_text(text)
        return await speak(synthesizer, options, texts, a.output, None if typed else len(text))

    spoken = run(say())
    if a.json:
        print(json.dumps(spoken.as_dict(), ensure_ascii=False))
    else:
        print(spoken, file=sys.stderr)
    return 0


def _voice(arguments: argparse.Namespace) -> int:
    from offhook.web import voice_io
    from offhook.web.logs import Log, set_up
    from offhook.web.transcribe_io import Bar

    set_up(Log(level="WARNING"))
    a = arguments
    models = TtsModels(a.model or voice_io.MODEL, voices=a.voices)
    if a.action == "add":
        told = Bar("cloning:").loading
        adding = voice_io.add(
            models, a.name, a.file, told, consent=a.consent, text=a.text, language=a.language
        )
        print(f"{run(adding).name}: speak with a worker of the model {models.model}")
    elif a.action == "remove":
        voice_io.remove(models, a.name)
    else:
        for voice in voice_io.kept(models):
            print(f"{voice.name}\t{voice.kind}\t{voice.language or '-'}\t{voice.created or '-'}")
    return 0


def _worker_asr(arguments: argparse.Namespace) -> int:
    from offhook.web.engines_io import check_engine, open_recognizer, with_usual_model
    from offhook.web.worker_asr_io import AsrService

    a = arguments
    check_engine(a.engine)
    models = with_usual_model(a.engine, _asr_models(a))
    return _work(
        a, models.model, lambda told: open_recognizer(a.engine, models, told), AsrService()
    )


def _worker_tts(arguments: argparse.Namespace) -> int:
    from offhook.web.engines_io import at_hand, check_engine, open_synthesizer, with_usual_model
    from offhook.web.worker_tts_io import TtsService

    a = arguments
    a.engine = at_hand(a.engine)
    check_engine(a.engine)
    models = with_usual_model(a.engine, _tts_models(a))
    return _work(
        a, models.model, lambda told: open_synthesizer(a.engine, models, told), TtsService()
    )


def _work(
    arguments: argparse.Namespace,
    model: str,
    make: "Callable[[Progress], Any]",
    service: "Service[Any]",
) -> int:
    from offhook.web.logs import Log, set_up
    from offhook.web.stop_io import Stop
    from offhook.web.worker_io import (
        Address,
        Worker,
        WorkerSettings,
        listener,
        run_to_end,
        serve,
    )

    set_up(Log(level=arguments.log_level))
    a = arguments
    address = Address.parse(a.listen)
    if not address.local and not a.api_key:
        logger.warning("whoever reaches {} can use this worker: see --api-key", a.listen)

    async def work() -> None:
        stop = Stop()
        stop.on_signals()
        settings = WorkerSettings(
            a.engine,
            model,
            a.max_streams,
            a.idle_seconds,
            api_key=a.api_key,
            local=address.local,
        )
        await serve(Worker(settings, make, service), listener(address), stop)

    run_to_end(work())
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from offhook.web.doctor_io import examine

    findings = examine(arguments.config)
    if arguments.json:
        print(json.dumps([f.as_dict() for f in findings], indent=1))
    else:
        for finding in findings:
            print(finding)
    return int(any(f.verdict == "fails" for f in findings))


def _bench(arguments: argparse.Namespace) -> int:
    from importlib import import_module

    result: int = import_module(f"offhook.bench.{arguments.name}").main(arguments.options)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    logger.remove()  # Pipecat logs a banner when it is imported, before logs are set up
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, ValueError, OSError) as error:
        # What the user can mend: configuration, engines, a server that is not there.
        print(f"offhook: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
