"""[tenants]: whose a call is, and what is refused, in which words."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from offhook.media.leg import CallInfo
from offhook.web.config.config import Config, ConfigError, load
from offhook.web.config.people.tenants import Tenant, covers, tenant_of

SILENT = {"kind": "silent"}
MODEL = {"kind": "openai", "model": "m"}
TABLES: dict[str, Any] = {
    "server": {"admin_key": "operator"},
    "agents": {"shop": SILENT, "night": SILENT, "desk": SILENT},
    "sip": {
        "trunks": [{"name": "a", "server": "127.0.0.1"}, {"name": "b", "server": "127.0.0.2"}],
        "extensions": {"101": {"password": "p"}, "201": {"password": "p"}},
        "digest": ["MD5"],
    },
    "carriers": [{"provider": "chan_websocket", "account": "asterisk", "secret": "secret"}],
    "queues": {"sales": {"members": ["+491"]}},
    "tenants": {
        "acme": {"agents": ["shop"], "trunks": ["a"], "numbers": ["+4930*", "101"], "key": "1"},
        "beta": {"agents": ["night"], "numbers": ["+4940", "2*"], "carriers": ["chan_websocket"]},
    },
}


def tables(**more: Any) -> dict[str, Any]:
    """The same with some keys of some tables changed."""
    found = dict(TABLES)
    for name, table in more.items():
        found[name] = {**found[name], **table} if isinstance(table, dict) else table
    return found


@pytest.mark.parametrize(
    ("info", "agent", "whose"),
    [
        ({"trunk": "a"}, "desk", "acme"),
        ({"trunk": "a", "called": "+4940"}, "desk", "acme"),
        ({"trunk": "b", "called": "+49301"}, "desk", "acme"),
        ({"trunk": "b", "called": "+4940"}, "desk", "beta"),
        ({"trunk": "b", "called": "+49401"}, "desk", ""),
        ({"trunk": "b"}, "night", "beta"),
        ({"trunk": "b"}, "", ""),
        ({"trunk": "b", "caller": "+4940"}, "desk", ""),  # whoever calls from outside may say that
        ({"trunk": "b", "caller": "+4940", "direction": "outbound"}, "desk", "beta"),
        ({"trunk": "chan_websocket", "edge": "chan_websocket"}, "", "beta"),
        ({"trunk": "chan_websocket"}, "", ""),  # no SIP trunk
        ({"trunk": "ext:101", "called": "201"}, None, "acme"),
        ({"trunk": "b", "called": "201"}, None, "beta"),
        ({"edge": "webrtc"}, "shop", "acme"),
        ({"edge": "webrtc"}, "", ""),
    ],
)
def test_whose_a_call_is(info: dict[str, Any], agent: str | None, whose: str) -> None:
    tenants = Config.model_validate(TABLES).tenants
    assert tenant_of(tenants, CallInfo(**{"edge": "sip", **info}), agent) == whose


ACME, BETA = TABLES["tenants"]["acme"], TABLES["tenants"]["beta"]
SALES = {"acme": {**ACME, "queues": ["sales"]}, "beta": {**BETA, "trunks": ["b"]}}


def sales(**queue: Any) -> dict[str, Any]:
    """The queue of acme's."""
    return {"queues": {"sales": {"members": ["1"], **queue}}, "tenants": SALES}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tenants": {"acme": {"agents": ["no"]}}}, "tenants.acme.agents: there is no agent 'no'"),
        ({"tenants": {"acme": {"trunks": ["no"]}}}, "there is no trunk 'no' (there: a, b)"),
        ({"tenants": {"acme": {"queues": ["no"]}}}, "there is no queue 'no' (there: sales)"),
        ({"tenants": {"acme": {"carriers": ["no"]}}}, "there is no carrier 'no'"),
        ({"tenants": {"beta": {"agents": ["shop"]}}}, "beta.agents: 'shop' is acme's already"),
        ({"tenants": {"beta": {"numbers": ["+49301"]}}}, "'+49301' is acme's already ('+4930*')"),
        ({"tenants": {"beta": {"numbers": ["+*"]}}}, "'+*' is acme's already"),
        ({"tenants": {"beta": {"numbers": ["+4*9"]}}}, "numbers"),
        ({"tenants": {"Beta": {}}}, "Beta"),
        ({"tenants": {"beta": {"key": "1"}}}, "beta.key: somebody else has this key"),
        ({"tenants": {"beta": {"reader_key": "operator"}}}, "beta.reader_key: somebody else"),
        ({"server": {"admin_key": ""}}, "tenants.acme.key: needs [server] admin_key"),
        ({"sip": {"routes": [{"trunk": "a", "agent": "night"}]}}, "sip.routes.0.agent: 'night' is"),
        ({"sip": {"routes": [{"called": "+49301*", "agent": "night"}]}}, "calls of acme come here"),
        ({"sip": {"extensions": {"101": {"password": "p", "voicemail": "night"}}}}, "voicemail"),
        ({"agents": {"shop": {**MODEL, "fallback": "night"}}}, "agents.shop.fallback: 'night' is"),
        ({"agents": {"desk": {**MODEL, "fallback": "night"}}}, "calls of everybody come here"),
        (
            {
                "hours": {
                    "x": {"agents": ["shop"], "otherwise": "night", "open": ["Mon-Fri 09:00-18:00"]}
                }
            },
            "hours.x.otherwise",
        ),
        ({"tenants": {"beta": {"agents": ["night", "agent"]}}}, "sip.trunks.0: without routes"),
        (
            {
                "tenants": {"beta": {**BETA, "queues": ["sales"]}},
                "agents": {"shop": {**MODEL, "transfers": ["queue:sales"]}},
            },
            "'sales' is beta's, and calls of acme come here",
        ),
        (sales(members=["ext:201"]), "queues.sales.members: '201' is beta's"),
        (sales(members=["201,,1"]), "queues.sales.members: '201' is beta's"),
        (sales(trunk="b"), "queues.sales.trunk: 'b' is beta's"),
        (sales(overflow="agent:night"), "queues.sales.overflow: 'night' is beta's"),
        (
            {**sales(overflow="boss"), "transfers": {"boss": {"to": ["ext:201"]}}},
            "transfers.boss.to: '201' is beta's, and calls of acme come here",
        ),
        (
            {
                "transfers": {"boss": {"to": ["ext:201"]}},
                "agents": {"shop": {**MODEL, "transfers": ["boss"]}},
            },
            "transfers.boss.to: '201' is beta's, and calls of acme come here",
        ),
        (
            {
                "records": {
                    "webhooks": [{"url": "http://x/", "secrets": ["s" * 16], "tenant": "no"}]
                }
            },
            "records.webhooks.0.tenant: there is no [tenants.no]",
        ),
    ],
)
def test_what_does_not_fit_is_a_fault(changed: dict[str, Any], words: str) -> None:
    made = {**TABLES, "hours": {}, "records": {}, "transfers": {}}
    for name, table in changed.items():
        made[name] = {**made[name], **table}
    with pytest.raises(ValidationError) as fault:
        Config.model_validate(made)
    assert words in str(fault.value)


def test_keys_come_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text('[server]\nadmin_key = "operator"\n[tenants.acme-berlin]\nmax_calls = 3\n')
    variables = {"OFFHOOK_TENANTS_ACME_BERLIN_KEY": "secret", "OFFHOOK_TENANTS_NEW_READER_KEY": "r"}
    tenants = load(file, variables).tenants
    assert tenants["acme-berlin"] == Tenant(key="secret", max_calls=3)
    assert tenants["new"] == Tenant(reader_key="r")
    with pytest.raises(ConfigError, match="OFFHOOK_TENANTS_ACME_KEYS"):
        load(file, {"OFFHOOK_TENANTS_ACME_KEYS": "secret"})


digits = st.text("+0123*", min_size=1, max_size=4).filter(lambda text: "*" not in text[:-1])


@given(digits, digits, st.text("+0123", max_size=5))
def test_what_a_pattern_covers(wide: str, narrow: str, number: str) -> None:
    if covers(wide, narrow) and covers(narrow, number):
        assert covers(wide, number)
    assert covers(wide, wide)
    assert not covers(wide, "")
