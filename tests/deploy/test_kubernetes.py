"""deploy/kubernetes fits the program: commands, probes, ports, keys, metrics, times."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.web.app.cli.parser import parser
from offhook.web.config import config as configuration
from offhook.web.config.config import Config
from offhook.web.edge import edge_io
from offhook.web.edge.calls import draining_io
from offhook.web.http.access import ROUTES, Role
from offhook.web.workers.worker_io import WorkerSettings
from tests.deploy.cluster import (
    FOLDER,
    HAS_KUSTOMIZE,
    OVERLAYS,
    SECRETS,
    Container,
    container,
    containers,
    matches,
    of_kind,
    rendered,
    selected,
)
from tests.deploy.servers import DEPLOY, ROOT, named
from tests.deploy.test_dockerfile import steps_of

pytestmark = pytest.mark.skipif(not HAS_KUSTOMIZE, reason="no kubectl or kustomize")
NODE = "192.0.2.9"
PAGE = ROOT / "docs/kubernetes.md"
ROOM = 0.75
"""Share of a limit above which a further edge or worker is wanted, at most."""
each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
each_pod = pytest.mark.parametrize(
    ("overlay", "pod"), [(overlay, pod) for overlay in OVERLAYS for pod in ("edge", "asr", "tts")]
)


def pod_spec(overlay: str, pod: str) -> dict[str, Any]:
    spec: dict[str, Any] = of_kind(overlay, "Deployment")[pod]["spec"]["template"]["spec"]
    return spec


def edge_config(overlay: str, folder: Path) -> Config:
    """As the edge reads it from its ConfigMap and environment."""
    edge = container(overlay, "edge")
    arguments = parser().parse_args(edge.command(["offhook"], NODE)[1:])
    (folder / "offhook.toml").write_text(edge.files()[str(arguments.config)])
    return configuration.load(folder / "offhook.toml", edge.environment(NODE))


def listens(at: Container, folder: Path) -> int:
    """The port at which a server of ours listens for HTTP."""
    arguments = parser().parse_args(at.command(["offhook"], NODE)[1:])
    if arguments.command == "worker":
        host, _, port = arguments.listen.partition(":")
        assert host == "0.0.0.0"
        return int(port)
    return edge_config(at.overlay, folder).server.port


# --- commands and configuration ---


@each_pod
def test_each_command_is_one_of_ours(overlay: str, pod: str) -> None:
    command, *words = container(overlay, pod).command(["offhook"], NODE)
    arguments = parser().parse_args(words)
    assert (command, arguments.command) == ("offhook", "serve" if pod == "edge" else "worker")
    assert pod in ("edge", getattr(arguments, "kind", ""))


@each_overlay
def test_the_configuration_is_what_an_edge_takes(overlay: str, tmp_path: Path) -> None:
    config = edge_config(overlay, tmp_path)
    services = of_kind(overlay, "Service")
    for name, url in (("asr", config.asr.url), ("tts", config.tts.url)):
        (port,) = services[name]["spec"]["ports"]
        assert url == f"http://{name}:{port['port']}"
        assert services[name]["spec"]["clusterIP"] == "None"  # edges see each worker
    assert config.server.api_key
    assert config.server.admin_key
    assert config.webrtc.public_address == NODE
    assert config.webrtc.port == container(overlay, "edge").ports["webrtc-udp"]
    redis = f"redis://:{SECRETS['redis-password']}@redis:6379/0"
    assert config.server.redis == config.tts.audio_cache == redis


@each_overlay
def test_each_variable_is_read(overlay: str) -> None:
    """By the program, or by another variable or an argument of the same container."""
    for it in containers(overlay):
        if not it.is_offhook:
            continue
        used = set(re.findall(r"\$\((\w+)\)", json.dumps(it.spec)))
        values = it.environment(NODE)
        assert used <= values.keys()
        of_image = re.findall(r"(\w+)=", " ".join(steps_of("cuda", "ENV")))
        for name in values.keys() - used - {"OFFHOOK_WORKER_API_KEY", *of_image}:
            section, _, key = name.removeprefix("OFFHOOK_").lower().partition("_")
            table = SipSettings if section == "sip" else Config.model_fields[section].annotation
            assert key in getattr(table, "model_fields", table.__dict__), name
    assert "OFFHOOK_WORKER_API_KEY" in (ROOT / "offhook/web/app/cli/parser.py").read_text()
    for worker in ("asr", "tts"):
        assert "OFFHOOK_WORKER_API_KEY" in container(overlay, worker).environment(NODE)


@each_overlay
def test_images_and_users_are_those_of_the_dockerfiles(overlay: str) -> None:
    text = (ROOT / "Dockerfile").read_text()
    own = re.findall(r"docker build --target (\w+) -t (\S+) ", text)
    assert own == [("cpu", "offhook:cpu"), ("cuda", "offhook:cuda")]
    user, group = re.findall(r"^USER (\d+):(\d+)$", text, re.MULTILINE)[0]
    assert f"USER {user}:{group}" in (DEPLOY / "kamailio/Dockerfile").read_text()
    for it in containers(overlay):
        tag = it.spec["image"].rpartition(":")[2]
        if it.is_offhook:
            assert tag.rpartition("-")[2] in dict(own)
        context = it.pod_spec["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"]) == (int(user), int(group))


def test_an_image_of_ours_can_be_replaced_by_name() -> None:
    """In an overlay of one's own, as overlays/site does."""
    images = {it.spec["image"] for it in containers("site") if it.pod != "redis"}
    assert images == {
        "registry.example/offhook:1.0.0-cpu",
        "registry.example/offhook:1.0.0-cuda",
        "registry.example/offhook-kamailio:1.0.0",
    }


@each_overlay
def test_keys_are_made_by_the_command_of_the_page_and_nowhere_else(overlay: str) -> None:
    asked = re.findall(
        r'"secretKeyRef": {"key": "([\w-]+)", "name": "(\w+)"}',
        json.dumps(rendered(overlay), sort_keys=True),
    )
    assert set(asked) == {(key, "offhook") for key in SECRETS}
    assert not of_kind(overlay, "Secret")
    made = re.findall(r"--from-literal=([\w-]+)=", PAGE.read_text())
    assert set(made) == SECRETS.keys()
    assert "create secret generic offhook " in PAGE.read_text()


# --- probes and times ---


@each_pod
def test_it_is_asked_what_it_answers_where_it_listens(
    overlay: str, pod: str, tmp_path: Path
) -> None:
    at = container(overlay, pod)
    assert at.ports["http"] == listens(at, tmp_path)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = at.spec[probe]["httpGet"]
        assert ROUTES[get["path"].removeprefix("/")] is Role.PROBE
        assert get["port"] == "http"
    assert at.spec["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert at.spec["readinessProbe"]["periodSeconds"] == 1
    assert at.spec["livenessProbe"]["httpGet"]["path"] == "/healthz"


@each_overlay
def test_what_drains_is_given_the_time(overlay: str, tmp_path: Path) -> None:
    edge = pod_spec(overlay, "edge")
    (at,) = edge["containers"]
    waits = at["lifecycle"]["preStop"]["sleep"]["seconds"]
    drains = edge_config(overlay, tmp_path).server.drain_seconds
    needed = waits + drains + draining_io.FAREWELL_S + edge_io.GOODBYE_S
    assert edge["terminationGracePeriodSeconds"] >= needed + 10
    for worker in ("asr", "tts"):
        grace = pod_spec(overlay, worker)["terminationGracePeriodSeconds"]
        assert grace >= WorkerSettings("", "").drain_seconds + 10


@each_pod
def test_an_upgrade_takes_nobody_away_first(overlay: str, pod: str) -> None:
    spec = of_kind(overlay, "Deployment")[pod]["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (budget,) = (
        b["spec"]
        for b in of_kind(overlay, "PodDisruptionBudget").values()
        if selected(overlay, b["spec"]["selector"]) == [pod]
    )
    assert budget["maxUnavailable"] == 1


@each_overlay
def test_there_are_two_unless_they_are_counted_by_load(overlay: str) -> None:
    scaled = {
        s["spec"]["scaleTargetRef"]["name"] for s in of_kind(overlay, "ScaledObject").values()
    }
    assert scaled == ({"edge", "asr", "tts"} if overlay == "site" else set())
    for name, deployment in of_kind(overlay, "Deployment").items():
        wanted = {"redis": 1}.get(name, None if name in scaled else 2)
        assert deployment["spec"].get("replicas") == wanted


# --- names ---


@each_overlay
def test_names_fit_together(overlay: str) -> None:
    """Labels and selectors, ports, volumes, ConfigMaps and claims."""
    deployments = of_kind(overlay, "Deployment")
    for deployment in deployments.values():
        spec = deployment["spec"]
        assert matches(spec["selector"], spec["template"]["metadata"]["labels"])
        assert selected(overlay, spec["selector"]) == [deployment["metadata"]["name"]]
        for spread in spec["template"]["spec"].get("topologySpreadConstraints", ()):
            assert spread["labelSelector"] == spec["selector"]
    for name, service in of_kind(overlay, "Service").items():
        (pod,) = selected(overlay, {"matchLabels": service["spec"]["selector"]})
        assert pod in (name, "edge")
        names = {n for it in containers(overlay) if it.pod == pod for n in it.ports}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    for resource in rendered(overlay):
        assert resource["metadata"].get("namespace", "offhook") == "offhook"
        assert resource["metadata"]["labels"]["app.kubernetes.io/part-of"] == "offhook"
    for it in containers(overlay):
        volumes = {volume["name"]: volume for volume in it.pod_spec["volumes"]}
        assert {mount["name"] for mount in it.spec["volumeMounts"]} <= volumes.keys()
        it.files()  # of ConfigMaps that are there
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or claim in of_kind(overlay, "PersistentVolumeClaim")


@each_overlay
def test_only_those_who_use_a_port_reach_it(overlay: str) -> None:
    policies = {n: p["spec"] for n, p in of_kind(overlay, "NetworkPolicy").items()}
    assert policies["nobody"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, policy in policies.items():
        pods = selected(overlay, policy["podSelector"])
        assert pods, name
        ports = {p for it in containers(overlay) if it.pod in pods for p in it.ports.values()}
        for rule in policy.get("ingress", ()):
            assert {port["port"] for port in rule["ports"]} <= ports, name
    reach = {
        name: {
            pod
            for rule in policies[name]["ingress"]
            for source in rule["from"]
            for pod in selected(overlay, source["podSelector"])
        }
        for name in ("asr", "tts", "redis")
    }
    assert reach == {"asr": {"edge"}, "tts": {"edge"}, "redis": {"edge", "tts"}}
    assert all("from" not in rule for rule in policies["edge"]["ingress"])


@each_overlay
def test_a_pod_can_do_no_more_than_it_needs(overlay: str) -> None:
    for it in containers(overlay):
        pod, own = it.pod_spec, it.spec["securityContext"]
        assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert {"memory", "ephemeral-storage"} <= it.spec["resources"]["limits"].keys()
        host = pod.get("hostNetwork") or any("hostPort" in p for p in it.spec.get("ports", ()))
        assert not host or it.pod in ("edge", "kamailio")
        assert not pod.get("hostNetwork") or overlay == "site"


@each_overlay
def test_who_has_the_image_for_gpus_has_a_gpu(overlay: str) -> None:
    """Without one it would see all of the node's."""
    for it in containers(overlay):
        wanted = 1 if it.spec["image"].endswith("cuda") else None
        resources = it.spec["resources"]
        assert resources["limits"].get("nvidia.com/gpu") == wanted
        assert resources["requests"].get("nvidia.com/gpu") == wanted


# --- what is measured ---


@pytest.mark.parametrize("pod", ["edge", "asr", "tts"])
def test_counted_is_a_series_of_what_is_scaled(pod: str, exposed: dict[str, set[str]]) -> None:
    scaled = of_kind("site", "ScaledObject")[pod]["spec"]
    (trigger,) = scaled["triggers"]
    series = named(trigger["metadata"]["query"])
    assert len(series) == 1
    assert series <= exposed[pod]
    assert 'namespace="offhook"' in trigger["metadata"]["query"]


def test_a_further_one_comes_before_they_are_full(tmp_path: Path) -> None:
    limits = {"edge": edge_config("site", tmp_path).server.max_calls}
    for worker in ("asr", "tts"):
        words = container("site", worker).command(["offhook"], NODE)[1:]
        limits[worker] = parser().parse_args(words).max_streams
    for name, limit in limits.items():
        (trigger,) = of_kind("site", "ScaledObject")[name]["spec"]["triggers"]
        assert limit / 2 < float(trigger["metadata"]["threshold"]) <= limit * ROOM


def test_jobs_are_called_as_rules_and_dashboard_know_them() -> None:
    (monitor,) = of_kind("site", "PodMonitor").values()
    pods = selected("site", monitor["spec"]["selector"])
    assert sorted(pods) == ["asr", "edge", "tts"]
    label = monitor["spec"]["jobLabel"]
    for pod in pods:
        template = of_kind("site", "Deployment")[pod]["spec"]["template"]
        assert template["metadata"]["labels"][label] == pod
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in container("site", pod).ports
        assert ROUTES[endpoint["path"].removeprefix("/")] is Role.METRICS


# --- from outside ---


def test_the_ingress_has_the_routes_of_callers_alone() -> None:
    (rule,) = of_kind("site", "Ingress")["edge"]["spec"]["rules"]
    paths = {path["path"].removeprefix("/"): path["pathType"] for path in rule["http"]["paths"]}
    inside = (Role.PROBE, Role.METRICS, Role.OPERATOR, Role.RECORDS)
    callers = {name.partition("/")[0] for name, role in ROUTES.items() if role not in inside}
    assert paths.keys() == callers - {"console", "desk"}  # the pages of the operator and the team
    assert {name for name, kind in paths.items() if kind == "Exact"} == {""}


def test_phones_reach_the_edges_through_kamailio(tmp_path: Path) -> None:
    sip = edge_config("site", tmp_path).sip
    assert sip is not None
    edge, proxy = container("site", "edge"), container("site", "kamailio")
    assert (sip.host, sip.udp, sip.tcp) == (NODE, edge.ports["sip-udp"], edge.ports["sip-tcp"])
    assert sip.trunks[0].addresses
    finder = container("site", "edges")
    settings = finder.environment(NODE)
    service = of_kind("site", "Service")[settings["EDGES"]]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"]  # goodbyes reach an edge that drains
    assert (int(settings["EDGE_PORT"]), int(settings["EDGE_CALLS"])) == (sip.udp, sip.max_calls)
    words = proxy.command(["kamailio"], NODE)
    assert f"LISTEN_ADDRESS={NODE}" in words
    cfg = (DEPLOY / "kamailio/kamailio.cfg").read_text()
    files = proxy.files()
    assert files[words[words.index("-f") + 1]] == cfg
    for define in re.findall(r"^#!trydef \w+_FILE \"(\S+)\"$", cfg, re.MULTILINE):
        assert define in files or "EDGES_FILE" in " ".join(words)
    assert finder.spec["command"][0] in files


def test_each_file_belongs_to_an_overlay() -> None:
    """Or to a component, of which overlays/site has all."""
    for folder in (f.parent for f in FOLDER.rglob("kustomization.yaml")):
        named_in = (folder / "kustomization.yaml").read_text()
        for file in folder.iterdir():
            assert file.name == "kustomization.yaml" or file.name in named_in, file
    site = (FOLDER / "overlays/site/kustomization.yaml").read_text()
    for component in (FOLDER / "components").iterdir():
        assert f"../../components/{component.name}" in site
