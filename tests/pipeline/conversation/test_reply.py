"""What is known of the words of a reply."""

from offhook.pipeline.conversation.reply import Reply


def test_to_look_at_what_was_spoken_changes_nothing() -> None:
    """A call's end is reported while its last words are still being sent."""
    reply = Reply()
    reply.begin()
    for word in ("one", "two", "three"):
        reply.queue(word)
    reply.say()
    assert reply.spoken == "one"
    reply.say()
    assert reply.spoken == "one two"
    assert reply.end() == ("one two", "three")


def test_a_reply_asks_if_it_ends_with_a_question() -> None:
    reply = Reply()
    assert not reply.asks
    for word in ("Shall", "we?"):
        reply.queue(word)
    assert reply.asks
    reply.say()
    reply.say()
    assert reply.asks
    reply.finish()
    assert reply.asks
    reply.queue("Good.")
    assert not reply.asks
