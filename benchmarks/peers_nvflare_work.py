"""The clients' work in NVIDIA FLARE, through its Client API: adds one constant to every parameter, as noop does.

FLARE runs it in its own environment (`peers_nvflare.py`); nothing of fedcore is imported.
"""

import re
import time

import nvflare.client as flare  # type: ignore[import-not-found]

STEP = 1e-3


def main() -> None:
    """Until the job ends: one update for each model that comes."""
    flare.init()
    # Sites are called site-1, site-2, ...: every client a step of its own.
    number = int(re.sub(r"\D", "", flare.get_site_name()))
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        print(f"local work begins at {time.time():.3f}", flush=True)
        params = {name: value + STEP * number for name, value in model.params.items()}
        flare.send(flare.FLModel(params=params, metrics={}, meta={"NUM_STEPS_CURRENT_ROUND": 1}))


main()
