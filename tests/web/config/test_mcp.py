"""MCP servers and their tools as the configuration has them."""

from pathlib import Path

import pytest

from offhook.web.config.config import Config, ConfigError, load

AGENT = """
[agents.desk]
kind = "openai"
model = "m"
[[agents.desk.tools]]
"""


def read(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "offhook.toml"
    file.write_text(text)
    return load(file, {})


def test_servers_and_the_tools_that_agents_have_of_them(tmp_path: Path) -> None:
    text = """
[mcp.shop]
url = "https://mcp.shop.example/mcp"
headers = {Authorization = "Bearer secret"}
[mcp.files]
command = ["python", "server.py"]
env = {KEY = "secret"}
"""
    tools = 'mcp = "shop"\nnames = ["a", "b"]\nsay = "One moment."\n'
    more = '[[agents.desk.tools]]\nname = "c"\ndescription = "d"\nurl = "http://a.example/"\n'
    config = read(tmp_path, text + AGENT + tools + more)
    first, second = config.agents["desk"].tools
    assert (first.mcp, first.names, second.name) == ("shop", ("a", "b"), "c")
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("server", "tools", "words"),
    [
        ("", 'mcp = "shop"', "agents.desk.tools.0.mcp: no MCP server is called 'shop'"),
        ("", 'mcp = "shop"\nname = ["a"]', ":7: agents.desk.tools.0.name: "),
        ("", 'mcp = "shop"\nsay_after = -1', ":7: agents.desk.tools.0.say_after: "),
        ("", 'mcp = "shop"\nsay = "{{x}}"', ":7: agents.desk.tools.0.say has {{x}}"),
        ("", 'mcp = "shop"\nnames = ["a.b", "a_b"]', "two are called a_b"),
        ("", 'mcp = "shop"\nnames = ["end_call"]', "end_call is a tool that agents have anyway"),
        (
            "",
            'name = "a"\nsay_after = -1\nurl = "http://a/"',
            ":7: agents.desk.tools.0.say_after: ",
        ),
        ("[mcp.shop]", 'mcp = "shop"', "needs url"),
        ('[mcp.shop]\nurl = "ftp://a"', 'mcp = "shop"', ":2: mcp.shop.url"),
        ('[mcp.shop]\nurl = "http://a:b@c/"', 'mcp = "shop"', "a password stands in headers"),
        ('[mcp.shop]\nurl = "http://a/"\ncommand = ["b"]', 'mcp = "shop"', "one of both"),
        ('[mcp.shop]\nurl = "http://a/"\nenv = {A = "b"}', 'mcp = "shop"', "env is for a program"),
        ('[mcp.shop]\ncommand = ["b"]\nheaders = {A = "b"}', 'mcp = "shop"', "headers are for"),
        ('[mcp.shop]\ncommand = ["b"]\nenv = {"A=" = "b"}', 'mcp = "shop"', "no name of a var"),
        ('[mcp.shop]\nurl = "http://a/"\nheaders = {Host = "b"}', 'mcp = "shop"', "'Host' is no"),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(
    tmp_path: Path, server: str, tools: str, words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, f"{server}{AGENT}{tools}\n")
    assert words in str(error.value)
