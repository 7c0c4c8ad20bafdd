"""Ten scripts as people write them, adopted: what is in the apps, and what is listed instead."""

import ast
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcore.cli.main import app as command

SCRIPTS = Path(__file__).parents[2] / "support" / "scripts" / "adopted"
OWN_LOOPS = {
    "amp": ("GradScaler(", "autocast(", "clip_grad_norm_(", "OneCycleLR(", "% 2 == 0", "go_on(scheduler"),
    "bert": ("model(**batch)", "loss = outputs.loss", "get_linear_schedule_with_warmup(", "go_on(lr_scheduler"),
    "cnn": ("SimpleNamespace(", "train(args, model, device, train_loader, optimizer, epoch)", "go_on(scheduler"),
    "gan": ('engine.model["netG"]', 'engine.model["netD"]', "optimizerD", "optimizerG", "engine.prepare("),
    "lstm": ("for text, lengths, target in train_loader", "clip_grad_norm_(", "evaluate(model, test_loader)"),
    "multitask": ('targets["days"]', "label_smoothing=0.1", "AdamW(", "self_validate()"),
    "segmentation": ("DiceBCELoss()", "CosineAnnealingLR(", "iou"),
    "stream": ("train(net, train_loader, loss_fn, opt, steps=10)", "SmoothL1Loss()", "RMSprop("),
    "flat": ("F.mse_loss(pred, yb)", "raise NotImplementedError"),
}
LOADERS = {
    "lstm": ("collate_fn=collate", "drop_last=True", "sentences.append(words)"),
    "segmentation": ("sampler=RandomSampler(examples)",),
    "cnn": ("train_kwargs", '"batch_size": int(job.config["batch-size"])'),
    "stream": ("islice(", "Sensor(90)"),
    "flat": ("X /= std",),
}
MARKED = {"flat"}


@pytest.fixture(scope="module")
def adopted(tmp_path_factory):
    """Each script's app, and what the command prints."""
    folder = tmp_path_factory.mktemp("adopted")
    made = {}

    def adopt(name):
        if name not in made:
            script, app = folder / f"{name}.py", folder / f"app-{name}"
            script.write_text((SCRIPTS / f"{name}.py.txt").read_text())
            result = CliRunner().invoke(command, ["new", str(app), "--from", str(script), "--json"])
            assert result.exit_code == 0, result.output
            made[name] = json.loads(result.stdout), app / f"app_{name}_app"
        return made[name]

    return adopt


def names():
    return sorted(path.name.partition(".")[0] for path in SCRIPTS.glob("*.txt"))


@pytest.mark.parametrize("name", names())
def test_what_is_made_is_python_and_stops_only_where_it_says_so(adopted, name):
    facts, package = adopted(name)
    for path in package.glob("*.py"):
        ast.parse(path.read_text())
    text = "".join(
        (package / file).read_text() for file in ("app.py", "model.py", "loop.py") if (package / file).exists()
    )
    assert ("NotImplementedError" in text) == (name in MARKED)
    assert len(facts["todo"]) > 1 or name not in MARKED
    assert facts["lines"]["to_decide"] == len(facts["todo"])


@pytest.mark.parametrize("name", sorted(OWN_LOOPS))
def test_the_loop_of_a_script_is_the_app_s(adopted, name):
    _, package = adopted(name)
    loop = (package / "loop.py").read_text()
    assert [part for part in OWN_LOOPS[name] if part not in loop] == []


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_the_dataloader_keeps_what_it_has(adopted, name):
    _, package = adopted(name)
    data = (package / "data.py").read_text()
    assert [part for part in LOADERS[name] if part not in data] == []


def test_a_usual_loop_is_left_to_supervised_app_with_its_clipping(adopted):
    _, package = adopted("tabular")
    assert not (package / "loop.py").exists()
    assert "max-grad-norm = 1.0" in (package.parent / "pyproject.toml").read_text()
    assert "model[0].bias.data.zero_()" in (package / "model.py").read_text()
    assert 'frame.pop("target")' in (package / "data.py").read_text()


@pytest.mark.parametrize(
    ("name", "lines"),
    [("cnn", (69, 95)), ("gan", (44, 50, 74, 76)), ("tabular", (54,)), ("multitask", (67, 70)), ("flat", (29, 30, 31))],
)
def test_what_is_not_carried_over_is_listed_by_its_line(adopted, name, lines):
    facts, package = adopted(name)
    spans = [
        [int(word) for word in one.partition(":")[0].replace("to", " ").split() if word.isdigit()]
        for one in facts["not_carried"]
    ]
    assert [line for line in lines if not any(span[0] <= line <= span[-1] for span in spans)] == []
    assert all(one in (package.parent / "README.md").read_text() for one in facts["not_carried"])
