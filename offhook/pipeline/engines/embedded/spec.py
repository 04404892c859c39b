"""The engines that come with their models in packages: PocketSphinx, Flite and eSpeak NG."""

from offhook.pipeline.speech.engine_spec import (
    ALONE_ON_CPU,
    Attribution,
    Cost,
    EngineSpec,
)

HERE = "offhook.pipeline.engines.embedded.here_io"
VOICE = Cost("core", 1 / 0.02, ALONE_ON_CPU)
CMU = "Carnegie Mellon University"

POCKETSPHINX = EngineSpec(
    "pocketsphinx",
    "asr",
    "PocketSphinx",
    f"{HERE}:open_pocketsphinx",
    embedded=True,
    settings=frozenset({"processes"}),
    traits=frozenset({"wants noise suppressed"}),
    model="en-us",
    only_models=("en-us",),
    languages=("en",),
    costs=(Cost("core", 1 / 0.25, ALONE_ON_CPU, memory_mb=100),),
    attribution=Attribution(CMU, "https://cmusphinx.github.io"),
    checks=f"{HERE}:check_pocketsphinx",
    weak_on_phones=(
        "PocketSphinx understands little on a telephone line: 43 % of the words of read speech are "
        "wrong there, 24 % in a browser's call. Any other [asr] engine is better "
        "(docs/which-engine.md)"
    ),
)
EMBEDDED = EngineSpec(
    "embedded",
    "tts",
    "Flite or eSpeak NG",
    f"{HERE}:open_voice",
    embedded=True,
    only_models=(),
    costs=(VOICE,),
    checks=f"{HERE}:check_voice",
    means=f"{HERE}:voice_here",
)
FLITE = EngineSpec(
    "flite",
    "tts",
    "Flite",
    f"{HERE}:open_flite",
    embedded=True,
    only_models=(),
    abilities_of=f"{HERE}:flite_abilities",
    costs=(VOICE,),
    attribution=Attribution(CMU, "http://cmuflite.org"),
    checks=f"{HERE}:check_flite",
)
ESPEAK = EngineSpec(
    "espeak",
    "tts",
    "eSpeak NG",
    f"{HERE}:open_espeak",
    embedded=True,
    only_models=(),
    abilities_of=f"{HERE}:espeak_abilities",
    costs=(VOICE,),
    attribution=Attribution("eSpeak NG", "https://github.com/espeak-ng/espeak-ng"),
    checks=f"{HERE}:check_espeak",
    traits=frozenset({"takes IPA"}),
)
