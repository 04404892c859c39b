"""Whatever a model calls: a conversation is in one of its flow's nodes, moves only by a function of
the node, and comes to a stop."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.config.flows import Flow, FlowFunction, FlowNode
from offhook.web.tools.flow_position import MAX_MOVES, FlowTable, Position

NODES = ("a", "b", "c", "d")
NAMES = ("go", "choose", "tool", "unknown")
words = st.sampled_from((*NODES, "x", ""))
arguments = st.dictionaries(st.sampled_from(("by", "x")), words | st.integers() | st.none())


@st.composite
def functions(draw: st.DrawFn) -> FlowFunction:
    match draw(st.sampled_from(NAMES[:3])):
        case "go":
            return FlowFunction(name="go", description="d", next=draw(st.sampled_from(NODES)))
        case "choose":
            choice = draw(st.dictionaries(words, st.sampled_from(NODES), min_size=1))
            about: dict[str, Any] = {"parameters": {"by": "what"}, "next_by": "by"}
            return FlowFunction(name="choose", description="d", next=choice, **about)
        case _:
            return FlowFunction(name="tool", next=draw(st.sampled_from((*NODES, ""))))


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    lists = st.lists(functions(), max_size=3, unique_by=lambda one: one.name)
    nodes = {name: FlowNode(task="t", functions=tuple(draw(lists))) for name in NODES}
    return Flow(initial=draw(st.sampled_from(NODES)), nodes=nodes)


calls = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NAMES), arguments))


@given(flows(), calls)
def test_whatever_is_called_leads_only_where_a_function_of_the_node_leads(
    flow: Flow, made: list[tuple[str, str, dict[str, Any]]]
) -> None:
    table = FlowTable(flow)
    at, moves = table.start, 0
    for node, name, given_arguments in made:
        following = table.next(at, node, name, given_arguments)
        if isinstance(following, str):
            assert following  # which the model is told
            continue
        assert node == at.node
        (called,) = [one for one in flow.functions_of(node) if one.name == name]
        assert following.node in called.targets
        if isinstance(called.next, dict):
            assert following.node == called.next[given_arguments["by"]]
        at, moves = following, moves + 1
    assert at.node in flow.nodes
    assert moves <= MAX_MOVES


@given(flows(), st.sampled_from(NODES), st.integers(0, MAX_MOVES - 1))
def test_what_is_offered_leads_on(flow: Flow, node: str, moves: int) -> None:
    table, at = FlowTable(flow), Position(node, moves)
    for function in flow.functions_of(node):
        chosen = function.next if isinstance(function.next, dict) else {"": function.next}
        for value, target in chosen.items():
            following = table.next(at, node, function.name, {"by": value})
            if target:
                assert following == Position(target, moves + 1)
            else:
                assert isinstance(following, str)


@pytest.mark.parametrize("value", ["z", 7, None, ["a"], {"a": 1}])
def test_a_choice_that_is_none_is_told_what_there_is(value: Any) -> None:
    choice = FlowFunction(
        name="choose", description="d", parameters={"by": "w"}, next_by="by", next={"x": "a"}
    )
    flow = Flow(initial="a", nodes={"a": FlowNode(task="t", functions=(choice,))})
    table = FlowTable(flow)
    assert table.next(table.start, "a", "choose", {"by": value}) == "by must be one of x"
