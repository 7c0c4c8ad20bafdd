"""Provisioning: everything or nothing, secrets for their owner alone, certificates that verify."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import verification
from typer.testing import CliRunner

from fedcore.cli import main as cli
from fedcore.errors import EnvironmentFailure, KitError, StorageFull
from fedcore.federation import ClientKit, OperatorKit, Policy, ServerKit, files, provision
from fedcore.federation.eligibility import EligibilityRules, Hours
from fedcore.federation.kits.certificates import make_key
from tests.support.raising import raises
from tests.unit.federation.conftest import NOW, fixed_randomness

SECRETS = {"authority.key", "ca.key", "server.key", "token", "identity.key"}


def make(folder, **changes):
    arguments = {"name": "pilot", "clients": 2, "now": NOW, "randomness": fixed_randomness()}
    return provision(folder, **(arguments | changes))


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_kit_loads(tmp_path):
    made = make(tmp_path / "deep" / "pilot", clients=5)
    assert [ClientKit.load(folder).client_id for folder in made.clients] == [1, 2, 3, 4, 5]
    assert ServerKit.load(made.server).roster.federation == "pilot"
    assert OperatorKit.load(made.operator).servers == (made.server_url,)
    assert sorted(path.name for path in made.folder.iterdir()) == [
        "authority", "clients", "operator", "server",
    ]  # fmt: skip
    assert list((tmp_path / "deep").iterdir()) == [made.folder]


def test_the_token_matches_its_hash(tmp_path):
    made = make(tmp_path / "pilot")
    token = OperatorKit.load(made.operator).token
    expected = ServerKit.load(made.server).operator_token_sha256
    assert hashlib.sha256(token.encode()).digest() == expected


def test_only_owners_can_read_secrets(tmp_path):
    old = os.umask(0)  # the worst that a caller may have
    try:
        folder = make(tmp_path / "pilot").folder
    finally:
        os.umask(old)
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir():
            assert mode == 0o700, path
        else:
            assert mode == (0o600 if path.name in SECRETS else 0o644), path


def test_no_secret_is_in_two_places(tmp_path):
    folder = make(tmp_path / "pilot").folder
    content = [(path, path.read_bytes()) for path in folder.rglob("*") if path.name in SECRETS]
    assert len(content) == 6  # authority, CA, server, operator, two clients
    everything = b"".join(tree(folder).values())
    for path, secret in content:
        assert everything.count(secret) == 1, path


def test_the_same_randomness_gives_the_same_files(tmp_path):
    first, second = make(tmp_path / "a"), make(tmp_path / "b")
    other = make(tmp_path / "c", randomness=fixed_randomness(b"other"))
    assert tree(first.folder) == tree(second.folder)
    for name, content in tree(first.folder).items():
        if name.endswith(("roster.json", "rosters.json", ".key", "token")):
            assert content != tree(other.folder)[name], name


def test_an_occupied_folder_is_left_alone(tmp_path):
    (tmp_path / "pilot").mkdir()
    (tmp_path / "pilot" / "notes.txt").write_text("mine")
    with raises(KitError, check="not-empty"):
        make(tmp_path / "pilot")
    assert tree(tmp_path) == {"pilot/notes.txt": b"mine"}
    with raises(KitError, check="not-empty"):
        make(tmp_path / "pilot" / "notes.txt")


def test_an_empty_folder_is_used(tmp_path):
    (tmp_path / "pilot").mkdir()
    ServerKit.load(make(tmp_path / "pilot").folder)


def test_a_folder_that_appears_meanwhile_is_left_alone(tmp_path):
    target = tmp_path / "pilot"
    with raises(KitError, check="not-empty"), files.new_folder(target) as staging:
        (staging / "ours").write_text("ours")
        target.mkdir()
        (target / "theirs").write_text("theirs")
    assert tree(tmp_path) == {"pilot/theirs": b"theirs"}


def test_a_failure_leaves_nothing_behind(tmp_path):
    with (  # noqa: PT012
        pytest.raises(ZeroDivisionError),
        files.new_folder(tmp_path / "pilot") as staging,
    ):
        (staging / "half").write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "expected"), [(errno.ENOSPC, StorageFull), (errno.EROFS, EnvironmentFailure)])
def test_a_full_disk_leaves_nothing_behind(tmp_path, number, expected):
    with (  # noqa: PT012
        pytest.raises(expected, match="pilot"),
        files.new_folder(tmp_path / "pilot") as staging,
    ):
        (staging / "half").write_text("half")
        raise OSError(number, os.strerror(number))
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFailure, match=r"file.pilot"):
        make(tmp_path / "file" / "pilot")


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"name": ""}, "name"),
        ({"name": 'a"\nb'}, "name"),
        ({"name": "../up"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"clients": 0}, "clients"),
        ({"clients": 10_001}, "clients"),
        ({"port": 0}, "port"),
        ({"port": 65_536}, "port"),
        ({"hosts": ()}, "no-host"),
        ({"hosts": ("bad host",)}, "host"),
        ({"hosts": ("1.2.3",)}, "host"),
        ({"hosts": ('a"',)}, "host"),
        ({"bind": "x y"}, "host"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, changes, check):
    with raises(KitError, check=check):
        make(tmp_path / "pilot", **changes)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_fits(tmp_path):
    name = "x" * 64
    assert ServerKit.load(make(tmp_path / "pilot", name=name).folder).federation == name


@pytest.mark.parametrize(
    ("hosts", "bind", "url", "listens"),
    [
        (("localhost", "127.0.0.1"), None, "https://localhost:9000", "127.0.0.1"),
        (("fl.example.org",), None, "https://fl.example.org:9000", "0.0.0.0"),
        (("fl.example.org",), "10.0.0.2", "https://fl.example.org:9000", "10.0.0.2"),
        (("2001:db8::1",), None, "https://[2001:db8::1]:9000", "::"),
        (("fl.example.org", "2001:db8::1"), None, "https://fl.example.org:9000", "::"),
        (("::1",), None, "https://[::1]:9000", "::1"),
        (("127.0.0.1", "::1"), None, "https://127.0.0.1:9000", "127.0.0.1"),
    ],
)
def test_addresses(tmp_path, hosts, bind, url, listens):
    made = make(tmp_path / "pilot", hosts=hosts, bind=bind, port=9000)
    assert made.server_url == url
    assert ClientKit.load(made.clients[0]).servers == (url,)
    kit = ServerKit.load(made.server)
    assert (kit.host, kit.port) == (listens, 9000)


def test_a_policy_of_ones_own(tmp_path):
    rules = EligibilityRules(
        train_hours=(Hours.parse("22:00-06:00"), Hours.parse("12:00-24:00")),
        on_power_only=True,
        idle_only=True,
        idle_load=0.5,
    )
    policy = Policy(
        min_cohort=5,
        min_threshold=4,
        app_sha256="0f" * 32,
        allow_plain=True,
        report_failures=True,
        pad_seconds=2.5,
        allow_config={
            "lr": (0.5, 1),
            "fedcore.w-max": (1, 64),
            "optimizer": ("sgd", 'a "b"'),
            "a key": True,
            "*": True,
        },
        allow_differencing=True,
        max_model_bytes=1000,
        max_seconds=60.0,
        max_tensors=7,
        max_exchanges_per_run=8,
        max_exchanges_per_day=9,
        max_releases=3,
        max_tree_depth=4,
        min_rows_in_node=20,
        first_models=("app", "ab" * 32),
        eligibility=rules,
    )
    made = make(tmp_path / "pilot", policy=policy)
    assert all(ClientKit.load(folder).policy == policy for folder in made.clients)


# --- certificates


@pytest.fixture
def certificates(tmp_path):
    hosts = ("fl.example.org", "localhost", "127.0.0.1", "::1")
    folder = make(tmp_path / "pilot", hosts=hosts).server
    return (
        x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()),
        x509.load_pem_x509_certificate((folder / "server.crt").read_bytes()),
    )


def verify(ca, certificate, subject, time):
    builder = verification.PolicyBuilder().store(verification.Store([ca])).time(time)
    return builder.build_server_verifier(subject).verify(certificate, [])


@pytest.mark.parametrize("host", ["fl.example.org", "localhost"])
def test_the_certificate_holds_for_its_names(certificates, host):
    assert len(verify(*certificates, x509.DNSName(host), NOW)) == 2


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_certificate_holds_for_its_addresses(certificates, address):
    subject = x509.IPAddress(ipaddress.ip_address(address))
    assert len(verify(*certificates, subject, NOW)) == 2


@pytest.mark.parametrize(("host", "days"), [("other.example.org", 0), ("localhost", 366), ("localhost", -1)])
def test_the_certificate_holds_for_nothing_else(certificates, host, days):
    with pytest.raises(verification.VerificationError):
        verify(*certificates, x509.DNSName(host), NOW + timedelta(days=days))


def test_the_ca_signs_end_certificates_only(certificates):
    ca, server = certificates
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert timedelta(days=3650) <= ca.not_valid_after_utc - NOW < timedelta(days=3651)
    assert timedelta(days=365) <= server.not_valid_after_utc - NOW < timedelta(days=366)


def test_a_tls_connection_succeeds_under_strict_rules(tmp_path):
    """Python's own TLS, in memory, with the strict flag that is the default from 3.13 on."""
    made = make(tmp_path / "pilot", now=datetime.now(UTC))
    kit = ServerKit.load(made.server)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(kit.tls_certificate, kit.tls_key)
    client_side = ssl.create_default_context(cafile=ClientKit.load(made.clients[0]).ca_file)
    client_side.verify_flags |= ssl.VERIFY_X509_STRICT
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    done = set()
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    assert done == {client, server}


def test_keys_are_in_range_at_both_ends():
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    assert make_key(bytes).private_numbers().private_value == 1
    last = (order - 2).to_bytes(48, "big")
    assert make_key(lambda size: last[:size]).private_numbers().private_value == order - 1
    beyond = (order - 1).to_bytes(48, "big")
    assert make_key(lambda size: beyond[:size]).private_numbers().private_value == 1


def test_two_clients_are_told_that_each_reads_the_other(tmp_path: Path) -> None:
    """And so is whoever asks for sums of two."""
    run = CliRunner().invoke
    for number, (words, warned) in enumerate(
        {"2": True, "3": False, "3 --min-cohort 2 --min-threshold 2": True}.items()
    ):
        command = ["provision", str(tmp_path / f"fed-{number}"), "--clients", *words.split()]
        done = run(cli.app, command)
        assert done.exit_code == 0, done.output
        assert ("min-cohort = 2" in done.stderr) == warned
        told = json.loads(run(cli.app, [*command[:1], str(tmp_path / f"json-{number}"), *command[2:], "--json"]).stdout)
        assert bool(told["warnings"]) == warned


def test_the_command_gives_large_federations_the_policy_that_their_size_needs(tmp_path):
    """Among so many clients keys are agreed without ML-KEM, which a policy has to allow."""
    cli.provision_command(tmp_path / "made", clients=65, min_cohort=4)
    policy = ClientKit.load(tmp_path / "made" / "clients" / "client-65").policy
    assert (policy.min_cohort, policy.allow_x25519) == (4, True)
    assert ServerKit.load(tmp_path / "made").min_cohort == 4


def test_a_federation_begins_with_the_policy_that_is_named(tmp_path: Path) -> None:
    def made(*words: str) -> Policy:
        folder = tmp_path / "-".join(("fed", *words))
        done = CliRunner().invoke(cli.app, ["provision", str(folder), "--clients", "4", *words])
        assert done.exit_code == 0, done.output
        return ClientKit.load(folder / "clients" / "client-1").policy

    stock, strict, own = (made("--policy", name) for name in ("stock", "strict", "own"))
    assert made() == stock == Policy.default(4)
    assert (strict.max_epsilon, strict.allow_buffered, strict.first_models) == (8.0, False, ("app",))
    assert made("--policy", "strict", "--max-epsilon", "2").max_epsilon == 2.0
    assert (own.allow_plain, own.allow_buffered, own.allow_differencing, own.first_models) == (
        True,
        True,
        True,
        ("any",),
    )
