"""What was told as stable is never taken back, whichever hypothesis comes next."""

from dataclasses import replace

from offhook.pipeline.speech.recognizer import Partial


def keeping(stable: str, text: str) -> str:
    """The text with what was stable: where it says something else, only what it has beyond that
    many words (characters, in a language without spaces) is taken."""
    if text.startswith(stable):
        return text
    if " " not in stable + text:
        return stable + text[len(stable) :]
    rest = " ".join(text.split()[len(stable.split()) :])
    return f"{stable} {rest}" if rest and not stable.endswith(" ") else stable + rest


def following(shown: Partial, partial: Partial) -> Partial | None:
    """`partial` as it may be told after `shown`: what was stable stays. None when it says nothing
    new, as while a lost utterance is heard again."""
    if partial.audio_ms < shown.audio_ms:
        return None
    stable = shown.text[: shown.stable_chars]
    text = keeping(stable, partial.text)
    chars = min(max(partial.stable_chars, len(stable)), len(text))
    return replace(partial, text=text, stable_chars=chars)
