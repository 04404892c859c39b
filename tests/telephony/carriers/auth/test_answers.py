"""Answers to webhooks that come again. Time is given."""

from offhook.telephony.carriers.auth import answers
from offhook.telephony.carriers.auth.answers import REPEAT_S, Answers, content_key


def test_what_says_the_same_gets_the_same_answer_while_it_is_of_use():
    kept = Answers()
    key = content_key("/carriers/x/voice", b"CallSid=CA1")
    assert kept.get(key, 0.0) is None
    kept.add(key, 0.0, "ticket")
    assert kept.get(key, REPEAT_S - 1) == "ticket"
    assert kept.get(key, REPEAT_S) is None


def test_what_says_anything_else_is_another_request():
    kept = Answers()
    kept.add(content_key("/carriers/x/voice?a=1", b"CallSid=CA1"), 0.0, "ticket")
    for target, body in (
        ("/carriers/x/voice", b"CallSid=CA1"),
        ("/carriers/x/voice?a=2", b"CallSid=CA1"),
        ("/carriers/x/voice?a=1", b"CallSid=CA2"),
        ("/carriers/x/voice?a=1\n", b"allSid=CA1"),
    ):
        assert kept.get(content_key(target, body), 1.0) is None


def test_the_oldest_answers_make_room(monkeypatch):
    monkeypatch.setattr(answers, "MAX_SEEN", 3)
    kept = Answers()
    for text in ("a", "b", "c", "a", "d"):
        kept.add(text.encode(), 0.0, text)
    assert [kept.get(text.encode(), 1.0) for text in "abcd"] == ["a", None, "c", "d"]
