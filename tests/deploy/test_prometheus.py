"""Rules fire when they should, and about series that there are."""

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.deploy.servers import COMMANDS, DEPLOY, ROOT, named
from tests.support.waiting import HANGS_S

FOLDER = DEPLOY / "prometheus"
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_configuration_and_rules_are_valid() -> None:
    check("check", "config", "--lint-fatal", "prometheus.yml")
    check("check", "rules", "--lint-fatal", "rules.yml")


@promtool
def test_each_alert_fires_when_it_should_and_not_before() -> None:
    check("test", "rules", "rules.test.yml")


def test_each_alert_is_tested() -> None:
    tests = yaml.safe_load((FOLDER / "rules.test.yml").read_text())["tests"]
    fired = {
        alert["alertname"]
        for test in tests
        for alert in test["alert_rule_test"]
        if alert.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_the_series_of_each_rule_are_there(
    rule: dict[str, Any], exposed: dict[str, set[str]]
) -> None:
    wanted = named(rule["expr"])
    assert wanted or "up{" in rule["expr"]
    assert wanted <= set().union(*exposed.values())


def test_jobs_and_ports_are_those_of_the_services() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    jobs = {job["job_name"]: job["dns_sd_configs"][0] for job in config["scrape_configs"]}
    assert jobs.keys() == COMMANDS.keys()
    aliases = {
        alias: service
        for service in services.values()
        for alias in ((service.get("networks") or {}).get("default") or {}).get("aliases", ())
    }
    for job, found in jobs.items():
        assert found["names"] == [job]
        service = services.get(job) or aliases[job]
        assert re.search(rf":{found['port']}/", str(service["healthcheck"]["test"]))
