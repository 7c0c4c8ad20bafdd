"""A command of fedcore on a machine whose clock is off by as many seconds as a file says.

python program_with_clock.py FILE COMMAND ...

Everything but that clock is `fedcore COMMAND`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fedcore.cli.main import main

if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    right = time.time
    time.time = lambda: right() + float(file.read_text(encoding="utf-8"))
    main()
