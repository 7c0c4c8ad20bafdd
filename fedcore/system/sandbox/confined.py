"""Becomes a module that runs user code, in a sandbox.

Started by `fedcore.system.sandbox.sandbox.Sandbox.command` as `python -m fedcore.system.sandbox.confined SANDBOX
MODULE ...`. The
process that starts it does not do this between fork and exec, where other threads may hold locks; and a process that
had imported torch already would have threads that keep their rights. So this imports next to nothing first.
"""

from __future__ import annotations

import runpy
import sys

from fedcore.system.sandbox.namespaces import Need
from fedcore.system.sandbox.sandbox import Sandbox


def main() -> None:
    """Take on the sandbox and run the module as `python -m` would."""
    if sys.argv[1] == "--try":
        alone, mapped = (bool(int(word)) for word in sys.argv[2:])
        sys.stdout.write(Need(alone=alone, mapped=mapped).best())
        return
    text, module, *arguments = sys.argv[1:]
    sandbox = Sandbox.from_json(text)
    sandbox.separate()
    sandbox.enter()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
