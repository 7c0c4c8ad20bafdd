"""How long a certificate remains valid, in words for the person who has to renew it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from cryptography import x509

WARN_BEFORE: Final = timedelta(days=30)
_DAY: Final = timedelta(days=1)


def days_left(certificate: x509.Certificate, now: datetime) -> float:
    """Days until a certificate ends at `now`, an aware time; negative where it has ended."""
    return (certificate.not_valid_after_utc - now) / _DAY


def warning(certificate: x509.Certificate, now: datetime, *, what: str) -> str:
    """What is to be said of a certificate; empty while it is good for 30 days and more."""
    ends = certificate.not_valid_after_utc
    if now < certificate.not_valid_before_utc:
        begins = certificate.not_valid_before_utc
        return f"{what} is not good before {begins:%Y-%m-%d %H:%M} UTC: is the clock of this machine right?"
    if now >= ends:
        return f"{what} expired on {ends:%Y-%m-%d %H:%M} UTC: nobody who checks it connects; renew it now"
    if ends - now < WARN_BEFORE:
        return f"{what} expires in {(ends - now) // _DAY} days, on {ends:%Y-%m-%d}; renew it"
    return ""
