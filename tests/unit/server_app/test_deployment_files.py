"""What is shipped for containers, systemd and Grafana: it can be read, and agrees with the code and with itself."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from support.later import Later

from fedcore.federation.kits.kit_text import server_text
from server_app.operation.metrics import Metrics

jsonschema = Later("jsonschema")

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm" / "fedcore"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "fedcore.json").read_text())


def options_of(name: str) -> dict[str, str]:
    """Of a unit or of what is added to one; the last line of each."""
    text = (ROOT / "deploy" / "systemd" / name).read_text()
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("name", ["client", "server"])
def test_a_unit_has_no_namespaces_to_make_and_nothing_to_change(name: str) -> None:
    options = options_of(f"fedcore-{name}@.service")
    assert (options["RestrictNamespaces"], options["NoNewPrivileges"]) == ("yes", "yes")
    assert (options["CapabilityBoundingSet"], options["User"]) == ("", "fedcore")


def test_namespaces_of_user_code_come_with_a_proc_that_is_not_covered() -> None:
    """The kernel lets nobody but root have a /proc of its own if a part of the present one is covered."""
    options = options_of("namespaces.conf")
    for name in ("client", "server"):
        covered = {"ProtectKernelTunables", "ProtectKernelLogs", "ProtectHostname"} & options_of(
            f"fedcore-{name}@.service"
        ).keys()
        assert {options[key] for key in covered} == {"no"}
    assert set(options["RestrictNamespaces"].split()) == {"user", "mnt", "pid", "ipc", "net"}


def test_the_chart_changes_only_keys_that_the_servers_kit_has() -> None:
    text = (CHART / "templates" / "server.yaml").read_text()
    kit = server_text("pilot", bind="127.0.0.1", port=8443, min_cohort=2, approve_apps="listed")
    for key in re.findall(r"s/\^(\w+) = ", text):
        assert re.search(rf"^{key} = ", kit, re.MULTILINE)


@pytest.mark.parametrize("name", ["compose.yaml", "compose-replicas.yaml"])
def test_compose_files_agree_with_themselves(name: str) -> None:
    content = yaml.safe_load((ROOT / "docker" / name).read_text())
    services = content["services"]
    for service in services.values():
        for other in service.get("depends_on", {}):
            assert other in services
        for volume in service.get("volumes", []):
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            assert source in content["volumes"] or (ROOT / "docker" / source).exists(), source
        if "build" in service:
            stages = re.findall(r"^FROM .+ AS (\w+)$", (ROOT / service["build"]["dockerfile"]).read_text(), re.M)
            assert service["build"]["target"] in stages


@pytest.mark.parametrize("name", ["compose.yaml", "compose-replicas.yaml"])
def test_each_party_has_a_volume_of_its_own_and_writes_nowhere_else(name: str) -> None:
    content = yaml.safe_load((ROOT / "docker" / name).read_text())
    services = content["services"]
    assert all(service["read_only"] and "/tmp" in service["tmpfs"] for service in services.values())
    mounts = {key: [volume.split(":") for volume in service["volumes"]] for key, service in services.items()}
    made = {source for source, target in mounts["provision"] if target == f"/parties/{source}"}
    assert made == content["volumes"].keys() - {"database"}, "all that is not a database's comes from `provision`"
    for party in ("client-1", "client-2", "client-3", "client-4", "operator"):
        assert [key for key, paths in mounts.items() if party in {path[0] for path in paths}] == ["provision", party]
    assert [key for key, paths in mounts.items() if "authority" in {path[0] for path in paths}] == ["provision"]


def test_the_sed_script_of_compose_finds_its_addresses() -> None:
    text = (ROOT / "deploy" / "nginx" / "fedcore-http.conf").read_text()
    for pattern, name in re.findall(
        r"^s/(.+?):8443/(.+?):8443/$", (ROOT / "docker" / "nginx-compose.sed").read_text(), re.M
    ):
        assert re.search(pattern, text)
        assert name in yaml.safe_load((ROOT / "docker" / "compose-replicas.yaml").read_text())["services"]


PANEL = {
    "type": "object",
    "required": ["id", "type", "title", "datasource", "gridPos", "fieldConfig", "targets"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "type": {"enum": ["timeseries", "stat"]},
        "title": {"type": "string", "minLength": 1},
        "datasource": {"const": {"type": "prometheus", "uid": "${datasource}"}},
        "gridPos": {
            "type": "object",
            "required": ["x", "y", "w", "h"],
            "properties": {"w": {"minimum": 1, "maximum": 24}, "x": {"minimum": 0, "maximum": 23}},
            "additionalProperties": {"type": "integer"},
        },
        "targets": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["refId", "expr", "legendFormat", "datasource"],
                "properties": {"expr": {"type": "string", "minLength": 1}, "refId": {"pattern": "^[A-Z]$"}},
            },
        },
    },
}


def test_the_dashboard_has_the_form_that_grafana_reads() -> None:
    assert (DASHBOARD["uid"], DASHBOARD["title"]) == ("fedcore", "fedcore")
    assert DASHBOARD["schemaVersion"] >= 39
    panels = DASHBOARD["panels"]
    for panel in panels:
        jsonschema.validate(panel, PANEL)
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = (one["x"] + one["w"] <= other["x"], other["x"] + other["w"] <= one["x"])
        assert any(apart) or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def samples_of_a_server() -> dict[str, str]:
    """What a server exposes: the name of a sample -> that of its metric."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    families = Metrics().registry.collect()
    return {family.name + end: family.name for family in families for end in suffixes.get(family.type, ())}


def test_the_alarms_name_metrics_of_a_server() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "fedcore.rules.yml").read_text())
    expressions = " ".join(rule["expr"] for group in rules["groups"] for rule in group["rules"])
    named = set(re.findall(r"\bfedcore_\w+", expressions))
    assert named
    assert named <= samples_of_a_server().keys()


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    samples = samples_of_a_server()
    text = json.dumps([target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]])
    shown = set(re.findall(r"\b(?:fedcore|process)_\w+", text))
    assert shown <= samples.keys()
    missing = {name for name in samples.values() if name.startswith("fedcore_")} - {samples[name] for name in shown}
    assert missing == {"fedcore_runs_led"}
