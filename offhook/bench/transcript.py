"""Words of a sound, and how far they are from the words that were said."""

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.recognizer import Final


async def recognise(recognizer: PocketSphinxRecognizer, pcm: Pcm) -> str:
    """16 kHz sound as one utterance, fed 100 ms at a time."""
    stream = await recognizer.open()
    for start in range(0, len(pcm), RATE_IN // 10):
        stream.feed(pcm[start : start + RATE_IN // 10])
    stream.finish()
    text = ""
    async for event in stream.events():
        if isinstance(event, Final):
            text = event.text
            break
    await stream.close()
    return text


def prefix_distances(heard: list[str], reference: list[str]) -> list[int]:
    """Substitutions, insertions and deletions between `heard` and the first 0, 1, … all words of
    `reference`."""
    row = list(range(len(reference) + 1))
    for i, word in enumerate(heard, 1):
        before, row = row, [i] + [0] * len(reference)
        for j, other in enumerate(reference, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (word != other))
    return row
