"""What is shipped for clusters, as the programs that read it see it: Helm and Kubernetes' schemas.

Helm is a library of Go, which gets a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedcore.federation import Policy, ServerKit, provision

DEPLOY = Path(__file__).parents[3] / "deploy"
PODS = (("StatefulSet", "server"), ("Deployment", "nginx"))
PLACE = {
    "nodeSelector": {"pool": "federation"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "research",
}
CLIENTS_PLACE = {"runtimeClassName": "nvidia", "serviceAccountName": "site"}
Documents = dict[tuple[str, str], dict[str, Any]]
_RENDER = """
import json, sys
import kubernetes_validate as schemas
import yaml
from helm_python import Chart, lint
chart, values = json.load(sys.stdin)
report = lint(chart, values, strict=True)
assert not report["errors"], report
with Chart.load(chart) as loaded:
    texts = loaded.render(values, name="pilot").values()
documents = [document for text in texts for document in yaml.safe_load_all(text) if document]
for document in documents:
    schemas.validate(document, schemas.latest_version(), strict=True)
json.dump(documents, sys.stdout)
"""
needs_helm = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("helm_python", "kubernetes_validate")),
    reason="helm-python-sdk or kubernetes-validate is not installed",
)


def render(chart: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    words = json.dumps([str(DEPLOY / "helm" / chart), values])
    return subprocess.run([sys.executable, "-c", _RENDER], input=words, capture_output=True, text=True, check=False)


def rendered(chart: str, **values: Any) -> Documents:
    """What Helm makes of a chart, each document checked against Kubernetes' schemas, by kind and name."""
    process = render(chart, values)
    assert process.returncode == 0, process.stderr
    documents = json.loads(process.stdout)
    named = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(named) == len(documents)
    return named


def selects(selector: dict[str, str], pod: dict[str, Any]) -> bool:
    return bool(selector.items() <= pod["metadata"]["labels"].items())


def directives(text: str) -> set[str]:
    """Those that both have; the pods of nginx cannot send the files of servers, whose folders they do not see."""
    text = re.sub(r"location /fedcore-files/ \{.*?\}", "", text, flags=re.DOTALL)
    lines = (line.strip() for line in text.splitlines())
    return {
        line for line in lines if re.match(r"(proxy_|client_(max|header|body_timeout)|location|limit_conn a)", line)
    }


@pytest.fixture(scope="module")
def documents() -> Documents:
    return rendered(
        "fedcore",
        replicas=3,
        imagePullSecrets=["registry"],
        storageClass="fast",
        reloadSeconds=0.1,
        **PLACE,
        serviceAccountName="bucket",
    )


@needs_helm
def test_the_chart_of_the_server(documents: Documents) -> None:
    pods = {kind: documents[kind, f"pilot-{name}"]["spec"]["template"] for kind, name in PODS}
    for pod in pods.values():
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["spec"].items() >= PLACE.items()
        [spread] = pod["spec"]["topologySpreadConstraints"]
        assert selects(spread["labelSelector"]["matchLabels"], pod)
        assert all({"cpu", "memory"} <= one["resources"]["limits"].keys() for one in pod["spec"]["containers"])
        assert all(one["securityContext"]["readOnlyRootFilesystem"] for one in pod["spec"]["containers"])
    assert pods["StatefulSet"]["spec"]["serviceAccountName"] == "bucket"
    assert "serviceAccountName" not in pods["Deployment"]["spec"]
    budget = documents["PodDisruptionBudget", "pilot-server"]["spec"]["selector"]["matchLabels"]
    assert selects(budget, pods["StatefulSet"])
    policy = documents["NetworkPolicy", "pilot-server"]["spec"]
    assert selects(policy["podSelector"]["matchLabels"], pods["StatefulSet"])
    [nginx] = policy["ingress"][0]["from"]
    assert selects(nginx["podSelector"]["matchLabels"], pods["Deployment"])
    ports = {port["name"] for port in pods["StatefulSet"]["spec"]["containers"][0]["ports"]}
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports
    text = documents["ConfigMap", "pilot-nginx"]["data"]["nginx.conf"]
    names = [f"pilot-server-{number}" for number in range(3)]
    assert re.findall(r"server (\S+):8443 max_fails", text) == names
    assert all(("Service", name) in documents for name in names)
    shipped = directives((DEPLOY / "nginx" / "fedcore-http.conf").read_text())
    elsewhere = ("proxy_ssl_name", "proxy_ssl_trusted_certificate", "proxy_next_upstream_tries", "proxy_temp_path")
    assert {line for line in shipped ^ directives(text) if not line.startswith(elsewhere)} == set()


@needs_helm
@pytest.mark.parametrize(
    ("chart", "values", "where"),
    [
        ("fedcore", {"replicas": "two"}, "/replicas"),
        ("fedcore", {"replica": 3}, "replica"),
        ("fedcore", {"objects": ""}, "/objects"),
        ("fedcore", {"podNetwork": "10.0.0.0"}, "/podNetwork"),
        ("fedcore", {"resources": {"memory": "4GB"}}, "/resources/memory"),
        ("fedcore-client", {"options": "--nproc-per-node 4"}, "/options"),
        ("fedcore-client", {"kitSecret": ""}, "/kitSecret"),
        ("fedcore-client", {"gpus": "two"}, "/gpus"),
        ("fedcore-client", {"gpuResource": "gpu"}, "/gpuResource"),
        ("fedcore-client", {"affinity": {"nodes": {}}}, "/affinity"),
        ("fedcore", {"tolerations": [{"effect": "Never"}]}, "/tolerations"),
    ],
)
def test_a_wrong_value_is_named(chart: str, values: dict[str, Any], where: str) -> None:
    process = render(chart, values)
    assert process.returncode != 0
    assert where in process.stderr


@needs_helm
def test_the_kit_of_a_pod_may_end_in_a_table(tmp_path: Path, documents: Documents) -> None:
    """The script of the first container, with folders of this machine: the lines that it adds belong to no table."""
    kit, secret = tmp_path / "kit", provision(
        tmp_path / "fed", name="fleet", clients=2, now=datetime.now(UTC), hosts=["127.0.0.1"], policy=Policy.own(2)
    ).server  # fmt: skip
    with (secret / "server.toml").open("a") as settings:
        settings.write('[oidc]\nissuer = "https://login.example.org"\nclient-id = "f"\noperators = ["a"]\n')
    kit.mkdir()
    [container] = documents["StatefulSet", "pilot-server"]["spec"]["template"]["spec"]["initContainers"]
    script = container["command"][-1].replace("/secret/", f"{secret}/").replace("/kit/", f"{kit}/")
    subprocess.run(["sh", "-ec", script], check=True)
    loaded = ServerKit.load(kit)
    assert (loaded.host, loaded.port, loaded.metrics_listen) == ("0.0.0.0", 8443, "0.0.0.0:9464")
    assert loaded.objects == "s3://fedcore/pilot"
    assert [str(one) for one in loaded.trust_proxy] == ["10.0.0.0/8"]
    assert loaded.oidc is not None


@needs_helm
def test_a_renewed_certificate_is_loaded(documents: Documents, tmp_path: Path) -> None:
    """The script of a pod, with files of this machine for its volumes and a program that notes the signal."""
    for kind, name in PODS:
        [container] = documents[kind, f"pilot-{name}"]["spec"]["template"]["spec"]["containers"]
        for folder in ("secret", "kit", "configuration"):
            (tmp_path / name / folder).mkdir(parents=True, exist_ok=True)
        for file in ("secret/server.crt", "secret/server.key", "kit/server.crt", "kit/server.key"):
            (tmp_path / name / file).write_text("old")
        (tmp_path / name / "configuration" / "nginx.conf").touch()
        script = re.sub(r"/(secret|kit|configuration)/", f"{tmp_path / name}/\\1/", container["command"][-1])
        program = "sh -c 'trap \"echo loaded; exit 0\" HUP; echo ready; while :; do sleep 0.1; done'"
        script = re.sub(r"exec (fedcore|nginx) .*", f"exec {program}", script)
        with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True) as pod:
            assert pod.stdout is not None
            assert pod.stdout.readline() == "ready\n"
            (tmp_path / name / ("secret" if name == "server" else "kit") / "server.crt").write_text("new")
            assert pod.stdout.readline() == "loaded\n"
            pod.wait(60)
            subprocess.run(["pkill", "-s", str(pod.pid)], check=False)
        assert (tmp_path / name / "kit" / "server.crt").read_text() == "new"


@needs_helm
def test_the_chart_of_a_client() -> None:
    documents = rendered(
        "fedcore-client",
        gpus=2,
        gpuResource="nvidia.com/mig-3g.40gb",
        dataClaim="studies",
        options=["--nproc-per-node", "2"],
        **PLACE,
        **CLIENTS_PLACE,
        env={"HTTPS_PROXY": "http://proxy:3128"},
        resources={"cpu": 2, "cpuLimit": 8, "memory": "8Gi"},
    )
    pod = documents["StatefulSet", "pilot"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/mig-3g.40gb"] == "2"
    assert container["env"] == [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
    assert pod["spec"].items() >= (PLACE | CLIENTS_PLACE).items()
    assert container["args"][-2:] == ["--nproc-per-node", "2"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts <= {volume["name"] for volume in pod["spec"]["volumes"]} | {"state"}
    assert "secret" not in mounts, "user code runs in this container"
    policy = documents["NetworkPolicy", "pilot"]["spec"]
    assert (policy["ingress"], policy["podSelector"]["matchLabels"]) == ([], pod["metadata"]["labels"])
