"""Every benchmark runs: each as a program of its own at its smallest size, whose figures mean nothing."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.deployment import ENVIRONMENT
from support.forked import Forked
from support.postgres import binaries

from benchmarks.partition import lacks as lacks_of_partition
from benchmarks.relay import is_possible

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
HELPERS = {
    "fuzz_guided": "fuzz",
    "large": "codec",
    "mutation_worker": "mutation_runs",
    "peers_nvflare_job": "peers_nvflare",
    "simulation_arm": "simulation_turns",
}
"""Programs that are no benchmarks, and the module that starts them."""


@dataclass(frozen=True)
class Case:
    """figure: one of the report's; empty where it has rows alone. words: beside --smallest. lacks: what it misses.

    holds: figures that meet their aims at this size, too.
    """

    figure: str
    words: tuple[str, ...] = ()
    data: bool = False
    lacks: Callable[[], str] = lambda: ""
    holds: tuple[str, ...] = ()


def module(name: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"needs {name}"


def browser() -> str:
    return "" if shutil.which("chromium") or shutil.which("google-chrome") else "needs Chromium"


def network() -> str:
    return "" if is_possible() else "needs network namespaces and TUN devices, as root"


def proxy() -> str:
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return "" if nginx and binaries() else "needs PostgreSQL and nginx"


def gpu() -> str:
    return "" if Path("/dev/nvidiactl").exists() else "needs a GPU; tests/gpu has its parts on the processor"


RECORDS_READ = ("records_read_stock", "records_read_strict", "records_read_own")
"""None, none, and at least one: an attack that reads nothing where nothing forbids it would show nothing elsewhere."""

CASES = {
    "adapters": Case("sb_over_lora_bytes", lacks=module("peft"), holds=("sb_mean_error",)),
    "asynchrony": Case("buffered_over_synchronous_seconds_permanent"),
    "attacks": Case("server_growth"),
    "baselines": Case("allreduce_over_bare"),
    "batched": Case("logistic_at_once_over_one_by_one"),
    "bits": Case("differing"),
    "bytes": Case("accuracy_lost_at_quarter", data=True),
    "chaos": Case("other_bits_sqlite", ("--app-share", "0"), holds=("unfinished_sqlite",)),
    "chaos_everything": Case("other_models", holds=("unfinished",)),
    "codec": Case("encode_over_copy"),
    "codec_errors": Case("run_over_bound"),
    "codec_scales": Case("single_elements_told"),
    "cohort": Case("dropped"),
    "dataset": Case("dataset_over_plain"),
    "device_codec": Case("words_that_differ", lacks=module("triton")),
    "downloads": Case("difference_over_model", data=True, holds=("difference_over_model",)),
    "engines": Case("warm_round_overhead_over_cold"),
    "failures": Case("known_over_liveness"),
    "fashion_mnist": Case("secure_minus_plain_over_spread_iid", data=True),
    "femnist": Case("epsilon_over_budget", data=True),
    "flower_examples": Case("run_in_secure_mode", lacks=lambda: "needs a checkout of Flower's repository"),
    "front": Case("nginx_over_direct", lacks=proxy),
    "fuzz": Case("crashes"),
    "gigabytes": Case("agent_over_model", ("--clients", "2")),
    "glm": Case(
        "largest_coefficient_difference",
        lacks=module("statsmodels"),
        holds=("largest_coefficient_difference", "largest_error_difference", "other_answers_with_dropouts"),
    ),
    "gpt": Case("model_flops_overmatrix_rate"),
    "gpu": Case("parts_that_hold", lacks=gpu),
    "headlines": Case("false_headlines", holds=("falls_unsaid",)),
    "heart_disease": Case("fedavg_difference_over_spread", data=True),
    "honest": Case("later_round_over_any_model"),
    "hostile": Case("honest_completions_over_rounds"),
    "kills": Case("modes_that_say_what_was_lost"),
    "lan_wan": Case("retimed_over_clock"),
    "large_runs": Case("client_over_model"),
    "masking": Case("mask_two_threads_speedup"),
    "matrix": Case("failures", lacks=lambda: "installs torch for each Python: make matrix"),
    "memory": Case("peak_over_model_single"),
    "mutation": Case("killed_over_total"),
    "network": Case("allreduce_over_clock", lacks=network),
    "norm_proof": Case("client_seconds", holds=("forged_accepted",)),
    "page": Case("p95_update_ms", lacks=browser),
    "partition": Case("lost", lacks=lacks_of_partition, holds=("lost", "doubled", "other_bits", "unfinished")),
    "peers": Case(""),
    "privacy_attacks": Case("membership_rate_heart_disease_strict", data=True, holds=RECORDS_READ),
    "ps_engine": Case("ps_push_over_engine"),
    "published": Case("", ("heart", "--folder", "{folder}"), data=True),
    "round": Case("secure_over_plain_seconds_1e3"),
    "secure_over_plain": Case("digits_wall"),
    "secagg_scale": Case("upload_over_vector_n40"),
    "serving": Case("upload_over_raw_tls"),
    "simulation": Case("processor_seconds_10_secure"),
    "ssp": Case("staleness_beyond_bound"),
    "startup": Case("slowest_over_smallest_typer_program"),
    "tables": Case("auc_less_pooled_rare"),
    "ten_minutes": Case("minutes"),
    "timing_channel": Case("smaller data and larger data told apart, padded"),
    "tree_histograms": Case("auc_noise_costs_made"),
    "trees": Case("auc_minus_pooled", lacks=module("xgboost"), holds=("splits_that_differ",)),
    "upload": Case("overlapped_over_masked_first_loopback"),
    "wan": Case("round_over_line_limit_secure_1e4_100mbit_2ms", lacks=network),
    "whole_run": Case("next_round_error", data=True),
}


def test_every_program_in_the_folder_is_run_here_or_by_one_that_is() -> None:
    programs = {path.stem for path in FOLDER.glob("*.py") if "if __name__ ==" in path.read_text(encoding="utf-8")}
    assert programs == {*CASES, *HELPERS}
    for helper, starter in HELPERS.items():
        assert helper in (FOLDER / f"{starter}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_finds_its_own_package_when_it_is_started_as_a_file(name: str) -> None:
    """The tests have the repository's root on their path, and a shell has not."""
    code = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    before, found, _ = code.partition("sys.path[0] = str(")
    assert found
    assert not re.search("^from (benchmarks|tests)", before, re.MULTILINE)


@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_runs_at_its_smallest_size(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    case = CASES[name]
    if reason := case.lacks():
        pytest.skip(reason)
    environment = {**os.environ, **ENVIRONMENT}
    if case.data:
        environment["FEDCORE_DATA"] = str(request.getfixturevalue("data_dir"))
    found = report(
        [*(word.format(folder=tmp_path) for word in case.words), "--smallest", "--json"], name, tmp_path, environment
    )
    figures = {figure["name"]: figure["value"] for figure in found["figures"]}
    if case.figure:
        assert math.isfinite(figures[case.figure]), figures
    else:
        assert any(table["rows"] for table in found["tables"])
    assert [figure["name"] for figure in found["figures"] if figure["holds"] and figure["name"] in case.holds] == [
        *case.holds
    ]


def report(words: list[str], name: str, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """What a benchmark prints; it has to end well, and to leave no process behind."""
    out, err = folder / "out", folder / "err"
    command = [sys.executable, str(FOLDER / f"{name}.py"), *words]
    process = Forked(command, environment, (str(out), str(err)), ROOT)
    assert process.wait() == 0, err.read_text(encoding="utf-8")[-3000:]
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found
