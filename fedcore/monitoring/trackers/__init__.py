"""What happens in a run, told to an experiment tracker: TensorBoard, MLflow, Weights & Biases.

A tracker gets figures by round, the parameters, tags and the model, all of which the operator has anyway: nothing that
is tracked says anything of a client that the events of the run do not (`fedcore.wire.events`).

What must hold: a tracker that fails is warned of once and left out, and the run goes on; what can be known before is
refused before the run (`Track.parse`); and nothing leaves this machine unless its user names an address (`mlflow:URI`)
or sets WANDB_MODE: the packages' own reports to their makers are switched off before they are imported.
"""

from fedcore.monitoring.trackers.base import TrackedRun, Tracker
from fedcore.monitoring.trackers.sink import Tracking, parse_tracks
from fedcore.monitoring.trackers.track import TRACKERS, Track

__all__ = ["TRACKERS", "Track", "TrackedRun", "Tracker", "Tracking", "parse_tracks"]
