"""What tools cost a turn: each agent does what it is compared for."""

import sys
from pathlib import Path

import pytest

from benchmarks.calls.turn_cost import FUNCTION, MODULE, Model, kinds, table_of, turns
from offhook.web.config.config import load


async def test_every_agent_calls_its_tool_in_every_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{MODULE}.py").write_text(FUNCTION)
    async with Model().served() as url:
        compared = {kind.name: kind for kind in kinds(f"{url}/orders/{{number}}", tmp_path)}
        agents = [compared[name] for name in ("plain", "variables", "http_tool", "python_tool")]
        path = tmp_path / "offhook.toml"
        path.write_text("\n".join(table_of(kind, f"{url}/v1") for kind in agents))
        await turns(load(path, {}), agents, 1)
    assert [len(kind.turns_ms) for kind in agents] == [1, 1, 1, 1]
    sys.modules.pop(MODULE)
