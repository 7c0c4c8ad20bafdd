"""The federation's private certificate authority and the server's certificate (RFC 5280, P-256)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedcore.errors import KitError

Randomness = Callable[[int], bytes]

CA_LIFETIME: Final = timedelta(days=3650)
SERVER_LIFETIME: Final = timedelta(days=365)
# Clocks run apart; a certificate made now must be good on a machine whose clock is late.
_BACKDATE: Final = timedelta(hours=1)
_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_NO_USAGE: Final = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


def make_key(randomness: Randomness) -> ec.EllipticCurvePrivateKey:
    """A P-256 key from 48 random bytes, by the extra-bits method (FIPS 186-5, A.2.1)."""
    secret = int.from_bytes(randomness(48), "big") % (_P256_ORDER - 1) + 1
    return ec.derive_private_key(secret, ec.SECP256R1())


def make_ca(
    federation: str, key: ec.EllipticCurvePrivateKey, *, now: datetime, randomness: Randomness
) -> x509.Certificate:
    """A self-signed CA certificate, for end certificates only (path length 0), for ten years."""
    name = _name(f"fedcore CA of {federation}", federation)
    builder = (
        _builder(name, name, key.public_key(), now, CA_LIFETIME, randomness)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**{**_NO_USAGE, "key_cert_sign": True, "crl_sign": True}), critical=True)
    )
    return builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True)


def make_server_certificate(
    hosts: Sequence[str],
    key: CertificatePublicKeyTypes,
    *,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    now: datetime,
    randomness: Randomness,
) -> x509.Certificate:
    """A certificate for a TLS server with this key, under these host names and addresses, good for one year."""
    alternatives = [_alternative(host) for host in hosts]
    name = _name("fedcore server", ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = (
        _builder(name, ca.subject, key, now, SERVER_LIFETIME, randomness)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**_NO_USAGE, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(authority, critical=False)
    )
    return builder.sign(ca_key, hashes.SHA256(), ecdsa_deterministic=True)


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a server's certificate is for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate in PEM form."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def is_loopback(host: str) -> bool:
    """Whether `host` can only mean this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url_host(host: str) -> str:
    """`host` as it stands in a URL: an IPv6 address in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]" if ":" in host else host


def check_host(host: str) -> str:
    """Return `host`; KitError unless it is an IP address or a host name (RFC 1123, 2.1)."""
    _alternative(host)
    return host


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        # A name whose last label is a number would be read as an address by some resolvers.
        if not _HOST.fullmatch(host) or host.rpartition(".")[2].isdigit():
            raise KitError(f"{host!r} is neither an IP address nor a host name", check="host") from None
        return x509.DNSName(host)


def _name(common: str, federation: str | bytes) -> x509.Name:
    organization = federation if isinstance(federation, str) else federation.decode()
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            # RFC 5280 allows 64 characters here, fewer than the prefix and a long name need.
            x509.NameAttribute(NameOID.COMMON_NAME, common[:64]),
        ]
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: CertificatePublicKeyTypes,
    now: datetime,
    lifetime: timedelta,
    randomness: Randomness,
) -> x509.CertificateBuilder:
    # RFC 5280, 4.1.2.2: positive and at most 20 octets; bit 152 set keeps it from being zero.
    serial = int.from_bytes(randomness(19), "big") | 1 << 151
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
