"""Kits: each file that is missing, broken or foreign is refused by name."""

from __future__ import annotations

import shutil

import pytest

from fedcore.errors import KitError, UnknownKey
from fedcore.federation import ClientKit, OperatorKit, Policy, ServerKit, provision
from tests.support.raising import raises
from tests.unit.federation.conftest import NOW, fixed_randomness

CLIENT_FILES = (
    "client.toml",
    "policy.toml",
    "identity.key",
    "authority.pub",
    "ca.crt",
    "roster.json",
)
SERVER_FILES = (
    "server.toml",
    "server.crt",
    "server.key",
    "authority.pub",
    "rosters.json",
    "operator_token.sha256",
)
OPERATOR_FILES = ("operator.toml", "token", "ca.crt")
ALL_FILES = [
    *((ClientKit, "clients/client-2", name) for name in CLIENT_FILES),
    *((ServerKit, "server", name) for name in SERVER_FILES),
    *((OperatorKit, "operator", name) for name in OPERATOR_FILES),
]
SECRETS = [case for case in ALL_FILES if case[2] in ("identity.key", "server.key", "token")]


@pytest.fixture
def stranger(tmp_path):
    """Another federation with the same names."""
    folder = tmp_path / "stranger"
    provision(folder, name="pilot", clients=3, now=NOW, randomness=fixed_randomness(b"other"))
    return folder


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_client_kit(client):
    kit = ClientKit.load(client)
    assert (kit.federation, kit.client_id, kit.name) == ("pilot", 2, "client-2")
    assert kit.servers == ("https://localhost:8443",)
    assert kit.node_config == {"partition-id": 1, "num-partitions": 3}
    assert kit.identity.public_key().public_bytes_raw() == kit.roster.keys[2]
    assert kit.ca_file == client / "ca.crt"
    assert kit.policy == Policy(min_cohort=3, min_threshold=3)


@pytest.mark.parametrize("within", ["", "server"])
def test_server_kit(federation, within):
    kit = ServerKit.load(federation / within)
    assert (kit.federation, kit.host, kit.port) == ("pilot", "127.0.0.1", 8443)
    assert kit.data_dir == federation / "server" / "data"
    assert kit.min_cohort == ClientKit.load(federation / "clients" / "client-1").policy.min_cohort == 3
    assert kit.roster == ClientKit.load(federation / "clients" / "client-1").roster


def test_a_servers_least_cohort_is_that_of_the_policies_unless_it_says_otherwise(federation):
    path = federation / "server" / "server.toml"
    edit(path, "min-cohort = 3", "min-cohort = 2")
    assert ServerKit.load(federation).min_cohort == 2
    edit(path, "min-cohort = 2", "")
    assert ServerKit.load(federation).min_cohort == 3
    edit(path, "port = 8443", "port = 8443\nmin-cohort = 1")
    with pytest.raises(KitError, match="min-cohort"):
        ServerKit.load(federation)


def test_files_are_named_to_an_nginx_that_is_named_alone(federation):
    path = federation / "server" / "server.toml"
    edit(path, "port = 8443", 'port = 8443\naccel-location = "/fedcore-files/"')
    with pytest.raises(KitError, match=r"accel-location.*trust-proxy"):
        ServerKit.load(federation)
    edit(path, "port = 8443", 'port = 8443\ntrust-proxy = ["10.0.0.2"]')
    assert ServerKit.load(federation).accel_location == "/fedcore-files/"


@pytest.mark.parametrize("within", ["", "operator"])
def test_operator_kit(federation, within):
    kit = OperatorKit.load(federation / within)
    assert kit.servers == ("https://localhost:8443",)
    assert len(kit.token) == 43  # 32 bytes in base64 without padding


def test_a_relative_folder_is_made_absolute(client, monkeypatch):
    monkeypatch.chdir(client.parent)
    assert ClientKit.load(client.relative_to(client.parent)).ca_file == client / "ca.crt"


def test_secrets_stay_out_of_repr(federation, client):
    token = (federation / "operator" / "token").read_text().strip()
    assert token not in repr(OperatorKit.load(federation))
    server = ServerKit.load(federation)
    assert server.operator_token_sha256.hex() not in repr(server)
    assert "identity" not in repr(ClientKit.load(client))


@pytest.mark.parametrize(("kit", "folder", "name"), ALL_FILES)
def test_a_missing_file_is_named(federation, kit, folder, name):
    (federation / folder / name).unlink()
    with pytest.raises(KitError, match=name.replace(".", r"\.")):
        kit.load(federation / folder)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe garbage", b"-----BEGIN NOTHING-----\n"])
@pytest.mark.parametrize(("kit", "folder", "name"), ALL_FILES)
def test_a_garbled_file_is_named_with_a_remedy(federation, kit, folder, name, content):
    path = federation / folder / name
    path.write_bytes(content)
    with pytest.raises(KitError) as caught:
        kit.load(federation / folder)
    assert str(path) in str(caught.value)
    assert ";" in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
@pytest.mark.parametrize(("kit", "folder", "name"), SECRETS)
def test_a_secret_that_others_can_read_is_refused(federation, kit, folder, name, mode):
    path = federation / folder / name
    path.chmod(mode)
    with pytest.raises(KitError, match=f"chmod 600 {path}"):
        kit.load(federation / folder)


@pytest.mark.parametrize(
    ("name", "check"),
    [("identity.key", "other-key"), ("authority.pub", "roster-unsigned"), ("roster.json", "roster-unsigned")],
)
def test_a_file_of_another_federation_is_refused(client, stranger, name, check):
    shutil.copy2(stranger / "clients" / "client-2" / name, client / name)
    with raises(KitError, check=check):
        ClientKit.load(client)


def test_another_clients_key_is_refused(federation, client):
    shutil.copy2(federation / "clients" / "client-1" / "identity.key", client)
    with raises(KitError, check="other-key"):
        ClientKit.load(client)


def test_another_servers_tls_key_is_refused(federation, stranger):
    shutil.copy2(stranger / "server" / "server.key", federation / "server")
    with raises(KitError, check="other-key", match=r"server\.crt"):
        ServerKit.load(federation)


@pytest.mark.parametrize("name", ["identity.key", "server.key"])
def test_a_key_of_another_kind_is_refused(federation, client, name):
    source = {"identity.key": "server/server.key", "server.key": "clients/client-2/identity.key"}
    folder = {"identity.key": client, "server.key": federation / "server"}[name]
    shutil.copy2(federation / source[name], folder / name)
    with raises(KitError, check="key-kind" if name == "identity.key" else "other-key"):
        (ClientKit if name == "identity.key" else ServerKit).load(folder)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('federation = "pilot"', 'federation = "other"', {"check": "other-federation"}),
        ("client-id = 2", "client-id = 9", {"check": "not-on-roster"}),
        ("client-id = 2", "client-id = true", {"check": "type", "match": "client-id"}),
        ("client-id = 2", 'client-id = "2"', {"check": "type", "match": "client-id"}),
        ("client-id = 2\n", "", {"check": "missing-key", "match": "client-id"}),
        ('name = "client-2"', 'name = "client-1"', {"check": "other-name"}),
        ("https://", "http://", {"match": "server-url"}),
        ("https://localhost:8443", "https://:8443", {"match": "server-url"}),
        ("https://localhost:8443", "https://localhost:x", {"match": "server-url"}),
        ("https://localhost:8443", "https://localhost:8443/?a=1", {"match": "server-url"}),
        ("partition-id = 1", "partition-id = []", {"match": "node-config.partition-id"}),
        ("[node-config]", "[node-config", {"check": "toml"}),
    ],
)
def test_client_settings_are_checked(client, old, new, expected):
    edit(client / "client.toml", old, new)
    with raises(KitError, **expected):
        ClientKit.load(client)


def test_a_federation_may_have_several_servers(client):
    more = 'servers = ["https://b:8443", "https://localhost:8443/"]'
    edit(client / "client.toml", "# servers", f"{more}\n# servers")
    assert ClientKit.load(client).servers == ("https://localhost:8443", "https://b:8443")
    edit(client / "client.toml", 'server-url = "https://localhost:8443"', "")
    assert ClientKit.load(client).servers == ("https://b:8443", "https://localhost:8443")
    edit(client / "client.toml", more, "")
    with raises(KitError, check="no-server"):
        ClientKit.load(client)


@pytest.mark.parametrize("text", ["[1]", '["http://b:8443"]', '"https://b:8443"'])
def test_what_servers_lists_is_checked(client, text):
    edit(client / "client.toml", "# servers", f"servers = {text}\n# servers")
    with pytest.raises(KitError, match="servers"):
        ClientKit.load(client)


def test_an_owner_may_add_to_the_node_config(client):
    edit(client / "client.toml", "[node-config]", '[node-config]\ndata-dir = "records"')
    assert ClientKit.load(client).node_config["data-dir"] == "records"


@pytest.mark.parametrize(
    ("kit", "file", "near"),
    [
        (ClientKit, "clients/client-2/client.toml", "server-url"),
        (ClientKit, "clients/client-2/policy.toml", "min-cohort"),
        (ServerKit, "server/server.toml", "data-dir"),
        (OperatorKit, "operator/operator.toml", "server-url"),
    ],
)
def test_an_unknown_key_names_the_nearest(federation, kit, file, near):
    path = federation / file
    path.write_text(f'{near}s = "x"\n' + path.read_text())
    with raises(UnknownKey, key=f"{near}s", match=rf"{path}.*'{near}'"):
        kit.load(path.parent)


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_the_servers_port_is_checked(federation, port):
    edit(federation / "server" / "server.toml", "port = 8443", f"port = {port}")
    with pytest.raises(KitError, match="port"):
        ServerKit.load(federation)


@pytest.mark.parametrize("token", ["", "two words", "é"])
def test_the_operators_token_is_checked(federation, token):
    (federation / "operator" / "token").write_text(token)
    with pytest.raises(KitError, match="operator/token"):
        OperatorKit.load(federation)


@pytest.mark.parametrize("kit", [ClientKit, ServerKit, OperatorKit])
def test_a_folder_without_a_kit_is_refused(tmp_path, kit):
    with raises(KitError, check="no-kit", match=r"\w+\.toml"):
        kit.load(tmp_path)
    with raises(KitError, check="no-folder"):
        kit.load(tmp_path / "absent")


def test_a_federation_is_not_a_client_kit(federation):
    with raises(KitError, check="no-kit", match=r"client\.toml"):
        ClientKit.load(federation)


# --- the policy


@pytest.mark.parametrize(("clients", "cohort", "threshold"), [(1, 2, 2), (2, 2, 2), (3, 3, 3), (4, 3, 3), (100, 3, 3)])
def test_default_policy(clients, cohort, threshold):
    large = clients >= 65
    assert Policy.default(clients) == Policy(min_cohort=cohort, min_threshold=threshold, allow_x25519=large)


def test_a_policy_pins_an_app(client):
    edit(client / "policy.toml", 'app-sha256 = ""', f'app-sha256 = "{"ab" * 32}"')
    edit(client / "policy.toml", "allow-plain = false", "allow-plain = true")
    policy = ClientKit.load(client).policy
    assert policy.app_sha256 == "ab" * 32
    assert policy.allow_plain


def test_a_policy_demands_differential_privacy(client):
    edit(client / "policy.toml", "max-epsilon = 0.0", "max-epsilon = 8")
    edit(client / "policy.toml", "delta = 1e-05", "delta = 1e-6")
    policy = ClientKit.load(client).policy
    assert (policy.max_epsilon, policy.delta) == (8.0, 1e-6)


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({"max_epsilon": -1.0}, "max-epsilon"),
        ({"max_epsilon": float("inf")}, "max-epsilon"),
        ({"max_epsilon": float("nan")}, "max-epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"max_epsilon": 8.0, "allow_plain": True}, "allow-plain.*max-epsilon"),
    ],
)
def test_a_privacy_demand_that_cannot_be_met(values, keys):
    with pytest.raises(KitError, match=keys):
        Policy(min_cohort=3, min_threshold=3, **values)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("train-hours = []", 'train-hours = ["22-06"]', {"check": "hours"}),
        ("train-hours = []", "train-hours = [22]", {"match": "train-hours"}),
        ("train-hours = []", 'train-hours = "22:00-06:00"', {"check": "type", "match": "train-hours"}),
        ("idle-load = 0.25", "idle-load = 25", {"match": "idle-load"}),
    ],
)
def test_eligibility_rules_that_mean_nothing(client, old, new, expected):
    edit(client / "policy.toml", old, new)
    with raises(KitError, **expected) as refused:
        ClientKit.load(client)
    assert str(client / "policy.toml") in str(refused.value)


_ROUNDS = "allow-config.num-server-rounds = [1, 10000]"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (_ROUNDS, "allow-config.lr = [1, 0]", {"match": "allow-config.lr"}),
        (_ROUNDS, "allow-config.lr = [1]", {"match": "allow-config.lr"}),
        (_ROUNDS, "allow-config.lr = [1, inf]", {"match": "allow-config.lr"}),
        (_ROUNDS, "allow-config.lr = false", {"match": "allow-config.lr"}),
        (_ROUNDS, "allow-config.fedcore.w-max = []", {"match": "allow-config.fedcore.w-max"}),
        (_ROUNDS, 'allow-config.lr = [1, "a"]', {"match": "allow-config.lr"}),
        (_ROUNDS, "allow-config = true", {"check": "type", "match": "allow-config"}),
        ("max-model-bytes = 8000000000", "max-model-bytes = 0", {"match": "max-model-bytes"}),
        ("max-model-bytes = 8000000000", "max-model-bytes = 8e9", {"check": "type", "match": "max-model-bytes"}),
        ("max-seconds = 86400.0", "max-seconds = inf", {"match": "max-seconds"}),
        ("pad-seconds = 0.0", "pad-seconds = -1", {"match": "pad-seconds"}),
        ("max-releases = 10", "max-releases = 0", {"match": "max-releases"}),
        ("max-tree-depth = 12", "max-tree-depth = -1", {"match": "max-tree-depth"}),
        ("min-rows-in-node = 1", "min-rows-in-node = 0", {"match": "min-rows-in-node"}),
        ("max-tensors = 10000", "max-tensors = 0", {"match": "max-tensors"}),
    ],
)
def test_a_bound_that_means_nothing(client, old, new, expected):
    edit(client / "policy.toml", old, new)
    with raises(KitError, **expected) as refused:
        ClientKit.load(client)
    assert str(client / "policy.toml") in str(refused.value)


def test_ones_own_clients_allow_what_others_refuse():
    own = Policy.own(4, min_cohort=2, min_threshold=2)
    assert (own.report_failures, own.allow_differencing, own.allow_config) == (True, True, {"*": True})
    strict = Policy.default(4)
    assert (strict.report_failures, strict.allow_differencing) == (False, False)
    assert strict.allow_config == {"num-server-rounds": (1, 10_000)}
    assert own.min_cohort == 2
    assert (own.first_models, strict.first_models) == (("any",), ("app",))
    assert own.max_queries > 100 * strict.max_queries


def test_what_a_policy_leaves_out_is_the_safe_choice(client):
    (client / "policy.toml").write_text("min-cohort = 5\nmin-threshold = 4\n")
    assert ClientKit.load(client).policy == Policy(min_cohort=5, min_threshold=4)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("min-cohort = 3", "min-cohort = 1"),
        ("min-cohort = 3", "min-cohort = 2"),
        ("min-threshold = 3", "min-threshold = 1"),
        ("min-threshold = 3", "min-threshold = 4"),
        ("min-threshold = 3", ""),
        ('app-sha256 = ""', 'app-sha256 = "AB"'),
        ("allow-plain = false", 'allow-plain = "no"'),
    ],
)
def test_a_policy_that_protects_nothing_is_refused(client, old, new):
    edit(client / "policy.toml", old, new)
    with pytest.raises(KitError, match=r"policy\.toml"):
        ClientKit.load(client)


def test_a_cohort_of_one_is_explained():
    with pytest.raises(KitError, match="min-cohort"):
        Policy(min_cohort=1, min_threshold=2)
