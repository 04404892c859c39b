"""What is wrong with a flow is said at the start, each with its file and line."""

from pathlib import Path

import pytest

from offhook.web.config.config import Config, ConfigError, load
from offhook.web.config.flows import MAX_FLOW_BYTES

AGENT = """
[agents.x]
kind = "openai"
model = "m"
base_url = "http://localhost:8000/v1"
flow = "flow.toml"
handoffs = ["agent"]
[[agents.x.tools]]
name = "status"
description = "d"
url = "http://localhost/"
"""
FLOW = """initial = "a"
[nodes.a]
task = "A."
functions = ["status", "end_call", "hand_over_to_agent",
  {name = "on", description = "d", next = "b"}]
[nodes.b]
task = "B."
post_actions = [{say = "Bye, {{caller}}."}, {hang_up = true}]
"""


def loaded(folder: Path, flow: str, agent: str = AGENT) -> Config:
    (folder / "flow.toml").write_text(flow)
    (folder / "offhook.toml").write_text(agent)
    return load(Path("offhook.toml"), {})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_flow_is_read_with_the_configuration(folder: Path) -> None:
    flow = loaded(folder, FLOW).agents["x"].loaded_flow
    assert flow is not None
    assert [one.name for one in flow.functions_of("a")] == [
        *("status", "end_call", "hand_over_to_agent", "on")
    ]
    assert (
        loaded(folder, FLOW, AGENT.replace('flow = "flow.toml"\n', "")).agents["x"].loaded_flow
        is None
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('initial = "a"', 'initial = "c"', 1, "no node is called 'c' (there: a, b)"),
        ('initial = "a"', "", None, "flow.toml: initial: is missing"),
        ('next = "b"', 'next = "bb"', 4, "nodes.a.functions.3.next: no node is called 'bb'"),
        ('"status"', '"stattus"', 4, "no function is called 'stattus'; did you mean 'status'?"),
        ('"end_call"', '{name = "end_call", next = "b"}', 4, "end_call cannot lead to a node"),
        ("[nodes.b]", "[nodes.c]\ntask = 'C.'\n[nodes.b]", 6, "no function leads to this node"),
        ("post_actions", "# ", 6, "nodes.b: nothing leads on from here"),
        ('task = "A."', 'taks = "A."', 3, "nodes.a.taks: there is no such key; did you mean task?"),
        ('task = "A."', 'task = "{{who}}"', 3, "nodes.a.task: has {{who}}, which is none of"),
        ("{{caller}}", "{{who}}", 8, "post_actions.0.say: has {{who}}, which is none of"),
        ('task = "A."', "", 2, "nodes.a: needs task"),
        ('{name = "on"', '{name = "status"', 4, "status is a function that the agent has"),
        ('{name = "on"', '{name = "one on"', 4, "name: must be like"),
        ('"status", "end', '"status", "status", "end', 2, "two functions are called status"),
        (', next = "b"}', "}", 4, "needs next"),
        ('next = "b"', 'next = {x = "b"}', 4, "next_by = "),
        ('next = "b"', 'next = {x = "b"}, next_by = "y"', 4, "next_by: 'y' is none of its param"),
        ("{hang_up = true}", '{hang_up = true, say = "x"}', 8, "needs one of say"),
        ("{hang_up = true}", '{hand_over = "nobody"}', 8, "no agent is called 'nobody'"),
        ("{hang_up = true}", '{hand_over = "x"}', 8, "'x' is the agent itself"),
        ("{hang_up = true}", '{hang_up = "yes"}', 8, 'hang_up: must be true or false, not "yes"'),
        (
            "{hang_up = true}",
            '{transfer = "foo bar"}',
            8,
            "transfer: 'foo bar' is neither a number, as \"+4930123456\", nor a SIP address",
        ),
        ("{hang_up = true}", '{transfer = "sip:@"}', 8, "transfer: 'sip:@' is no SIP address: "),
        ("{hang_up = true}", '{transfer = "x"}', 8, "'x' is an agent: write hand_over = \"x\""),
        (
            "[nodes.b]",
            "[nodes.b.c]",
            6,
            'nodes.b.c: a name with a dot needs quotes: write [nodes."b.c"]',
        ),
        ('[{say = "Bye', '[{hang_up = true}, {say = "Bye', 8, "nothing comes after the action"),
        ('task = "A."', 'task = "A."\npre_actions = [{hang_up = true}]', 4, "would end before"),
        (
            'task = "A."',
            'task = "A."\ncollect = ["name"]',
            4,
            "no detail is called 'name' (there: none)",
        ),
        ('task = "A."', "task = A.", 3, "task must have its text in quotes"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    folder: Path, old: str, new: str, line: int | None, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(folder, FLOW.replace(old, new, 1))
    words = str(refused.value)
    assert "offhook.toml:6: agents.x.flow: flow.toml" in words
    assert says in words
    if line is not None:
        assert f"flow.toml:{line}: " in words


def test_all_that_is_wrong_is_said(folder: Path) -> None:
    flow = FLOW.replace('next = "b"', 'next = "c"').replace("{{caller}}", "{{who}}")
    with pytest.raises(ConfigError) as refused:
        loaded(folder, flow)
    assert [line.split(": ")[2] for line in str(refused.value).splitlines()] == [
        *("flow.toml:4", "flow.toml:6", "flow.toml:8")
    ]


@pytest.mark.parametrize("target", ["+49 (30) 123-456", "*21", "200", "reception", "sip:a@b.de"])
def test_who_can_be_called_can_be_transferred_to(folder: Path, target: str) -> None:
    flow = loaded(folder, FLOW.replace("hang_up = true", f'transfer = "{target}"')).agents["x"]
    assert flow.loaded_flow is not None
    assert flow.loaded_flow.nodes["b"].post_actions[-1].transfer == target


def test_a_file_that_cannot_be_read_is_a_fault(folder: Path) -> None:
    (folder / "offhook.toml").write_text(AGENT)
    with pytest.raises(ConfigError, match=r"x.flow: flow.toml: No such file"):
        load(Path("offhook.toml"), {})
    with pytest.raises(ConfigError, match=f"is over {MAX_FLOW_BYTES} bytes"):
        loaded(folder, "#" * (MAX_FLOW_BYTES + 1))
    (folder / "flow.toml").write_bytes(b"\xff\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load(Path("offhook.toml"), {})


def test_what_else_an_agent_has_fits_its_flow(folder: Path) -> None:
    realtime = AGENT.replace('"openai"', '"realtime"')
    with pytest.raises(ConfigError, match='flow: only for kind = "openai"'):
        loaded(folder, FLOW, realtime)
    begins = FLOW.replace('task = "A."', 'task = "A."\npre_actions = [{say = "Hello."}]')
    loaded(folder, begins)
    with pytest.raises(ConfigError, match="pre_actions: the agent has a greeting"):
        loaded(folder, begins, AGENT.replace("[[", 'greeting = "Hello."\n[['))


def test_tools_of_an_mcp_server_may_be_more_than_are_known(folder: Path) -> None:
    servers = '[mcp.shop]\nurl = "http://localhost:9000/mcp"\n[[agents.x.tools]]\nmcp = "shop"\n'
    flow = FLOW.replace('"status"', '"status", "of_the_server"')
    assert loaded(folder, flow, AGENT + servers).agents["x"].loaded_flow is not None
    with pytest.raises(ConfigError, match="no function is called 'of_the_server'"):
        loaded(folder, flow)
