"""The server's certificate while it is served: when it ends, and how a new one is taken without a restart."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from fedcore.errors import KitError
from fedcore.federation.files import broken, read_certificate
from fedcore.federation.kits.expiry import days_left, warning

log = logging.getLogger("fedcore.server")


class ServedCertificate:
    """A certificate with its key, in files that may be replaced while the server runs.

    certificate
        Its file.
    key
        The file of its key.
    wall
        Seconds since 1970.
    """

    def __init__(self, certificate: Path, key: Path, *, wall: Callable[[], float]) -> None:
        """Raises KitError if the files are no certificate with its key."""
        self._files = (certificate, key)
        self._wall = wall
        self._logged_warning = ""
        self._certificate, self._context = _load(certificate, key)

    @property
    def context(self) -> ssl.SSLContext:
        """For the next handshake."""
        return self._context

    @property
    def days_left(self) -> float:
        """Days until it ends, negative afterwards."""
        return days_left(self._certificate, self._now())

    @property
    def warning(self) -> str:
        """What the server's owner has to know; empty while it is good for 30 days and more."""
        return warning(self._certificate, self._now(), what="the server's certificate")

    def remind(self) -> None:
        """Log the warning when it is new, which it is every day."""
        if (text := self.warning) != self._logged_warning:
            self._logged_warning = text
            if text:
                log.warning("%s", text)

    def reload(self) -> None:
        """Take what the files hold now. A broken or expired one is refused aloud, and the present one stays."""
        try:
            certificate, context = _load(*self._files)
        except KitError as error:
            log.error("the new certificate is not taken, the present one stays: %s", error)
            return
        if certificate.not_valid_after_utc <= self._now():
            log.error("the new certificate is not taken, the present one stays: %s has expired", self._files[0])
            return
        self._certificate, self._context = certificate, context
        log.info("took the certificate that is good until %s", f"{certificate.not_valid_after_utc:%Y-%m-%d}")
        self.remind()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall(), UTC)


def _load(certificate: Path, key: Path) -> tuple[x509.Certificate, ssl.SSLContext]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise broken(certificate, f"no certificate with its key {key.name} ({error})", "mend the two files") from None
    return read_certificate(certificate), context


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    return ""
