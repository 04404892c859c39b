"""Prompts are those of the published package, position by position; see make_prompts_golden."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offhook.pipeline.engines.qwen3_tts.prompts import (
    MAX_PREFIX,
    Clone,
    VoicePrompt,
    cloned_voice,
    described_voice,
    follows_instructions,
    named_voice,
    with_whole_text,
)
from offhook.pipeline.engines.qwen3_tts.script import Script
from offhook.pipeline.engines.qwen3_tts.streams import tokens_at_once
from offhook.pipeline.engines.shared.synthesis.messages import Break, PromptPosition
from offhook.pipeline.speech.synthesizer import UnknownVoice

GOLDEN = json.loads((Path(__file__).parent / "data" / "prompts.json").read_text())
CODES = {"auto": "", "chinese": "zh", "german": "de", "english": "en"}
FRAMES = 14
"""Taken after the prompt."""


class WordTokenizer:
    """The tokens of the goldens."""

    im_start, im_end = 3, 6

    def encode(self, text: str) -> list[int]:
        known = {"assistant\n": [4, 5], "user\nslowly": [7, 5, 60, 61], "\n": [5]}
        return known[text] if text in known else [int(word) for word in text.split()]


def config(kind: str = "custom_voice", size: str = "1b7") -> Any:
    return SimpleNamespace(**GOLDEN["config"] | {"kind": kind, "size": size})


def voice(case: dict[str, Any]) -> VoicePrompt:
    if case["kind"] == "named":
        told = "slowly" if case["instructions"] else ""
        return named_voice(
            config(), WordTokenizer(), case["speaker"], CODES[case["language"]], told
        )
    if case["kind"] == "described":
        return described_voice(config("voice_design"), WordTokenizer(), "slowly", "en")
    words = " ".join(map(str, case["words"]))
    clone = Clone("a", None, case["frames"], words, reference="codes" if words else None)
    return cloned_voice(config("base"), WordTokenizer(), clone, "en")


def given(case: dict[str, Any]) -> tuple[list[list[int]], list[int]]:
    """What the talker is given before frame 0 and with it, as the goldens say it, and the tokens of
    the frames after it."""
    prompt = voice(case)
    c = config()
    script = Script(c.tts_eos, c.tts_pad)
    script.write(case["text"], Break.SENTENCE)
    script.ended = True
    if case.get("whole"):
        prompt = with_whole_text(c, prompt)
        script.begin(90)
        opened = [PromptPosition(token, prompt.beside_text) for token in script.whole_text()]
    else:
        assert script.ready(tokens_at_once(prompt))
        script.begin(90, prompt.lead, tokens_at_once(prompt))
        text = script.prompt_tokens(len(prompt.open))
        opened = [row._replace(text=token) for row, token in zip(prompt.open, text, strict=True)]
    frames = case.get("frames", 0)
    before = (
        PromptPosition(vector=frames) if prompt.reference else PromptPosition(codec=c.codec_bos)
    )
    first = before._replace(text=script.next_token())
    rows = [read(row) for row in (*prompt.rows, *opened, first)]
    return rows, [script.next_token() for _ in range(FRAMES)]


def read(row: PromptPosition) -> list[int]:
    if row.vector > 0:  # a frame of the reference, as it is made up in the goldens
        codes = [(16 * (row.vector - 1) + i) % 64 for i in range(16)]
        return [row.text, codes[0], -1, *codes[1:]]
    return [row.text, row.codec, row.vector]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda c: " ".join(map(str, c.values()))[:50])
def test_a_prompt_is_that_of_the_package(case: dict[str, Any]) -> None:
    rows, frames = given(case)
    assert rows == case["rows"]
    padding = [GOLDEN["config"]["tts_pad"]] * FRAMES
    assert frames == [*case["trailing"], *padding][:FRAMES]


def test_the_key_tells_voices_apart() -> None:
    voices: dict[object, tuple[PromptPosition, ...]] = {}
    for case in GOLDEN["cases"]:
        if case["kind"] != "cloned":
            made = voice(case)
            assert voices.setdefault(made.key, made.rows) == made.rows
    assert len(set(voices.values())) == len(voices)


def test_a_model_that_does_not_follow_instructions_is_given_none() -> None:
    assert follows_instructions(config())
    assert follows_instructions(config("voice_design"))
    small = config(size="0b6")
    assert not follows_instructions(small)
    assert not follows_instructions(config("base"))
    told = named_voice(small, WordTokenizer(), "ann", "en", "slowly")
    assert told == named_voice(small, WordTokenizer(), "ann", "en")


def test_what_the_model_cannot_do_is_said() -> None:
    with pytest.raises(UnknownVoice, match="'joe'; the model has ann, eric"):
        named_voice(config(), WordTokenizer(), "joe")
    with pytest.raises(ValueError, match="does not speak 'fi'; it speaks zh, en, de"):
        named_voice(config(), WordTokenizer(), "ann", "fi")
    with pytest.raises(ValueError, match="does not speak 'fr'"):  # other checkpoints do
        named_voice(config(), WordTokenizer(), "ann", "fr")
    long = Clone("a", None, MAX_PREFIX, "1 2 3", reference="codes")
    with pytest.raises(ValueError, match=f"{MAX_PREFIX} at most: make them shorter"):
        cloned_voice(config("base"), WordTokenizer(), long)
