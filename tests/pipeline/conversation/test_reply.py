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
