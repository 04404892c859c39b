"""What of a language model's content is spoken, however the stream is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.conversation.agents.spoken_content import SpokenContent

CONTENTS = {
    "We open at nine.": "We open at nine.",
    "<think>They ask when.</think>\n\nAt nine.": "At nine.",
    "<thinking>Hm.</thinking> At nine.": "At nine.",
    "<THINK>Hm.</Think>At nine.": "At nine.",
    "Okay, they ask when.\n</think>\n\nAt nine.": "At nine.",
    "<think>\n\n</think>\n\nAt nine.": "At nine.",
    "<think>It never ends": "",
    'One moment. <tool_call>{"name": "stock", "arguments": {}}</tool_call>': "One moment. ",
    '<tool_call>\n{"name": "stock"}\n</tool_call>\n': "",
    "<function=stock><parameter=what>bells</parameter></function>": "",
    '[TOOL_CALLS][{"name": "stock", "arguments": {}}]': "",
    "<｜tool▁calls▁begin｜>stock<｜tool▁calls▁end｜>Done.": "Done.",
    "<|im_start|>assistant\nAt nine.<|im_end|>": "At nine.",
    "At nine.<|im_end|>\n<|im_start|>user\nAnd on Sunday?": "At nine.\n",
    "<s>At nine.</s>": "At nine.",
    "At nine.<｜end▁of▁sentence｜>": "At nine.",
    "<|start_header_id|>assistant<|end_header_id|>\n\nAt nine.<|eot_id|>": "At nine.",
    "<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>At nine.": "At nine.",
    "Assistant: At nine.": "At nine.",
    "assistant :\n At nine.": "At nine.",
    "Assistant": "Assistant",
    "Assistants are in at nine.": "Assistants are in at nine.",
    "My assistant: Anna.": "My assistant: Anna.",
    "It is 5 < 7, and <b>bold</b> [1].": "It is 5 < 7, and <b>bold</b> [1].",
    "5 <": "5 <",
}


def passed_on(*deltas: str, thinks_first: bool = False) -> str:
    content, text = SpokenContent(thinks_first=thinks_first), ""
    for spoken in (*map(content.feed, deltas), content.end()):
        text = spoken.text if spoken.anew else text + spoken.text
    return text


@pytest.mark.parametrize("content", CONTENTS)
def test_only_the_answer_is_passed_on(content: str) -> None:
    assert passed_on(content) == CONTENTS[content]
    assert passed_on(*content) == CONTENTS[content]


PIECES = (
    *("<think>", "</think>", "<thinking>", "</thinking>", "<tool_call>", "</tool_call>"),
    *("<|im_start|>", "<|im_end|>", "<|im_start|>user", "<|channel|>", "analysis", "[TOOL_CALLS]"),
    *(
        "<",
        "</",
        "|>",
        "[",
        "<|",
        "<｜",
        "｜>",
        "s>",
        "Assistant",
        ":",
        " ",
        "\n",
        "\xa0",
        "İ",
        "ſ",
    ),
    *("hello", "think", "we open at nine. "),
)


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.data(), st.booleans())
def test_any_division_into_deltas_gives_the_same(
    pieces: list[str], data: st.DataObject, thinks_first: bool
) -> None:
    content = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    deltas = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    assert passed_on(*deltas, thinks_first=thinks_first) == passed_on(
        content, thinks_first=thinks_first
    )


@given(st.text(alphabet="abc <>[]/|.", max_size=40).map(str.lstrip))
def test_what_has_no_tags_is_passed_on_whole(text: str) -> None:
    if "|>" not in text and "s>" not in text:
        assert passed_on(*text) == text


def test_ordinary_words_are_not_delayed() -> None:
    content = SpokenContent()
    assert [content.feed(word).text for word in ("We ", "open ", "at ", "nine")] == [
        *("We ", "open ", "at ", "nine")
    ]


def test_a_content_that_begins_with_reasoning_is_held_until_that_ends() -> None:
    content = SpokenContent(thinks_first=True)
    assert content.feed("Okay, they ").text == ""
    assert content.feed("ask when.</th").text == ""
    assert content.feed("ink>At").text == "At"
    assert content.feed(" nine.").text == " nine."
    assert content.thinks_first


def test_a_model_that_does_not_think_this_time_is_answered_with() -> None:
    content = SpokenContent(thinks_first=True)
    assert content.feed("At nine.").text == ""
    assert content.end().text == "At nine."
    assert not content.thinks_first


def test_reasoning_that_a_limit_cuts_off_is_not_spoken() -> None:
    content = SpokenContent(thinks_first=True)
    content.feed("Okay, they ask")
    assert content.end(cut=True).text == ""
    assert content.thinks_first


def test_what_was_passed_on_of_reasoning_is_taken_back() -> None:
    content = SpokenContent()
    assert content.feed("Okay, they ask when.").text == "Okay, they ask when."
    spoken = content.feed("</think>At nine.")
    assert (spoken.text, spoken.anew, content.thinks_first) == ("At nine.", True, True)
