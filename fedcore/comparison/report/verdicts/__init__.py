"""What may be claimed of the modes of a comparison: differences with intervals, and models that are not stable."""

from fedcore.comparison.report.verdicts.claim import (
    About,
    Claim,
    SamplingError,
    Verdict,
    claim,
    judged,
    sampling_error,
)
from fedcore.comparison.report.verdicts.pairs import Roles, claims_of, protected
from fedcore.comparison.report.verdicts.stability import instability

__all__ = [
    "About",
    "Claim",
    "Roles",
    "SamplingError",
    "Verdict",
    "claim",
    "claims_of",
    "instability",
    "judged",
    "protected",
    "sampling_error",
]
