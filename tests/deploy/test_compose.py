"""compose.yaml is a composition of what there is: files, commands, variables, ports."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from offhook.web.app.cli.parser import parser
from offhook.web.config import config
from tests.deploy.servers import DEPLOY, ROOT
from tests.support.waiting import HANGS_S

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "offhook:" in service["image"]]
SECRETS = {"WORKER_KEY": "w", "GRAFANA_PASSWORD": "g", "API_KEY": "a", "ADMIN_KEY": "o"}
ICE = '[{"urls": "turn:203.0.113.7:3478", "username": "offhook", "credential": "c"}]'


def filled(text: str, values: dict[str, str]) -> str:
    """As Compose puts values in; raises KeyError for one that must be given."""

    def value(found: re.Match[str]) -> str:
        name, how, default = found.groups()
        if how == ":?":
            return values[name]
        return values.get(name) or default or ""

    return re.sub(r"\${(\w+)(?:(:[-?])([^}]*))?}", value, text)


def has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=HANGS_S)
    return asked.returncode == 0


@pytest.mark.parametrize("name", OURS)
def test_each_command_is_one_of_ours(name: str) -> None:
    command = [filled(word, SECRETS) for word in SERVICES[name].get("command", ["serve"])]
    arguments = parser().parse_args(command)
    assert arguments.command in ("serve", "speech", "worker")
    if arguments.command == "worker":
        assert name.startswith(arguments.kind)


@pytest.mark.parametrize("name", OURS)
def test_health_is_asked_where_it_listens(name: str) -> None:
    """And for as long as a model takes to load a failing check is no fault."""
    check = SERVICES[name]["healthcheck"]
    assert check["start_period"] == "60s"
    port = re.search(r"localhost:(\d+)/readyz$", check["test"][-1])
    assert port is not None
    listened = shlex.join(SERVICES[name].get("command", ["0.0.0.0:7860"]))
    assert f":{port[1]}" in listened


@pytest.mark.parametrize("ice", ["", ICE])
def test_the_configuration_is_what_the_servers_take(ice: str, tmp_path: Path) -> None:
    for name in ("edge", "speech"):
        values = {**SECRETS, "ICE_SERVERS": ice}
        environment = {k: filled(v, values) for k, v in SERVICES[name]["environment"].items()}
        (tmp_path / "offhook.toml").touch()
        loaded = config.load(tmp_path / "offhook.toml", environment)
        assert loaded.asr.url == "http://asr:7870"
        assert loaded.tts.api_key == SECRETS["WORKER_KEY"]
        assert len(loaded.webrtc.ice_servers) == bool(ice)
        assert loaded.log.json_lines
        assert (loaded.server.api_key, loaded.server.admin_key) == ("a", "o")
        for key in environment:
            section, _, field = key.removeprefix("OFFHOOK_").lower().partition("_")
            assert field in type(getattr(loaded, section)).model_fields


def test_a_worker_is_called_the_same_in_every_profile() -> None:
    names: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        networks = service.get("networks", {}).get("default", {})
        for called in networks.get("aliases", [name]):
            for profile in service.get("profiles", ["always"]):
                names.setdefault(profile, set()).add(called)
    assert names["cpu"] == names["gpu"] == {"asr", "tts"}


def test_without_its_secrets_nothing_starts() -> None:
    text = (ROOT / "compose.yaml").read_text()
    for name in SECRETS:
        with pytest.raises(KeyError, match=name):
            filled(text, {key: value for key, value in SECRETS.items() if key != name})
    filled(text, SECRETS)


def test_the_example_names_every_variable() -> None:
    """Images apart: they are for mirrors."""
    example = (DEPLOY / "env.example").read_text()
    named = set(re.findall(r"^(?:# )?([A-Z_]+)=", example, re.MULTILINE))
    used = set(re.findall(r"\${([A-Z_]+)", (ROOT / "compose.yaml").read_text()))
    assert named == {name for name in used if not name.endswith("_IMAGE")}


def test_the_example_of_a_database_is_the_one_that_is_there() -> None:
    example = (DEPLOY / "env.example").read_text()
    found = re.search(r"RECORDS_URL=postgresql://(\w+):PASSWORD@(\w+)/(\w+)", example)
    assert found is not None
    user, host, database = found.groups()
    settings = SERVICES[host]["environment"]
    assert (settings["POSTGRES_USER"], settings["POSTGRES_DB"]) == (user, database)
    assert SERVICES[host]["profiles"] == ["database"]


def test_only_this_machine_is_let_in_unless_told_otherwise() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            assert filled(port, SECRETS).startswith("127.0.0.1:"), name


def test_mounted_files_are_there() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            elif not source.startswith("$"):
                assert source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", OURS)
def test_ours_can_do_no_more_than_they_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert float(service["stop_grace_period"].removesuffix("s")) > config.Server().drain_seconds


def test_turn_relays_to_the_servers_alone() -> None:
    settings = (DEPLOY / "coturn/turnserver.conf").read_text()
    (subnet,) = COMPOSE["networks"]["default"]["ipam"]["config"]
    first = subnet["subnet"].removesuffix("0/24")
    assert f"allowed-peer-ip={first}0-{first}255" in settings
    assert "denied-peer-ip=0.0.0.0-255.255.255.255" in settings
    lowest, highest = re.findall(r"m(?:in|ax)-port=(\d+)", settings)
    assert SERVICES["turn"]["ports"][-1].endswith(f":{lowest}-{highest}:{lowest}-{highest}/udp")


@pytest.mark.skipif(not has_compose(), reason="no docker compose")
def test_docker_takes_it() -> None:
    """It needs no engine for that."""
    command = ["docker", "compose", "--profile", "cpu", "--profile", "gpu", "config", "--quiet"]
    environment = {**os.environ, **SECRETS}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGS_S
    )
    assert done.returncode == 0, done.stderr
