"""`offhook transcribe`, `align`, `speak` and `voice`: speech without a call."""

import json
import sys
from argparse import Namespace
from contextlib import AsyncExitStack

from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.web.app.cli.commands.engine_options import asr_models, tts_models
from offhook.web.app.cli.terminal import Terminal
from offhook.web.http.loop_io import run


def transcribe(arguments: Namespace, terminal: Terminal) -> int:
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
            terminal.show(segment.labels() if a.words else segment.text)

    def show(transcription: Transcription) -> None:
        if a.format == "json":
            terminal.show(json.dumps(transcription.as_dict(), ensure_ascii=False))
        elif a.format in CAPTIONS:
            terminal.show(transcription.transcript.render(a.format), end="")

    async def transcribe() -> list[str]:
        recognizer: Recognizer
        async with AsyncExitStack() as workers:
            if a.url:
                asr = Asr.model_construct(
                    url=a.url, api_key=a.api_key, engine=a.engine, model=a.model
                )
                recognizer = recognizer_of(asr)
            elif has_trait(a.engine, "ends with a wrong model"):
                models = with_usual_model("asr", a.engine, asr_models(a))
                recognizer = await workers.enter_async_context(in_worker(a.engine, models))
            else:
                recognizer = open_recognizer(a.engine, asr_models(a), Bar("loading:").loading)
            captions = a.format in CAPTIONS
            return await transcribe_all(a.files, recognizer, options, say, show, captions=captions)

    faults = run(transcribe())
    for fault in faults:
        terminal.warn(f"offhook: {fault}")
    return int(bool(faults))


def align(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.pipeline.speech.recognizer import canonical_tag
    from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
    from offhook.web.app.cli.align_io import align_file, aligner_here
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
        there = RemoteRecognizer(a.url, a.api_key)
        try:
            return await align_file(a.file, text, language, there.align)
        finally:
            await there.close()

    found = run(align())
    (segment,) = found.segments
    if a.format == "labels":
        terminal.show(segment.labels())
    elif a.format == "json":
        table = found.render("verbose_json", ("word",))
        terminal.show(json.dumps(table, ensure_ascii=False))
    else:
        terminal.show(found.render(a.format), end="")
    return 0


def speak(arguments: Namespace, terminal: Terminal) -> int:
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
            else open_synthesizer(a.engine, tts_models(a), Bar("loading:").loading, a.language)
        )
        texts = of_pipe(sys.stdin.buffer) if typed else of_text(text)
        length = None if typed else len(text)
        return await speak(synthesizer, options, texts, a.output, length, lexicon)

    spoken = run(say())
    if a.json:
        terminal.show(json.dumps(spoken.as_dict(), ensure_ascii=False))
    else:
        terminal.warn(spoken)
    return 0


def voice(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.pipeline.speech.engines import cloner, spec_of
    from offhook.web.app.cli import voice_io
    from offhook.web.app.cli.transcribe_io import Bar
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up

    set_up(Log(level="WARNING"))
    a = arguments
    models = TtsModels(a.model or cloner().cloning_model, voices=a.voices, hub=a.hub)
    if a.action == "add":
        progress = Bar("cloning:").loading
        adding = voice_io.add(
            models, a.name, a.file, progress, consent=a.consent, text=a.text, language=a.language
        )
        terminal.show(f"{run(adding).name}: speak with a worker of the model {models.model}")
    elif a.action == "remove":
        voice_io.remove(models, a.name)
    elif a.engine != cloner().name:
        can = spec_of("tts", a.engine).abilities(a.model)
        if not can.voices:
            raise ValueError(f"the voices of {a.engine} are known once it has loaded a model")
        for name, languages in can.voices.items():
            terminal.show(f"{name}\tspeaker\t{','.join(languages)}\t{can.licences.get(name, '-')}")
    else:
        for voice in voice_io.kept(models):
            terminal.show(
                f"{voice.name}\t{voice.kind}\t{voice.language or '-'}\t{voice.created or '-'}"
            )
    return 0
