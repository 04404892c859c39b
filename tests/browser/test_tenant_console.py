"""The console in Chromium, signed in with the key of one of several customers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offhook.web.records.store import CallStore
from tests.browser.conftest import serving
from tests.web.records.made_calls import HERE, call_of

pytestmark = pytest.mark.browser

SETTINGS = """
[server]
admin_key = "operator"
[agents.shop]
kind = "silent"
[agents.night]
kind = "silent"
[tenants.acme]
key = "acmes-key"
agents = ["shop"]
[tenants.beta]
agents = ["night"]
"""


async def test_a_customer_sees_its_own_calls(tmp_path: Path, drive: Callable[..., Any]) -> None:
    store, now = CallStore(f"sqlite:///{tmp_path}/calls.db"), time.time()
    store.prepare()
    for tenant in ("acme", "beta"):
        made = call_of(f"of-{tenant}", "hello", at=now - 60, tenant=tenant, called=tenant)
        store.write(made, HERE, now)
    store.close()
    file = tmp_path / "offhook.toml"
    file.write_text(SETTINGS)
    async with serving("--config", str(file), OFFHOOK_RECORDS_URL=store.url) as server:
        found = await drive("tenant_console.mjs", url=f"{server.url}/console", key="acmes-key")
    assert found["axe"] == found["troubles"] == []
    seen = found["seen"]
    assert len(seen["calls"]) == 1
    assert "acme" in seen["calls"][0]
    assert "Engines" not in seen["views"]
    assert {"History", "Campaigns", "Trunks", "Agents"} <= set(seen["views"])
    assert "acme" in seen["facts"]
    assert [row.split()[0] for row in seen["agents"]] == ["shop"]
