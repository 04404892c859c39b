"""Keeps the stable text of partials unchanged when hypotheses change."""

from dataclasses import replace

from offhook.pipeline.speech.recognizer import Partial


def with_stable_prefix(stable: str, text: str) -> str:
    """Returns the text with its stable prefix: if it differs there, only what follows as many words
    (characters, in a language without spaces) is taken from it."""
    if text.startswith(stable):
        return text
    if " " not in stable + text:
        return stable + text[len(stable) :]
    rest = " ".join(text.split()[len(stable.split()) :])
    return f"{stable} {rest}" if rest and not stable.endswith(" ") else stable + rest


def without_prefix(shown: Partial, partial: Partial) -> Partial | None:
    """Returns `partial` as it may follow `shown`, with the stable text kept; None if it adds
    nothing, e.g. while a lost utterance is recognized again."""
    if partial.audio_ms < shown.audio_ms:
        return None
    stable = shown.text[: shown.stable_chars]
    text = with_stable_prefix(stable, partial.text)
    chars = min(max(partial.stable_chars, len(stable)), len(text))
    return replace(partial, text=text, stable_chars=chars)
