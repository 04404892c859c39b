"""The streams that recording clients offer: their table, and the offers one by one."""

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.messages.sdp import SdpError, parse
from offhook.telephony.sip.siprec.recorded_streams import (
    LIVE,
    MAX_STREAMS,
    TABLE,
    OurDescription,
    StreamAction,
    StreamEvent,
    StreamState,
    labelled,
    offered_streams,
    refused,
)
from tests.telephony.sip.siprec.recording_client import described


def test_every_state_knows_every_event() -> None:
    assert set(TABLE) == set(product(StreamState, StreamEvent))


@given(st.lists(st.sampled_from(StreamEvent), min_size=1, max_size=30))
def test_a_stream_has_a_receiver_exactly_while_it_is_live(said: list[StreamEvent]) -> None:
    state, open_ones = StreamState.NEW, 0
    for event in said:
        state, actions = TABLE[state, event]
        for action in actions:
            open_ones += (action is StreamAction.OPEN) - (action is StreamAction.CLOSE)
            assert action is not StreamAction.ANSWER or open_ones == 1
        assert open_ones == (state in LIVE)


def test_an_offer_is_read_stream_by_stream() -> None:
    offer = described((4000, "1", "sendonly"), (4002, "2", "inactive"), (0, "3", "sendonly"))
    streams = offered_streams(offer)
    said = [(one.index, one.label, one.says) for one in streams]
    assert said == [
        (0, "1", StreamEvent.SENDS),
        (1, "2", StreamEvent.PAUSES),
        (2, "3", StreamEvent.ENDS),
    ]
    alone = parse(streams[1].sdp)
    assert [media.port for media in alone.media] == [4002]
    assert alone.connection == "127.0.0.1"


def test_a_direction_of_all_streams_counts() -> None:
    offer = described((4000, "1", "x")).replace("t=0 0\r\n", "t=0 0\r\na=inactive\r\n")
    assert offered_streams(offer)[0].says is StreamEvent.PAUSES


def test_two_streams_with_one_label_are_refused() -> None:
    with pytest.raises(SdpError, match="label '1'"):
        offered_streams(described((4000, "1", "sendonly"), (4002, "1", "sendonly")))


def test_video_and_more_streams_than_allowed_have_ended() -> None:
    video = offered_streams(described((4000, "1", "sendonly"), kind="video"))
    assert [one.says for one in video] == [StreamEvent.ENDS]
    many = [(4000 + 2 * n, f"{n}", "sendonly") for n in range(MAX_STREAMS + 2)]
    said = [one.says for one in offered_streams(described(*many))]
    assert said == [StreamEvent.SENDS] * MAX_STREAMS + [StreamEvent.ENDS] * 2


def test_our_version_changes_with_the_streams_alone() -> None:
    ours = OurDescription(7)
    one = labelled(described((5000, "", "recvonly")), "1")
    gone = refused(parse(described((6000, "2", "sendonly"))).media[0])
    texts = [ours.combined([one, gone]), ours.combined([one, gone]), ours.combined([gone, gone])]
    versions = [parse(text).origin.version for text in texts]  # type: ignore[union-attr]
    assert [after - before for before, after in pairwise(versions)] == [0, 1]
    first = parse(texts[0])
    assert [media.port for media in first.media] == [5000, 0]
    assert first.media[0].attribute("label") == "1"
    assert first.media[0].direction == "recvonly"
