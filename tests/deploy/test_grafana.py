"""Every panel of the dashboard asks for series that there are, in PromQL that parses."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import yaml

from offhook.web.records.search import Search
from tests.deploy.servers import DEPLOY, ROOT, named
from tests.support.waiting import HANGS_S

FOLDER = DEPLOY / "grafana"
CONSOLE = ROOT / "offhook/web/edge/console/static"
BOARD: dict[str, Any] = json.loads((FOLDER / "dashboards/offhook.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}


def expressions() -> Iterator[tuple[str, str]]:
    """Titles of panels, and what they ask for."""
    for panel in PANELS:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_the_series_of_each_panel_are_there(
    panel: dict[str, Any], exposed: dict[str, set[str]]
) -> None:
    there = set().union(*exposed.values())
    for target in panel["targets"]:
        wanted = named(target["expr"])
        assert wanted or "(up{" in target["expr"]
        assert wanted <= there


def test_what_we_measure_is_shown(exposed: dict[str, set[str]]) -> None:
    """A series of ours that no panel and no rule asks for is either forgotten or for nobody."""
    asked = named(json.dumps(BOARD)) | named((DEPLOY / "prometheus/rules.yml").read_text())
    ours = {name for name in set().union(*exposed.values()) if name.startswith("offhook_")}
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in ours}
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name in asked}
    made = {name for name in families if name.endswith("_created")}
    assert families - shown - made <= {
        "offhook_sip_responses_total",  # by class; the requests are shown
        "offhook_sip_calls",  # in offhook_calls_in_progress
        "offhook_tts_voice_cache_evictions_total",
        "offhook_tts_voice_cache_voices",
        "offhook_tts_voice_cache_bytes",
    }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")
def test_every_expression_parses(tmp_path: Path) -> None:
    rules = [{"record": "panel", "expr": expression} for _, expression in expressions()]
    file = tmp_path / "rules.yml"
    for number, rule in enumerate(rules):
        rule["record"] = f"panel:{number}"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_labels_in_legends_are_kept_by_the_expression() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            kept = re.findall(r"by \(([\w, ]+)\)", target["expr"])
            labels = {label.strip() for group in kept for label in group.split(",")}
            used = set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
            if kept:
                assert used <= labels, panel["title"]


def test_links_lead_to_views_and_searches_of_the_console() -> None:
    [variable] = [v for v in BOARD["templating"]["list"] if v["name"] == "console"]
    assert variable["type"] == "textbox"
    links = [*BOARD["links"], *(link for panel in PANELS for link in panel.get("links", ()))]
    assert len(links) > 5
    views = set(re.findall(r"#/(\w+)", (CONSOLE / "index.html").read_text()))
    for link in links:
        where, view, query = re.fullmatch(r"(.*)#/(\w+)/?\??(.*)", link["url"]).groups()
        assert (where, view in views) == ("${console:raw}", True)
        times = {"${__from:date:iso}": "2026-03-01T10:00:00.000Z", "${__to:date:iso}": "1h"}
        for name, value in times.items():
            query = query.replace(name, value)
        Search.of(dict(parse_qsl(query)))


def test_panels_have_their_own_numbers_and_places() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_grafana_finds_its_data_source_and_the_dashboard() -> None:
    """By the paths in compose.yaml."""
    source = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text())
    (prometheus,) = source["datasources"]
    variable = next(v for v in BOARD["templating"]["list"] if v["type"] == "datasource")
    assert variable["query"] == prometheus["type"]
    assert variable["current"]["value"] == prometheus["uid"]
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert prometheus["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    provider = yaml.safe_load((FOLDER / "provisioning/dashboards/offhook.yml").read_text())
    mounted = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    inside = {to: (ROOT / of).resolve() for of, to in mounted.items() if of.startswith(".")}
    assert inside["/etc/grafana/provisioning"] == FOLDER / "provisioning"
    path = provider["providers"][0]["options"]["path"]
    assert (inside[path] / "offhook.json").is_file()
