"""A parameter server (Li et al. 2014) with bounded staleness (Ho et al. 2013), over torch.distributed's gloo."""

from __future__ import annotations

from fedcore.compare.parameter_server.run import run_parameter_server

__all__ = ["run_parameter_server"]
