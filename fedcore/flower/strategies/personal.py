"""Strategies under which part of the model stays on the client: on the server they are FedAvg.

What stays is decided by the run config, which server and clients have alike, on top of what the app keeps by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flwr.app import UserConfig

from fedcore.errors import ConfigurationError
from fedcore.flower.apps.personalization import Personal, patterns_in

PERSONAL: Final = frozenset({"ditto", "fedbn", "fedper"})
"""Strategies under which a client keeps a model, or a part of one, that is its own."""
DITTO_KEY: Final = "ditto-lambda"
LAYERS_KEY: Final = "personal-layers"
_DITTO: Final = 0.1


def by_strategy(own: Personal, config: UserConfig) -> Personal:
    """`own` with what the strategy of the run config keeps on the client.

    "ditto": a second model, pulled towards the global one by `ditto-lambda`, 0.1 by default (Li et al. 2021, ICML,
    "Ditto"). "fedbn": all batch normalisation (Li et al. 2021, ICLR, "FedBN"). "fedper": the tensors that fit
    `personal-layers`, patterns with * and ? between commas (Arivazhagan et al. 2019). Raises ConfigurationError for
    "fedper" without patterns, and for a combination that means nothing.
    """
    match config.get("strategy"):
        case "ditto":
            strength = float(config.get(DITTO_KEY, _DITTO))
            if not 0 < strength < float("inf"):
                raise ConfigurationError(f"{DITTO_KEY} = {strength:g} does not fit strategy ditto")
            return replace(own, ditto=strength)
        case "fedbn":
            return replace(own, batch_norm=True)
        case "fedper":
            patterns = patterns_in(config, LAYERS_KEY)
            if not patterns:
                raise ConfigurationError(
                    f"strategy fedper keeps layers on the client, and {LAYERS_KEY} names none: set it to patterns such "
                    'as "head.*", with commas between them'
                )
            return replace(own, patterns=(*own.patterns, *patterns))
    return own
