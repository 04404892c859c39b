"""The whole way, from a voice and a text through prompt, engine, runner and model: the codes are
those of the published package; see make_qwen3_tts_golden."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from offhook.pipeline.engines.qwen3_tts.engine import TtsEngine  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model import checkpoint as tts_checkpoint  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.prompts import (  # noqa: E402
    LANGUAGES,
    Clone,
    VoicePrompt,
    cloned_voice,
    described_voice,
    named_voice,
    with_whole_text,
)
from offhook.pipeline.engines.qwen3_tts.runner import TtsRunner  # noqa: E402
from offhook.pipeline.engines.shared.synthesis.messages import (  # noqa: E402
    Break,
    EngineEvent,
    Launched,
    PromptPosition,
    Sampling,
    SpeechCost,
    Step,
)
from tests.pipeline.engines.qwen3_tts import tiny_tts  # noqa: E402
from tests.pipeline.engines.qwen3_tts.model import tiny_tts as checkpoints  # noqa: E402
from tests.pipeline.engines.qwen3_tts.model.make_model_golden import CASES, GOLDEN, ROLE, Case  # noqa: E402

CODES = {name: code for code, name in LANGUAGES.items()} | {"auto": ""}
COST = SpeechCost([(1, 1.0), (2, 1.0), (4, 1.0)], 1.0, 1.0, 1.0, 1.0)


class WordTokenizer:
    """The tokens of the goldens."""

    im_start, im_end = ROLE[0], 6

    def encode(self, text: str) -> list[int]:
        return ROLE[1:] if text == "assistant\n" else [int(word) for word in text.split()]


class Listener(TtsRunner):
    """Keeps the first codes."""

    def __init__(self, model: Qwen3Tts) -> None:
        super().__init__(model, tiny_tts.codec(4), slots=6, pages=60)
        self.first: list[int] = []

    def step(self, steps: Sequence[Step]) -> Launched[list[int]]:  # type: ignore[override]
        self.first += super().step(steps)()
        codes = self.first[-len(steps) :]
        return Done(codes)


class Done:
    def __init__(self, codes: list[int]) -> None:
        self._codes = codes

    def ready(self) -> bool:
        return True

    def __call__(self) -> list[int]:
        return self._codes


def voice(case: Case, model: Qwen3Tts) -> VoicePrompt:
    language = CODES[case.language]
    if case.speaker:
        return named_voice(case.config, WordTokenizer(), case.speaker, language)
    if case.voice is None:
        prompt = described_voice(case.config, WordTokenizer(), "", language)
        told = tuple(PromptPosition(token) for token in case.instructions or ())
        return VoicePrompt("told", told + prompt.rows)  # the goldens have instructions as tokens
    vectors = torch.tensor(case.voice)[None]
    if case.reference_codes is None:
        return cloned_voice(case.config, WordTokenizer(), Clone("clone", vectors), language)
    codes = torch.tensor(case.reference_codes)
    vectors = torch.cat((vectors, model.embed_frames(codes)))
    words = " ".join(map(str, case.reference or ()))
    clone = Clone("clone", vectors, len(codes), words, codes)
    return cloned_voice(case.config, WordTokenizer(), clone, language)


@pytest.mark.parametrize("name", CASES)
def test_the_codes_are_those_of_the_package(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    case = CASES[name]
    folder = checkpoints.write(tmp_path, case.config)
    model = tts_checkpoint.load_model(folder, torch.device("cpu"), torch.float32)
    runner = Listener(model)
    told: list[EngineEvent] = []
    engine = TtsEngine(runner, case.config, COST, told.append, prefix_pages=8)
    prompt = voice(case, model)
    if case.whole:
        prompt = with_whole_text(case.config, prompt)
    stream = engine.open(prompt, Sampling(**asdict(case.config.generation)), case.seed)
    engine.write(stream, case.text, Break.SENTENCE, 0.0)
    engine.end(stream, 0.0)
    golden = np.load(GOLDEN)
    codes = golden[f"{name}/codes"][:, 0].tolist()
    now = 0.0
    while engine.streams and len(runner.first) <= len(codes):
        engine.turn(now)
        now += 0.01
    assert runner.first[: len(codes)] == codes
    assert (runner.first[len(codes)] == case.config.codec_eos) == golden[f"{name}/ended"]
