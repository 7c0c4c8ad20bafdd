"""`fedcore new --from train.py`: an app out of a person's own script, which is only read."""

from fedcore.cli.new.adoption.adopting import adopt

__all__ = ["adopt"]
