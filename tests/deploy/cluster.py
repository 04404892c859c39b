"""The resources of deploy/kubernetes as a cluster gets them, and what a container of them runs."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from tests.deploy.servers import DEPLOY
from tests.support.waiting import HANGS_S

FOLDER = DEPLOY / "kubernetes"
OVERLAYS = ("cpu", "gpu", "site")
KUSTOMIZE = ("kustomize", "build") if shutil.which("kustomize") else ("kubectl", "kustomize")
HAS_KUSTOMIZE = shutil.which(KUSTOMIZE[0]) is not None
SECRETS = {key: f"secret-of-{key}" for key in ("api-key", "admin-key", "worker-key")}
SECRETS["redis-password"] = "secret-of-redis"
Resource = dict[str, Any]


@cache
def rendered(overlay: str) -> tuple[Resource, ...]:
    """The resources of an overlay, as `kubectl apply -k` sends them."""
    command = [*KUSTOMIZE, str(FOLDER / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(overlay: str, kind: str) -> dict[str, Resource]:
    """By name."""
    return {r["metadata"]["name"]: r for r in rendered(overlay) if r["kind"] == kind}


@dataclass(frozen=True)
class Container:
    pod: str
    """The Deployment's name."""
    spec: dict[str, Any]
    pod_spec: dict[str, Any]
    overlay: str

    @property
    def name(self) -> str:
        name: str = self.spec["name"]
        return name

    @property
    def is_offhook(self) -> bool:
        return re.search(r"(^|/)offhook:", self.spec["image"]) is not None

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.spec.get("ports", ())}

    def environment(self, address: str) -> dict[str, str]:
        """What the kubelet sets, with SECRETS; `address` is the node's and the pod's."""
        values: dict[str, str] = {}
        for source in self.spec.get("envFrom", ()):
            values |= of_kind(self.overlay, "ConfigMap")[source["configMapRef"]["name"]]["data"]
        for variable in self.spec.get("env", ()):
            source = variable.get("valueFrom", {})
            if "secretKeyRef" in source:
                value = SECRETS[source["secretKeyRef"]["key"]]
            else:
                value = address if "fieldRef" in source else variable["value"]
            values[variable["name"]] = expanded(value, values)
        return values

    def command(self, entry: list[str], address: str) -> list[str]:
        """The command line; `entry` is the image's own."""
        words = [*self.spec.get("command", entry), *self.spec.get("args", ())]
        return [expanded(word, self.environment(address)) for word in words]

    def files(self) -> dict[str, str]:
        """The files of ConfigMaps by their paths in the container."""
        maps, found = of_kind(self.overlay, "ConfigMap"), {}
        volumes = {volume["name"]: volume for volume in self.pod_spec["volumes"]}
        for mount in self.spec["volumeMounts"]:
            volume = volumes[mount["name"]]
            sources = volume.get("projected", {}).get("sources", [volume])
            for source in (s["configMap"] for s in sources if "configMap" in s):
                for file, text in maps[source["name"]]["data"].items():
                    found[f"{mount['mountPath']}/{file}"] = text
        return found


def expanded(text: str, values: dict[str, str]) -> str:
    """$(NAME) is put in; a name that is not there stays, as in a cluster."""
    return re.sub(r"\$\((\w+)\)", lambda name: values.get(name[1], name[0]), text)


def containers(overlay: str) -> Iterator[Container]:
    """Init containers included."""
    for name, deployment in of_kind(overlay, "Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        for spec in (*pod.get("initContainers", ()), *pod["containers"]):
            yield Container(name, spec, pod, overlay)


def container(overlay: str, name: str) -> Container:
    return next(c for c in containers(overlay) if c.name == name)


def selected(overlay: str, selector: dict[str, Any]) -> list[str]:
    """The Deployments whose pods a selector matches."""
    return [
        name
        for name, deployment in of_kind(overlay, "Deployment").items()
        if matches(selector, deployment["spec"]["template"]["metadata"]["labels"])
    ]


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    for rule in selector.get("matchExpressions", ()):
        assert rule["operator"] == "In"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()
