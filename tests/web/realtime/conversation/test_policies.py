"""The tables of states."""

from itertools import product

from offhook.web.realtime.conversation.input_buffer import INPUT_POLICY, InputState, InputTrigger
from offhook.web.realtime.conversation.response import (
    RESPONSE_POLICY,
    Response,
    ResponseState,
    ResponseTrigger,
)


def test_the_input_buffer_knows_what_to_do_in_each_state() -> None:
    assert set(INPUT_POLICY) == set(product(InputState, InputTrigger))


def test_a_response_ends_once_and_from_every_state() -> None:
    final = set(RESPONSE_POLICY.values()) - {state for state, _ in RESPONSE_POLICY}
    assert final == {
        ResponseState.COMPLETED,
        ResponseState.INCOMPLETE,
        ResponseState.CANCELLED,
        ResponseState.FAILED,
    }
    for state in set(ResponseState) - final:
        assert RESPONSE_POLICY[state, ResponseTrigger.CANCEL] is ResponseState.CANCELLED
        assert RESPONSE_POLICY[state, ResponseTrigger.FAIL] is ResponseState.FAILED


def test_a_response_that_is_over_stays_as_it_is() -> None:
    response = object.__new__(Response)
    response.state = ResponseState.COMPLETED
    assert not response.step(ResponseTrigger.CANCEL)
    assert response.state is ResponseState.COMPLETED
