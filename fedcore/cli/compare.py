"""The command `fedcore compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli import completion
from fedcore.cli.main import DataFolder, RunConfig, Tracks
from fedcore.errors import ConfigurationError

FAILED = 1


def compare(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="APP_DIR",
            help="Folder of a Flower app, or of several that read the same rows; with --from, reports.",
        ),
    ] = None,
    modes: Annotated[
        str,
        typer.Option(
            help="Comma-separated, each with its options: ps-ssp\\[s=3]; or all. See --list-modes.",
            autocompletion=completion.modes,
        ),
    ] = "federated,centralized",
    clients: Annotated[int, typer.Option(min=2, help="Number of sites: clients, workers or ranks.")] = 4,
    partition: Annotated[
        str,
        typer.Option(
            help="How to divide the data: iid, dirichlet:ALPHA, shards:COUNT, labels:COUNT, natural, or another "
            "partition of docs/partitions.md.",
            autocompletion=completion.partitions,
        ),
    ] = "",
    seeds: Annotated[
        str,
        typer.Option(
            help="A number of seeds, counted from the app's own, or a list: 5, or 42,43. By default 5 if one takes "
            "less than a minute, else 1."
        ),
    ] = "",
    budget: Annotated[
        str,
        typer.Option(
            help="What all modes have equally much of: examples, steps, seconds, seconds:N, or target:METRIC:VALUE. By "
            "default examples, with the models at equal steps next to them.",
        ),
    ] = "",
    tune: Annotated[
        list[str] | None,
        typer.Option(
            help="key=value,value: each mode takes the value that is best on validation data; repeatable.",
            autocompletion=completion.settings,
        ),
    ] = None,
    validation: Annotated[
        float, typer.Option(help="With --tune: the share of each site's training examples that is validation data.")
    ] = 0.2,
    network: Annotated[
        str,
        typer.Option(
            help="Also estimate the time over a network: lan, wan, or figures such as bandwidth=100Mbit (see Example)."
        ),
    ] = "none",
    run_config: RunConfig = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value or key=value,value to sweep over, of the run config, the modes' options or "
            "\\[tool.fedcore]; repeatable.",
            autocompletion=completion.settings,
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Metric to judge models by: NAME, or NAME:max or NAME:min if the app does not say which is better. "
            "By default the app's first metric, or else accuracy or loss.",
            autocompletion=completion.metrics,
        ),
    ] = "",
    no_plain_check: Annotated[
        bool,
        typer.Option(
            "--no-plain-check",
            help="Do not train a round or two of each secure mode again, to check that its sums are the plain means.",
        ),
    ] = False,
    energy: Annotated[
        float | None,
        typer.Option(
            metavar="WATTS", min=0.0, help="Also estimate energy: processor seconds times so many watts a core."
        ),
    ] = None,
    kill: Annotated[str, typer.Option(help="Kill a site's worker in every mode: SITE@ROUND, such as client-2@3.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the report, models and logs.")] = Path("compare-out"),
    data_dir: DataFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier comparison in the folder.")] = False,
    from_: Annotated[bool, typer.Option("--from", help="Merge the named report.json files into one report.")] = False,
    export: Annotated[
        str,
        typer.Option(
            metavar="latex,csv,svg",
            help="Also write these for a paper, with a paragraph on methods, into the folder export of --out.",
        ),
    ] = "",
    study: Annotated[
        str,
        typer.Option(
            help="Carry out a plan of comparisons, each in its own folder: niid, fairness, privacy or bytes. "
            "See --list-studies.",
            autocompletion=completion.studies,
        ),
    ] = "",
    list_studies: Annotated[bool, typer.Option("--list-studies", help="Print the studies and their plans.")] = False,
    list_modes: Annotated[bool, typer.Option("--list-modes", help="Print the modes and their options.")] = False,
    list_metrics: Annotated[
        bool, typer.Option("--list-metrics", help="Print the metrics of the app's models.")
    ] = False,
    track: Tracks = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train the same app in several modes, each in real processes, and report them side by side.

    Run it again with the same options to resume an interrupted comparison.

    Example: fedcore compare examples/digits --modes federated,centralized,allreduce --seeds 3 --out out

    Example: fedcore compare examples/digits --budget steps --out steps

    Example: fedcore compare examples/digits --tune lr=0.01,0.03,0.1 --out tuned

    Example: fedcore compare examples/digits --budget target:accuracy:0.9 --network wan --out target

    Example: fedcore compare examples/digits --network bandwidth=100Mbit,latency=50ms,slow=2:4

    Example: fedcore compare --from out/report.json --export latex,csv,svg --out paper

    Example: fedcore compare my-trees my-logistic --modes federated,centralized,local --out both

    Example: fedcore compare --study niid examples/digits --seeds 3 --out niid
    """
    from click import get_current_context
    from click.core import ParameterSource
    from rich.console import Console

    from fedcore.cli.compare_apps import run_apps
    from fedcore.cli.compare_console import metrics_text, modes_table, overlay, show, watch
    from fedcore.cli.compare_study import run_study, studies_table
    from fedcore.comparison import plan
    from fedcore.comparison.app_probe import AppFacts
    from fedcore.comparison.design.budget import Budget
    from fedcore.comparison.design.studies import study_named
    from fedcore.comparison.design.tuning import Tuning
    from fedcore.comparison.judging import MetricChoice
    from fedcore.comparison.modes import every_mode, parse_modes
    from fedcore.comparison.report import Comparison, parse_export
    from fedcore.flower.app import FlowerApp
    from fedcore.monitoring.trackers import parse_tracks
    from fedcore.simulation.devices.network import Network
    from fedcore.system.assignments import parse_assignments

    # On the terminal the report is the last thing to be seen; as JSON it is alone on standard output.
    console = Console(stderr=as_json)
    if list_modes:
        console.print(modes_table())
        return
    if list_studies:
        console.print(studies_table())
        return
    forms = parse_export(export)
    if from_:
        overlay(paths or [], out.absolute(), console, force=force, as_json=as_json, forms=forms)
        return
    if not paths:
        raise ConfigurationError("name the folder of a Flower app, or report.json files after --from")
    if len(paths) > 1 and (study or list_metrics):
        raise ConfigurationError("--study and --list-metrics are for one app", check="several-apps")
    apps = [FlowerApp.load(path) for path in paths]
    goal = Budget.parse(budget)
    config = parse_assignments(run_config or [])
    job = plan.CompareJob(
        app=apps[0],
        modes=parse_modes(modes if modes != plan.ALL_MODES else ",".join(every_mode())),
        sites=clients,
        out=out.absolute(),
        seeds=plan.parse_seeds(seeds, {**apps[0].run_config, **config}.get(plan.SEED)) if len(apps) == 1 else (),
        partition=partition,
        network=Network.parse(network),
        run_config=config,
        sweep=plan.parse_sweep(set_ or []),
        kill=plan.parse_kill(kill) if kill else None,
        data_dir=data_dir.absolute() if data_dir else None,
        metric=MetricChoice.parse(metric) if metric else goal.metric,
        budget=goal,
        tuning=Tuning(values=plan.parse_sweep(tune, option="--tune"), share=validation) if tune else None,
        more_seeds=not seeds,
    )
    if list_metrics:
        console.print(metrics_text(job), highlight=False, soft_wrap=True)
        return

    def watched(one: plan.CompareJob, facts: AppFacts | None = None) -> Comparison:
        return watch(
            one,
            console,
            drop=modes == plan.ALL_MODES,
            force=force,
            tracks=parse_tracks(track),
            plain_check=not no_plain_check,
            watts=energy,
            facts=facts,
        )

    def carry_out(one: plan.CompareJob) -> Comparison:
        several = len(apps) > 1
        comparison = run_apps(one, apps, console, watched, seeds=seeds, force=force) if several else watched(one)
        show(comparison, one.out, console, as_json=as_json, forms=forms)
        return comparison

    if study and as_json:
        raise ConfigurationError("--json is for one comparison; each of a study has its report.json in its own folder")
    own_modes = get_current_context().get_parameter_source("modes") is not ParameterSource.DEFAULT
    done = run_study(study_named(study), job, console, carry_out, own_modes=own_modes) if study else [carry_out(job)]
    if any(run.status == "failed" for comparison in done for run in comparison.runs):
        raise typer.Exit(FAILED)
