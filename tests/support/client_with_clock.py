"""A client whose machine's clock is off by as many seconds as a file says.

python client_with_clock.py FILE --kit DIR --app DIR

Everything but that clock is `fedcore client`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fedcore.cli.main import main

if __name__ == "__main__":
    file, sys.argv[1] = Path(sys.argv[1]), "client"
    right = time.time
    time.time = lambda: right() + float(file.read_text(encoding="utf-8"))
    main()
