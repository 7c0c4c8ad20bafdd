"""Draw docs/comparison.png: the first screens of a report.html, as headless Chromium shows them.

python docs/make_comparison_screenshot.py OUT_FOLDER_OF_A_COMPARISON
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parent / "comparison.png"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 1700
DEADLINE_SECONDS = 60


def main(folder: Path) -> None:
    """Raises SystemExit if there is no report, or no browser."""
    report = folder.absolute() / "report.html"
    if not report.is_file():
        raise SystemExit(f"{report} does not exist")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
            *(f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE}"),
            report.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_SECONDS)  # noqa: S603
    sys.stdout.write(f"{PICTURE}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
