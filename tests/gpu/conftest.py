"""Tests of what trains, on each device: the processor always, a GPU where there is one.

A test that needs both compares them. `make gpu` runs all of this and measures as well (docs/howto/gpus.md).
"""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of a test; skipped where this machine has none."""
    name: str = request.param
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is false")
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Say at once why a test failed: one that hangs later would take the summary with it."""
    if report.failed:
        print(f"\n{report.nodeid}\n{report.longreprtext}")  # noqa: T201 - of a test
