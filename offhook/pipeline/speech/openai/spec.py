"""A server elsewhere with OpenAI's audio API, in place of an engine."""

from offhook.pipeline.speech.engine_spec import EngineSpec

TITLE = "a server with OpenAI's audio API"
RECOGNIZER = EngineSpec(
    "openai",
    "asr",
    TITLE,
    settings=frozenset({"max_requests", "partials", "whole_turns"}),
)
SYNTHESIZER = EngineSpec("openai", "tts", TITLE, settings=frozenset({"max_requests", "normalise"}))
