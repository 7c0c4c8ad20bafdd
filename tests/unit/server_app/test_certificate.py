"""The certificate that is served: when it ends, how a new one is taken, and what a client reads meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from client_app.http.errors import may_pass, tls_context, unanswered
from fedcore.errors import KitError, ServerUnreachable
from fedcore.federation import ClientKit, FederationFolder, OperatorKit, ServerKit, provision
from fedcore.federation.authority import Authority
from fedcore.federation.kits import certificates as tls
from server_app.operation.certificate import ServedCertificate
from tests.support.raising import raises

NOW = datetime(2026, 3, 1, tzinfo=UTC)
YEAR = timedelta(days=365)


@pytest.fixture
def made(tmp_path: Path) -> FederationFolder:
    return provision(tmp_path / "fed", name="pilot", clients=2, now=NOW, hosts=["127.0.0.1"])


def served(made: FederationFolder, now: datetime = NOW) -> ServedCertificate:
    kit = ServerKit.load(made.folder)
    return ServedCertificate(kit.tls_certificate, kit.tls_key, wall=now.timestamp)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (0, ""),
        (334, ""),
        (335.5, "expires in 29 days, on 2027-03-01; renew it"),
        (364.5, "expires in 0 days"),
        (365, r"expired on 2027-03-01 00:00 UTC: nobody who checks it connects; renew it now"),
        (-1, "is not good before .*: is the clock of this machine right"),
    ],
)
def test_the_end_of_a_certificate_is_said_thirty_days_ahead(made: FederationFolder, days: float, said: str) -> None:
    warning = served(made, NOW + timedelta(days=days)).warning
    assert bool(warning) == bool(said)
    assert re.search(said, warning)


def test_the_log_is_reminded_once_a_day(made: FederationFolder, caplog: pytest.LogCaptureFixture) -> None:
    times = [NOW + timedelta(days=340.5, minutes=minutes) for minutes in (0, 1, 2, 60 * 24)]
    kit = ServerKit.load(made.folder)
    clock = iter([time.timestamp() for time in times])
    certificate = ServedCertificate(kit.tls_certificate, kit.tls_key, wall=clock.__next__)
    for _ in range(3):
        certificate.remind()
    assert len(caplog.records) == 1
    certificate.remind()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_new_certificate_is_taken_and_a_broken_one_is_not(
    made: FederationFolder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    certificate = served(made, NOW + timedelta(days=350))
    path = made.server / "server.crt"
    Authority.load(made.folder).renew(path, [], now=NOW + timedelta(days=350))
    good = path.read_bytes()
    certificate.reload()
    assert certificate.days_left == 365
    assert "took the certificate that is good until 2028-02-14" in caplog.text
    context = certificate.context
    key = made.server / "server.key"
    for broken in (b"", b"no PEM", good[:-40]):
        path.write_bytes(broken)
        certificate.reload()
    path.write_bytes(good)
    key.rename(key.with_suffix(".away"))
    certificate.reload()
    assert (certificate.days_left, certificate.context) == (365, context)
    assert caplog.text.count("is not taken, the present one stays") == 4


def test_an_expired_certificate_does_not_replace_a_good_one(
    made: FederationFolder, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = served(made, NOW + timedelta(days=10))
    Authority.load(made.folder).renew(made.server / "server.crt", [], now=NOW - YEAR)
    certificate.reload()
    assert certificate.days_left == 355
    assert "has expired" in caplog.text


def own_certificate(made: FederationFolder, now: datetime = NOW) -> Path:
    """The server with an RSA certificate of a company's CA; returns the CA's file."""
    ca_key, key = tls.make_key(os.urandom), rsa.generate_private_key(65537, 2048)
    ca = tls.make_ca("a company", ca_key, now=now, randomness=os.urandom)
    certificate = tls.make_server_certificate(
        ["127.0.0.1"],
        key.public_key(),
        ca=ca,
        ca_key=ca_key,
        now=now,
        randomness=os.urandom,
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (made.server / "company.key").write_bytes(pem)
    (made.server / "company.key").chmod(0o600)
    (made.server / "company.crt").write_bytes(tls.certificate_pem(certificate) + tls.certificate_pem(ca))
    settings = made.server / "server.toml"
    text = settings.read_text().replace("server.crt", "company.crt").replace("server.key", "company.key")
    settings.write_text(text)
    bundle = made.folder / "company-ca.pem"
    bundle.write_bytes(tls.certificate_pem(ca))
    return bundle


@contextlib.asynccontextmanager
async def handshakes(certificate: ServedCertificate) -> AsyncIterator[str]:
    """The address of a server that answers every request with 204."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=certificate.context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def asked(url: str, context: ssl.SSLContext) -> int:
    async with httpx.AsyncClient(verify=context, trust_env=False) as http:
        return (await http.get(url)).status_code


async def test_a_certificate_of_another_authority_is_trusted_where_the_kits_say_so(
    made: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = own_certificate(made, datetime.now(UTC))
    async with handshakes(served(made)) as url:
        with pytest.raises(httpx.ConnectError):
            await asked(url, tls_context(ClientKit.load(made.clients[0]).ca_file))
        for folder, file, load in (
            (made.clients[0], "client.toml", ClientKit.load),
            (made.operator, "operator.toml", OperatorKit.load),
        ):
            text = (folder / file).read_text()
            (folder / file).write_text(f'tls-ca = "{bundle}"\n{text}')
            assert await asked(url, tls_context(load(folder).ca_file)) == 204
            (folder / file).write_text(f'tls-ca = "system"\n{text}')
            assert load(folder).ca_file is None
        with pytest.raises(httpx.ConnectError):
            await asked(url, tls_context(None))
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
        assert await asked(url, tls_context(None)) == 204


async def test_a_client_of_an_expired_server_reads_why_and_asks_again(made: FederationFolder) -> None:
    ca = ClientKit.load(made.clients[0]).ca_file
    for begins, said in (
        (datetime.now(UTC) - YEAR - timedelta(days=1), "has expired; the server's owner has to renew it"),
        (datetime.now(UTC) + timedelta(days=2), "is not valid yet; check the clock of this machine"),
    ):
        Authority.load(made.folder).renew(made.server / "server.crt", [], now=begins)
        async with handshakes(served(made)) as url:
            with pytest.raises(httpx.ConnectError) as failed:
                await asked(url, tls_context(ca))
        error = unanswered([url], failed.value)
        assert isinstance(error, ServerUnreachable)
        assert said in str(error)
        assert may_pass(failed.value)


def test_a_key_of_another_certificate_is_refused(made: FederationFolder, tmp_path: Path) -> None:
    other = provision(tmp_path / "other", name="pilot", clients=1, now=NOW)
    (made.server / "server.crt").write_bytes((other.server / "server.crt").read_bytes())
    with raises(KitError, check="other-key"):
        ServerKit.load(made.folder)
