"""Submits one job to NVIDIA FLARE and waits for its end; runs in FLARE's environment (`peers_nvflare.py`).

python peers_nvflare_job.py JSON

JSON has kind, parameters, rounds, clients, and the paths kit (the administrator's) and folder (for files).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe  # type: ignore[import-not-found]
from nvflare.recipe import ProdEnv  # type: ignore[import-not-found]

WORK = Path(__file__).with_name("peers_nvflare_work.py")
LOGIN_SECONDS = 60.0


def main() -> int:
    """Says on standard output how the job ended; the exit status is 0 if all of it was done."""
    job = json.loads(sys.argv[1])
    # A job is made of files beside this one, and the recipe writes where it stands.
    folder = Path(job["folder"])
    os.chdir(folder)
    recipe = _secure(job) if job["kind"] == "secure" else _plain(job, folder)
    environment = ProdEnv(startup_kit_location=job["kit"], login_timeout=LOGIN_SECONDS, username=Path(job["kit"]).name)
    run = recipe.execute(environment)
    result = run.get_result()
    status = run.get_status()
    print(f"job {run.get_job_id()} ended: {status}, {result}", flush=True)
    return 0 if "COMPLETED" in str(status).upper() else 1


def _plain(job: dict[str, Any], folder: Path) -> Any:
    """FedAvg over numpy arrays; the script runs in the process of the job, the lighter way."""
    start = folder / "start.npy"
    np.save(start, np.random.default_rng(0).standard_normal(job["parameters"], dtype=np.float32))
    return NumpyFedAvgRecipe(
        name="plain",
        initial_ckpt=str(start),
        min_clients=job["clients"],
        num_rounds=job["rounds"],
        train_script=str(WORK),
        launch_external_process=False,
    )


def _secure(job: dict[str, Any]) -> Any:
    """FedAvg with homomorphic encryption (CKKS, TenSEAL): FLARE's way to hide single updates from the server."""
    from nvflare.app_opt.pt.recipes import FedAvgRecipeWithHE  # type: ignore[import-not-found]
    from peers_nvflare_model import Model  # type: ignore[import-not-found]

    return FedAvgRecipeWithHE(
        name="secure",
        model=Model(job["parameters"]),
        min_clients=job["clients"],
        num_rounds=job["rounds"],
        train_script=str(WORK),
        launch_external_process=False,
    )


if __name__ == "__main__":
    sys.exit(main())
