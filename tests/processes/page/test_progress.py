"""What the page says of a round, by the script that says it and as much of a document as that needs."""

import shutil
import subprocess
from pathlib import Path

import pytest

import server_app.page

NODE = shutil.which("node")
SCRIPT = """
const node = () => ({ dataset: {}, append() {}, setAttribute() {}, parentElement: { append() {} }, textContent: "" });
globalThis.document = { createElement: node, documentElement: node(), addEventListener() {} };
const { Progress } = await import(process.argv[1]);
const progress = new Progress();
const cohort = ["a", "b", "c", "d"];
const say = () => console.log(progress.round.textContent);
progress.hear({ kind: "exchange", exchange: 1, server_round: 1, message_type: "train", cohort, groups: 2 });
say();
progress.hear({ kind: "stage", exchange: 2, stage: "input", done: 1, expected: 2 });
progress.stage({ exchange: 3, server_round: 1, stage: "input", groups: 2 });
say();
progress.hear({ kind: "exchange-done", exchange: 1 });
say();
progress.hear({ kind: "exchange", exchange: 4, server_round: 2, message_type: "train", cohort, groups: 1 });
say();
progress.end();
const late = new Progress();
late.stage({ exchange: 6, server_round: 3, stage: "input", groups: 4 });
console.log(late.round.textContent);
late.end();
"""


@pytest.mark.skipif(NODE is None, reason="needs Node.js")
def test_a_round_in_groups_says_so_while_it_goes_on(tmp_path: Path) -> None:
    static = shutil.copytree(Path(server_app.page.__file__).parent / "static", tmp_path / "static")
    (static / "package.json").write_text('{"type": "module"}')
    command = [str(NODE), "--input-type=module", "--eval", SCRIPT, (static / "progress.js").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Round 1, in 2 groups",
        "Round 1, in 2 groups",
        "Round 1",
        "Round 2",
        "Round 3, in 4 groups",  # on a page that was opened in the middle of it
    ]
