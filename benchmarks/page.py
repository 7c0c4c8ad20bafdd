"""How quick the page stays with 1,000 sites and 500 rounds, measured in headless Chromium.

python benchmarks/page.py [--quick] [--json] [--save FILE]

A made-up federation behind the page's addresses (tests/support/made_up_world.py) continues its run: updates arrive
five times a second, and rounds end. The page measures each update by itself, from the parsing of its data to the frame
that shows it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playwright.sync_api import CDPSession, Page, sync_playwright

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from fedcore.errors import EnvironmentFailure
from tests.support.made_up_page import OPERATOR, made_up_page
from tests.support.made_up_world import World
from tests.support.ports import reserved_port

_OBSERVE = """
window.updates = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (entry.name === "fedcore-update") window.updates.push(entry.duration);
}).observe({ entryTypes: ["measure"] });
"""
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
_BEAT = 0.2
_MIB = float(1 << 20)


def measure(arguments: argparse.Namespace) -> Report:
    """Raises EnvironmentFailure if there is no Chromium."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise EnvironmentFailure("this needs Chromium: install Debian's package chromium")
    clients, rounds, beats = sized(arguments, smallest=(12, 3, 4), quick=(100, 50, 25), whole=(1000, 500, 60))
    say(f"making up {rounds} rounds of {clients} sites ...")
    world = World(clients=clients, planned=rounds + beats, done=rounds)
    with reserved_port() as port, made_up_page(world, port) as url, sync_playwright() as playwright:
        # The heap is told in full, not in steps of megabytes.
        options = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
        opened = playwright.chromium.launch(executable_path=browser, args=options)
        page = opened.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(_OBSERVE)
        page.goto(f"{url}#view={OPERATOR}")
        page.wait_for_selector(".plots .uplot", timeout=60_000)
        paint = float(page.evaluate(_PAINT))
        say(f"following {beats} changes ...")
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})  # the thread's own time, whoever else runs
        before = _busy(metrics)
        page.evaluate("window.updates.length = 0")  # not those of the opening
        _go_on(world, page, beats)
        busy = _busy(metrics) - before
        updates = [float(value) for value in page.evaluate("window.updates")]
        heap = float(page.evaluate("performance.memory.usedJSHeapSize")) / _MIB
        opened.close()
    return _report(updates, paint, heap, busy, clients=clients, rounds=rounds)


def _busy(metrics: CDPSession) -> float:
    """Seconds of the processor that the page's main thread has used."""
    found = {metric["name"]: metric["value"] for metric in metrics.send("Performance.getMetrics")["metrics"]}
    return float(found["TaskDuration"])


def _go_on(world: World, page: Page, beats: int) -> None:
    """Change the world five times a second, as the server tells of a stage at most; every tenth change ends a round."""
    for beat in range(beats):
        if beat % 10 == 9:
            world.arrive(world.clients)
            world.end_round()
            world.open_exchange("train")
        else:
            world.arrive(world.clients // 12)
        page.wait_for_timeout(1000 * _BEAT)
    time.sleep(_BEAT)


def _report(updates: list[float], paint: float, heap: float, busy: float, *, clients: int, rounds: int) -> Report:
    centiles = statistics.quantiles(updates, n=100, method="inclusive")
    rows = [("updates", str(len(updates)))]
    rows += [(f"p{at}", f"{centiles[at - 1]:.1f} ms") for at in (50, 90, 95, 99)]
    rows += [("longest", f"{max(updates):.1f} ms")]
    rows += [("processor of the main thread, an update", f"{1000 * busy / len(updates):.1f} ms")]
    load, cores = os.getloadavg()[0], os.cpu_count()
    return Report(
        benchmark="The page with many sites and rounds",
        figures=(
            Figure(name="p95_update_ms", value=centiles[94], unit="ms", aim=100.0),
            Figure(name="first_paint_ms", value=paint, unit="ms", aim=1000.0),
            Figure(name="heap", value=heap, unit="MiB", aim=100.0),
        ),
        tables=(Table(title="Updates", header=("what", "value"), rows=tuple(rows)),),
        notes=(
            f"{clients:,} sites, {rounds} rounds before the page was opened, and rounds that end while it is measured.",
            f"Load of the machine: {load:.0f} on {cores} cores; over their number, updates wait for others.",
            "An update is all work that follows from one answer or event, from its parsing to the frame that shows it.",
        ),
    )


if __name__ == "__main__":
    raise SystemExit(run(measure, parser(__doc__ or "").parse_args()))
