"""The chunks of a transcript, joined, are the transcript."""

from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.web.workers.wyoming.transcript import ChunkedTranscript


def test_stable_text_comes_as_it_is_heard() -> None:
    transcript = ChunkedTranscript("nemotron")
    assert transcript.update(Partial("turn on th", 5, 400)) == "turn"
    assert transcript.update(Partial("turn on the lie", 12, 800)) == " on the"
    assert transcript.update(Partial("turn on the light", 12, 900)) == ""
    assert transcript.update(Final("turn on the light", 1000, continues=True)) == " light"
    assert transcript.update(Partial("in the", 2, 400)) == " in"
    assert transcript.update(Final("in the kitchen", 1000)) == " the kitchen"
    assert transcript.text == "turn on the light in the kitchen"


def test_text_that_may_be_revised_waits_for_its_final() -> None:
    transcript = ChunkedTranscript("pocketsphinx")
    assert transcript.update(Partial("turn of", 7, 400)) == ""
    assert transcript.update(Final("turn on", 1000)) == "turn on"


def test_an_engine_that_takes_text_back_gets_no_more_chunks() -> None:
    transcript = ChunkedTranscript("nemotron")
    assert transcript.update(Partial("turn of", 7, 400)) == "turn of"
    assert transcript.update(Final("turn on", 1000)) == ""
    assert transcript.text == "turn on"


def test_scripts_without_spaces_are_joined_without() -> None:
    transcript = ChunkedTranscript("nemotron")
    assert transcript.update(Final("打开", 1000, continues=True)) == "打开"
    assert transcript.update(Final("电灯", 1000)) == "电灯"
