"""The command line: `offhook serve | speech | call | dial | transcribe | speak | worker | ...`."""

import asyncio
import json
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from loguru import logger

from offhook.pipeline.engines.shared.asr_models import AsrModels, Device
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.web.app.cli.parser import parser
from offhook.web.http.loop_io import raise_descriptor_limit, run

if TYPE_CHECKING:
    from offhook.pipeline.speech.recognizer import Progress
    from offhook.web.app.cli.models_io import Models
    from offhook.web.config.config import Config
    from offhook.web.records.search import Search
    from offhook.web.records.store import CallStore
    from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics


M = TypeVar("M", AsrModels, TtsModels)


def _asr_models(arguments: Namespace) -> AsrModels:
    a = arguments
    wait = getattr(a, "max_batch_latency_ms", AsrModels.max_batch_latency_ms)
    models = AsrModels(a.model, _device(a), a.final_model, a.aligner, a.precision, wait, a.hub)
    return _bounded(models, a)


def _tts_models(arguments: Namespace) -> TtsModels:
    a = arguments
    cache = getattr(a, "audio_cache", "")
    size_mb = getattr(a, "audio_cache_mb", TtsModels.audio_cache_mb)
    models = TtsModels(a.model, _device(a), a.voices, cache, size_mb, a.hub, a.precision)
    return _bounded(models, a)


def _device(arguments: Namespace) -> Device:
    """Returns the device of one worker."""
    device: Device = "cuda" if arguments.device == "all" else arguments.device
    return device


def _bounded(models: M, arguments: Namespace) -> M:
    """Returns the models of a worker with the memory that it may take."""
    if (share := getattr(arguments, "memory_share", None)) is None:
        return models
    return replace(models, max_streams=arguments.max_streams, memory_share=share)


def _serve(arguments: Namespace) -> int:
    from offhook.web.config import config as configuration
    from offhook.web.http.logs_io import set_up
    from offhook.web.workers.engines.machine_io import keep_offline

    given = {"HOST": arguments.host, "PORT": arguments.port}
    options = {f"OFFHOOK_SERVER_{k}": str(v) for k, v in given.items() if v is not None}
    if arguments.engines:
        options |= {f"OFFHOOK_{k}_ENGINE": arguments.engines for k in ("ASR", "TTS")}
    if arguments.offline:
        options["OFFHOOK_ENGINES_OFFLINE"] = "true"
    if arguments.dev:  # others would keep the modules that they have imported
        options["OFFHOOK_SERVER_PROCESSES"] = "1"
    file = configuration.file_of(arguments.config)  # if it goes, that is no wish for the defaults
    read = partial(configuration.load, file, {**os.environ, **options})
    config = read()
    keep_offline(config)
    set_up(config.log)
    if config.server.processes > 1:
        from offhook.web.edge.processes_io import serve_all

        run(serve_all(config, arguments.bot, read))
        return 0
    from offhook.web.edge.server_io import serve

    watched = (arguments.config or configuration.DEFAULT_FILE) if arguments.dev else None
    run(serve(config, arguments.bot, read, watched))
    return 0


def _speech(arguments: Namespace) -> int:
    from offhook.web.config import config as configuration
    from offhook.web.http.logs_io import set_up
    from offhook.web.workers.engines.machine_io import keep_offline
    from offhook.web.workers.gateway_io import serve

    options = {}
    if arguments.wyoming:
        options["OFFHOOK_SPEECH_WYOMING"] = arguments.wyoming
    if arguments.wyoming_network:
        options["OFFHOOK_SPEECH_WYOMING_NETWORKS"] = json.dumps(arguments.wyoming_network)
    file = configuration.file_of(arguments.config)  # if it goes, that is no wish for the defaults
    read = partial(configuration.load, file, {**os.environ, **options})
    config = read()
    keep_offline(config)
    set_up(config.log)
    run(serve(config, arguments.listen, read))
    return 0


def _running_server(arguments: Namespace) -> tuple[str, str]:
    """Returns URL and key of the server from the arguments or the configuration."""
    from offhook.web.config import config as configuration

    if arguments.url:
        return arguments.url, arguments.api_key
    server = configuration.load(arguments.config).server
    return server.url, arguments.api_key or server.api_key


def _call(arguments: Namespace) -> int:
    from offhook.web.app.cli.caller_io import (
        CallReport,
        ScriptedCall,
        ScriptLine,
        read_audio,
        spoken,
        trimmed,
    )
    from offhook.web.config.config import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.workers.engines.engines_io import open_synthesizer

    set_up(Log(level="WARNING"))
    url, api_key = _running_server(arguments)

    async def place() -> CallReport:
        lines = []
        for kind, value in arguments.script or []:
            if kind == "play":
                pcm = await asyncio.to_thread(read_audio, Path(value))
                lines.append(ScriptLine(value, trimmed(pcm)))
            else:
                synthesizer = open_synthesizer()
                await synthesizer.start()
                lines.append(ScriptLine(value, trimmed(await spoken(synthesizer, value))))
                await synthesizer.close()
        show = (lambda text: None) if arguments.json else print
        call = ScriptedCall(url, lines, arguments.interrupt_after, api_key, show)
        try:
            return await call.run()
        finally:
            if arguments.record:
                call.save(arguments.record)

    report = run(place())
    print(json.dumps(report.as_dict(), indent=1) if arguments.json else _table(report.as_dict()))
    return 0


def _table(report: dict[str, Any]) -> str:
    """Returns the latencies of the turns, one per line."""
    rows = [f"{'turn':>4} {'here':>7} {'server':>7}  spans (ms)"]
    for number, turn in enumerate(report["turns"], 1):
        spans = turn["latency"].get("spans", [])
        listed = "  ".join(f"{s['name']} {s['ms']}" for s in spans)
        here, there = turn["response_ms"], turn["latency"].get("total_ms")
        rows.append(f"{number:>4} {here or '-':>7} {there or '-':>7}  {listed}")
    return "\n".join(rows)


def _init(arguments: Namespace) -> int:
    from offhook.web.app.cli.init_io import Answers, check_place, completed, fault_of_server, write

    a = arguments
    given = Answers(a.model_url, a.model, a.instructions, a.greeting, a.language)

    def ask(question: str, usual: str) -> str:
        shown = f" [{usual}]" if usual else ""
        return input(f"{question}{shown}: ").strip() or usual

    check_place(a.file, force=a.force)
    answers = run(completed(given, ask if sys.stdin.isatty() and not a.yes else None))
    lacking = write(a.file, answers, force=a.force)
    option = "" if a.file == Path("offhook.toml") else f" --config {a.file}"
    print(f"wrote {a.file}")
    for fault in filter(None, (*lacking, run(fault_of_server(answers)))):
        print(f"before the first call: {fault}")
    print(f"next: offhook chat{option} (by text), offhook serve{option} (then open the page)")
    return 0


def _chat(arguments: Namespace) -> int:
    from offhook.web.app.cli.chat_io import chat
    from offhook.web.config import config as configuration
    from offhook.web.http.logs_io import set_up

    a = arguments
    set_up(configuration.Log(level="ERROR"))  # what fails is in the conversation
    config = configuration.load(a.config)
    talk = chat(
        *(config, a.agent, a.lines, partial(print, flush=True)),
        caller=a.caller,
        variables=a.variables or {},
        as_json=a.json,
    )
    return int(not run(talk))


def _eval(arguments: Namespace) -> int:
    from offhook.web.app.cli.eval_io import run_evals
    from offhook.web.app.evals.line_settings import LINE_KEYS
    from offhook.web.config import config as configuration
    from offhook.web.http.logs_io import set_up

    a = arguments
    if a.from_call:
        return _scenario_of(a)
    if not a.paths:
        print("which scenarios? a FILE or a folder, or --from CALL_ID to make one", file=sys.stderr)
        return 2
    set_up(configuration.Log(level="ERROR"))
    logger.disable("pipecat")  # what the harness logs is in the outcomes too
    evals = run_evals(
        *(configuration.load(a.config), a.agent, a.paths, partial(print, flush=True)),
        only=a.only,
        runs=a.runs,
        at_once=a.at_once,
        junit_file=a.junit,
        as_json=a.json,
        line={name: getattr(a, name) for name in LINE_KEYS if getattr(a, name) is not None},
    )
    return int(not run(evals))


def _scenario_of(arguments: Namespace) -> int:
    from offhook.web.app.cli import calls_io
    from offhook.web.config import config as configuration
    from offhook.web.records.errors import StoreError
    from offhook.web.records.scenario import scenario_of

    call = arguments.from_call
    try:
        store = calls_io.opened(configuration.load(arguments.config))
        if store.show(call) is None:
            raise StoreError(f"there is no call {call}: see offhook calls list")
        print(scenario_of(call, store.timeline(call)), end="")
    except (StoreError, ValueError) as error:
        print(f"{call}: {error}" if isinstance(error, ValueError) else error, file=sys.stderr)
        return 1
    return 0


def _dial(arguments: Namespace) -> int:
    from offhook.web.app.cli.dial_io import DialProgress, Phones, in_words

    a = arguments
    asked = {
        "to": a.to,
        "trunk": a.trunk,
        "carrier": a.carrier,
        "caller": a.caller,
        "caller_name": a.caller_name,
        "agent": a.agent,
        "ring_seconds": a.ring_seconds,
        "machine_detection": a.machine_detection or ("message" if a.message else None),
        "message": a.message,
        "variables": a.variables or {},
        "headers": a.headers or {},
    }
    answered_at: float | None = None

    def show(happened: DialProgress) -> None:
        nonlocal answered_at
        if happened.state == "answered":
            answered_at = happened.at
        line = json.dumps(happened.as_dict()) if a.json else in_words(happened, answered_at)
        print(line, flush=True)

    return int(not run(Phones(*_operator(a)).dial(asked, show)))


def _sip_trace(arguments: Namespace) -> int:
    from offhook.web.app.cli.dial_io import Phones

    a = arguments
    phones = Phones(*_operator(a))
    if a.pcap is not None:
        a.pcap.write_bytes(run(phones.capture(a.call)))
    else:
        print(run(phones.trace(a.call, a.json)).rstrip("\n"))
    return 0


def _kept_calls(arguments: Namespace) -> int:
    from offhook.web.app.cli import calls_io
    from offhook.web.config import config as configuration
    from offhook.web.records.errors import SearchError, StoreError

    a = arguments
    if a.action == "key":
        from offhook.media.sealing.keyring import new_key

        print(new_key())
        return 0
    try:
        config = configuration.load(a.config)
        store = calls_io.opened(config)
        if a.action in ("list", "export"):
            return _list_calls(store, a)
        if a.action == "analyze":
            return _analyze_calls(store, config, a)
        if a.action == "forget":
            return _forget_calls(store, config, a)
        if a.action == "webhooks":
            return _list_webhooks(store, a)
        call = store.show(a.call)
        if call is None:
            raise StoreError(f"there is no call {a.call}: see offhook calls list")
        if a.action in ("play", "save"):
            return _open_recording(store, call, config, a)
        if a.json:
            print(json.dumps({**call, "timeline": store.timeline(a.call)}, ensure_ascii=False))
        else:
            print("\n".join(calls_io.story(call, store.timeline(a.call))))
    except (SearchError, StoreError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _open_recording(
    store: "CallStore", call: dict[str, Any], config: "Config", arguments: Namespace
) -> int:
    """Plays or saves a recording, which is noted in the store as a look at it."""
    from offhook.web.app.cli import calls_io

    opener = calls_io.Opener(config)
    who = f"uid {os.getuid()} by offhook calls {arguments.action}"
    if arguments.action == "save":
        found = opener.save(call, arguments.folder)
        print("\n".join(map(str, found)))
    else:
        found = {Path(call["recording"]): opener.play(call)}
    store.look(call["call_id"], "recording", who, time.time())
    cut = [path for path, whole in found.items() if not whole]
    for path in cut:
        print(f"{path}: its end is missing: the call goes on, or it was cut off", file=sys.stderr)
    return 1 if cut else 0


def _analyze_calls(store: "CallStore", config: "Config", arguments: Namespace) -> int:
    from offhook.web.app.cli.analyze_io import analyze, in_words

    a = arguments
    calls = [a.call]
    if not a.call:
        search = _search_of(a)
        if search == type(search)(limit=search.limit):
            print("which calls? write an id, or what is looked for: --from 7d", file=sys.stderr)
            return 1
        calls = [call["call_id"] for call in store.find(search)[0]]
    elif store.show(a.call) is None:
        print(f"there is no call {a.call}: see offhook calls list", file=sys.stderr)
        return 1

    def show(found: dict[str, Any]) -> None:
        print(json.dumps(found, ensure_ascii=False) if a.json else in_words(found), flush=True)

    return int(not run(analyze(store, config, calls, show)))


def _search_of(arguments: Namespace) -> "Search":
    """Raises SearchError."""
    from offhook.web.app.cli import calls_io
    from offhook.web.records.search import Search

    a = arguments
    named = {"min_latency": a.min_latency}
    for name, when in (("from", a.start), ("to", a.end)):
        named[name] = calls_io.in_this_zone(when) if when else ""
    named |= {
        name: getattr(a, name)
        for name in (
            *("number", "agent", "trunk", "edge", "state", "reason", "text"),
            *("analysis", "criterion"),
        )
    }
    query = {name: value for name, value in named.items() if value}
    query |= {name: "true" for name in ("failed", "interrupted") if getattr(a, name)}
    return Search.of({**query, "limit": a.limit})


def _list_calls(store: "CallStore", arguments: Namespace) -> int:
    from offhook.web.app.cli import calls_io

    a, search = arguments, _search_of(arguments)
    if a.action == "export":
        for line in calls_io.exported(store, search, as_csv=a.csv):
            print(line)
        return 0
    calls, cursor = store.find(search)
    if a.json:
        print(json.dumps({"calls": calls, "cursor": cursor}, ensure_ascii=False))
        return 0
    for line in calls_io.table(calls):
        print(line)
    if cursor:
        print(f"… and more: --limit, or --to {calls[-1]['started']}")
    return 0


def _list_webhooks(store: "CallStore", arguments: Namespace) -> int:
    from offhook.web.app.cli import calls_io

    a = arguments
    if a.replay is not None:
        print(f"tried again now: {store.outbox.replay(time.time(), a.replay)} webhooks")
        return 0
    waiting = store.outbox.waiting()
    for line in map(json.dumps, waiting) if a.json else calls_io.webhooks(waiting):
        print(line)
    return 0


def _forget_calls(store: "CallStore", config: "Config", arguments: Namespace) -> int:
    from offhook.web.app.cli import calls_io

    a, bucket = arguments, calls_io.bucket_of(config)
    if not a.yes and not sys.stdin.isatty():
        print("nobody can be asked here: add --yes to delete for ever", file=sys.stderr)
        return 1
    if not a.yes and input(f"Delete what is known of {a.number_or_id} for ever? [y/N] ") != "y":
        return 1
    forgotten, faults, waiting = store.deletion.forget_for_good(a.number_or_id, time.time(), bucket)
    if not forgotten.calls:
        print(
            f"nothing is known of {a.number_or_id} in calls that are over: is it a whole number as "
            "in offhook calls list, or the id of a call that is over?",
            file=sys.stderr,
        )
        return 1
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"forgotten: {forgotten.calls} calls, {len(forgotten.recordings)} recordings")
    if waiting:
        print(
            f"{waiting} of them are still in the bucket: a running server deletes them as soon as "
            "it can be reached",
            file=sys.stderr,
        )
    return 1 if faults or waiting else 0


def _operator(arguments: Namespace) -> tuple[str, str]:
    """Returns the operator's URL and key from the arguments or this machine's configuration, whose
    key is sent to no other server."""
    from offhook.web.config import config as configuration

    a = arguments
    if a.url:
        return a.url, a.admin_key
    server = configuration.load(a.config).server
    return server.operator_url, a.admin_key or server.admin_key


def _transcribe(arguments: Namespace) -> int:
    from offhook.pipeline.speech.engines import has_trait
    from offhook.pipeline.speech.recognizer import Recognizer, StreamOptions
    from offhook.web.app.cli.transcribe_io import (
        CAPTIONS,
        Bar,
        Transcription,
        in_worker,
        transcribe_all,
    )
    from offhook.web.config.engines import Asr
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.speech_api.http.transcript import Segment
    from offhook.web.workers.engines.engines_io import open_recognizer, with_usual_model
    from offhook.web.workers.engines.remote_engines_io import recognizer_of

    set_up(Log(level="WARNING"))
    a = arguments
    if a.format in CAPTIONS and len(a.files) > 1:
        raise ValueError(f"--format {a.format} is for one file: captions of several do not mix")
    # Engines that have word times anyway return them unasked.
    words = a.words or bool(a.format != "text" and a.aligner)
    options = StreamOptions(language=a.language, context=a.context, words=words, live=False)

    def say(segment: Segment) -> None:
        if a.format == "text":
            print(segment.labels() if a.words else segment.text, flush=True)

    def show(transcription: Transcription) -> None:
        if a.format == "json":
            print(json.dumps(transcription.as_dict(), ensure_ascii=False), flush=True)
        elif a.format in CAPTIONS:
            print(transcription.transcript.render(a.format), end="", flush=True)

    async def transcribe() -> list[str]:
        recognizer: Recognizer
        async with AsyncExitStack() as workers:
            if a.url:
                asr = Asr.model_construct(
                    url=a.url, api_key=a.api_key, engine=a.engine, model=a.model
                )
                recognizer = recognizer_of(asr)
            elif has_trait(a.engine, "ends with a wrong model"):
                models = with_usual_model("asr", a.engine, _asr_models(a))
                recognizer = await workers.enter_async_context(in_worker(a.engine, models))
            else:
                recognizer = open_recognizer(a.engine, _asr_models(a), Bar("loading:").loading)
            captions = a.format in CAPTIONS
            return await transcribe_all(a.files, recognizer, options, say, show, captions=captions)

    faults = run(transcribe())
    for fault in faults:
        print(f"offhook: {fault}", file=sys.stderr)
    return int(bool(faults))


def _align(arguments: Namespace) -> int:
    from offhook.pipeline.speech.recognizer import canonical_tag
    from offhook.web.app.cli.align_io import align_file, aligner_at, aligner_here
    from offhook.web.app.cli.speak_io import read_text
    from offhook.web.app.cli.transcribe_io import Bar
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.speech_api.http.transcript import Transcript

    set_up(Log(level="WARNING"))
    a = arguments
    text = read_text(a.text_file) if a.text_file else a.text
    language = canonical_tag(a.language).partition("-")[0]

    async def align() -> Transcript:
        if not a.url:
            here = aligner_here(a.model, a.device, a.hub, Bar("loading:").loading)
            return await align_file(a.file, text, language, here)
        there = aligner_at(a.url, a.api_key)
        try:
            return await align_file(a.file, text, language, there.align)
        finally:
            await there.close()

    found = run(align())
    (segment,) = found.segments
    if a.format == "labels":
        print(segment.labels())
    elif a.format == "json":
        table = found.render("verbose_json", ("word",))
        print(json.dumps(table, ensure_ascii=False))
    else:
        print(found.render(a.format), end="")
    return 0


def _speak(arguments: Namespace) -> int:
    from offhook.pipeline.speech.script.lexicon import NO_LEXICON
    from offhook.pipeline.speech.synthesizer import Synthesizer, VoiceOptions
    from offhook.web.app.cli.speak_io import (
        STANDARD,
        FileError,
        Spoken,
        of_pipe,
        of_text,
        read_text,
        speak,
    )
    from offhook.web.app.cli.transcribe_io import Bar
    from offhook.web.config.engines import Tts
    from offhook.web.config.pronunciation import read_lexicon
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.workers.engines.engines_io import open_synthesizer
    from offhook.web.workers.engines.remote_engines_io import synthesizer_of

    set_up(Log(level="WARNING"))
    a = arguments
    live = a.output == STANDARD
    if live and a.json:
        raise FileError("--json and -o - both want standard output")
    text = read_text(a.file) if a.file else a.text
    typed = text == STANDARD and not a.file
    voice = (a.voice, a.language, a.instructions, a.speed)
    try:
        lexicon = read_lexicon(a.lexicon) if a.lexicon else NO_LEXICON
    except ValueError as error:
        raise FileError(f"{a.lexicon}: {error}") from error
    options = VoiceOptions(*voice, live=live, seed=a.seed, whole_text=not typed)

    async def say() -> Spoken:
        synthesizer: Synthesizer = (
            synthesizer_of(
                Tts.model_construct(url=a.url, api_key=a.api_key, engine=a.engine, model=a.model)
            )
            if a.url
            else open_synthesizer(a.engine, _tts_models(a), Bar("loading:").loading, a.language)
        )
        texts = of_pipe(sys.stdin.buffer) if typed else of_text(text)
        length = None if typed else len(text)
        return await speak(synthesizer, options, texts, a.output, length, lexicon)

    spoken = run(say())
    if a.json:
        print(json.dumps(spoken.as_dict(), ensure_ascii=False))
    else:
        print(spoken, file=sys.stderr)
    return 0


def _voice(arguments: Namespace) -> int:
    from offhook.pipeline.speech.engines import cloner, spec_of
    from offhook.web.app.cli import voice_io
    from offhook.web.app.cli.transcribe_io import Bar
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up

    set_up(Log(level="WARNING"))
    a = arguments
    models = TtsModels(a.model or cloner().cloning_model, voices=a.voices, hub=a.hub)
    if a.action == "add":
        told = Bar("cloning:").loading
        adding = voice_io.add(
            models, a.name, a.file, told, consent=a.consent, text=a.text, language=a.language
        )
        print(f"{run(adding).name}: speak with a worker of the model {models.model}")
    elif a.action == "remove":
        voice_io.remove(models, a.name)
    elif a.engine != cloner().name:
        can = spec_of("tts", a.engine).abilities(a.model)
        if not can.voices:
            raise ValueError(f"the voices of {a.engine} are known once it has loaded a model")
        for name, languages in can.voices.items():
            print(f"{name}\tspeaker\t{','.join(languages)}\t{can.licences.get(name, '-')}")
    else:
        for voice in voice_io.kept(models):
            print(f"{voice.name}\t{voice.kind}\t{voice.language or '-'}\t{voice.created or '-'}")
    return 0


def _models(arguments: Namespace) -> int:
    from offhook.web.app.cli.models_io import Models, table
    from offhook.web.config import config as configuration
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.workers.engines.machine_io import keep_offline

    set_up(Log(level="WARNING"))
    a = arguments
    config = configuration.load(a.config)
    keep_offline(config)
    models = Models(config, a.hub)
    if a.action == "pull":
        return _pull_models(models, a)
    if a.action == "rm":
        return _remove_models(models, a)
    listed = models.list()
    if a.json:
        print(json.dumps([model.as_dict() for model in listed], indent=1))
    else:
        print("\n".join(table(listed)))
        print(models.cache())
    return 0


def _pull_models(models: "Models", arguments: Namespace) -> int:
    from offhook.pipeline.engines.hub.download_io import in_words
    from offhook.pipeline.speech.errors import EngineError
    from offhook.web.app.cli.models_io import PullLines
    from offhook.web.app.cli.transcribe_io import Bar

    a = arguments
    lines = PullLines(lambda told: print(json.dumps(told), flush=True))
    try:
        for target in [target for name in a.names for target in models.targets(name)]:
            lines.begin(target.name)
            bar = Bar(target.name)

            def show(done: int, total: int, bar: Bar = bar) -> None:
                bar.show(done / total if total else None, f"{in_words(done)} of {in_words(total)}")

            try:
                folder = models.pull(target, lines.progress if a.json else show)
            finally:
                bar.clear()
            if a.json:
                lines.say(state="here", folder=str(folder))
            else:
                print(f"{target.name}: {folder}")
    except EngineError as error:
        if not a.json:
            raise
        lines.say(state="failed", error=str(error))
        return 1
    return 0


def _remove_models(models: "Models", arguments: Namespace) -> int:
    from offhook.pipeline.engines.hub.download_io import in_words

    a = arguments
    for target in [models.target(name) for name in a.names]:
        used = [key for name, keys in models.used().items() if name == target.name for key in keys]
        size = in_words(models.here(target))
        by = f", which {' and '.join(used)} names" if used else ""
        if not a.yes and models.here(target):
            if not sys.stdin.isatty():
                raise ValueError(f"{target.name} ({size}){by} is not removed unasked: give --yes")
            if input(f"Remove {target.name} ({size}){by}? [y/N] ").strip().lower() not in (
                "y",
                "yes",
            ):
                continue
        freed = models.remove(target)
        print(f"{target.name}: removed, {in_words(freed)} are free again")
    return 0


def _worker(arguments: Namespace) -> int:
    return (_worker_asr if arguments.kind == "asr" else _worker_tts)(arguments)


def _worker_asr(arguments: Namespace) -> int:
    from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
    from offhook.web.workers.engines.engines_io import (
        check_engine,
        open_recognizer,
        with_usual_model,
    )

    a = arguments
    check_engine("asr", a.engine)
    models = with_usual_model("asr", a.engine, _asr_models(a))
    if a.device == "all":
        return _work_on_all_gpus(a, models)
    return _work(
        a, models.model, lambda told: open_recognizer(a.engine, models, told), AsrMetrics()
    )


def _worker_tts(arguments: Namespace) -> int:
    from offhook.web.speech_api.sockets.engine_metrics import TtsMetrics
    from offhook.web.workers.engines.engines_io import (
        at_hand,
        check_engine,
        open_synthesizer,
        with_usual_model,
    )

    a = arguments
    a.engine = at_hand(a.engine)
    check_engine("tts", a.engine)
    models = with_usual_model("tts", a.engine, _tts_models(a))
    if a.device == "all":
        return _work_on_all_gpus(a, models)
    return _work(
        a, models.model, lambda told: open_synthesizer(a.engine, models, told), TtsMetrics()
    )


def _work_on_all_gpus(arguments: Namespace, models: AsrModels | TtsModels) -> int:
    from offhook.pipeline.speech.engines import names_on_gpu
    from offhook.web.http.listening_io import Address
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.http.stop_io import Stop
    from offhook.web.workers.gpu_workers_io import serve_gpus
    from offhook.web.workers.worker_child_io import ChildSettings, Door
    from offhook.web.workers.worker_io import WorkerSettings

    a = arguments
    if a.engine not in names_on_gpu():
        raise ValueError(f"--device all is for {', '.join(names_on_gpu())}, not for {a.engine}")
    set_up(Log(level=a.log_level))
    address = Address.parse(a.listen)
    if address.path:
        raise ValueError("--device all needs ports: --listen HOST:PORT")
    if not address.local and not a.api_key:
        logger.warning("anyone who can reach {} can use these workers: see --api-key", a.listen)
    settings = ChildSettings(
        *(a.engine, models, a.max_streams, 0, a.log_level),
        drain_seconds=WorkerSettings.drain_seconds,
        door=Door(a.api_key, address.local, a.metrics, ()),
    )

    async def work() -> None:
        stop = Stop()
        stop.on_signals()
        await serve_gpus(settings, address, stop)

    run(work())
    return 0


def _work(
    arguments: Namespace,
    model: str,
    make: "Callable[[Progress], Any]",
    metrics: "AsrMetrics | TtsMetrics",
) -> int:
    from offhook.web.http.listening_io import Address, listener
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.http.stop_io import Stop
    from offhook.web.workers.worker_io import Worker, WorkerSettings, run_to_end, serve

    set_up(Log(level=arguments.log_level))
    a = arguments
    address = Address.parse(a.listen)
    if not address.local and not a.api_key:
        logger.warning("anyone who can reach {} can use this worker: see --api-key", a.listen)

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
            audio_cache=getattr(a, "audio_cache", ""),
            audio_cache_mb=getattr(a, "audio_cache_mb", TtsModels.audio_cache_mb),
            metrics=a.metrics,
        )
        await serve(Worker(settings, make, metrics), listener(address), stop)

    run_to_end(work())
    return 0


def _doctor(arguments: Namespace) -> int:
    if arguments.calls:
        from offhook.web.app.doctor.sizing_io import report

        print(report(arguments.calls, arguments.config, arguments.json))
        return 0
    from offhook.web.app.doctor.report_io import examine

    findings = examine(arguments.config)
    if arguments.json:
        print(json.dumps([f.as_dict() for f in findings], indent=1))
    else:
        for finding in findings:
            print(finding)
    return int(any(f.verdict == "fails" for f in findings))


def _bench(arguments: Namespace) -> int:
    from importlib.metadata import entry_points

    found = entry_points(group="offhook.commands", name="bench")
    if not found:
        raise ValueError(
            "benchmarks are a package of their own: `pip install ./benchmarks` in a checkout"
        )
    result: int = next(iter(found)).load()([arguments.name, *arguments.options])
    return result


COMMANDS: dict[str, Callable[[Namespace], int]] = {
    "init": _init,
    "chat": _chat,
    "eval": _eval,
    "serve": _serve,
    "speech": _speech,
    "call": _call,
    "calls": _kept_calls,
    "dial": _dial,
    "sip-trace": _sip_trace,
    "transcribe": _transcribe,
    "align": _align,
    "speak": _speak,
    "voice": _voice,
    "models": _models,
    "worker": _worker,
    "doctor": _doctor,
    "bench": _bench,
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    logger.remove()  # Pipecat logs a banner on import, before logging is set up
    raise_descriptor_limit()
    try:
        code = COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has closed it, as `head` does; flushing at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (RuntimeError, ValueError, OSError) as error:
        # Errors that the user can fix: configuration, engines, an unreachable server.
        print(f"offhook: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
