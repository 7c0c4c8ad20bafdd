"""Gradient boosting on histograms as arithmetic alone: what sites add up, and the trees that follow from the sums.

A site's part of a level is integer sums of gradients and hessians for each (node, feature, bin), so the sum over sites
is the sum over the pooled rows, to the last bit (FederBoost, arXiv 2011.02796; XGBoost, arXiv 1603.02754). From the
sums follows the tree that XGBoost's `hist` grows on the pooled rows with the same bins, and the model is an XGBoost
model. NumPy alone.
"""

from fedcore.trees.cuts import Cuts
from fedcore.trees.ensemble import Ensemble
from fedcore.trees.growth import TreeGrowth
from fedcore.trees.histograms import Scale, histogram_sums
from fedcore.trees.settings import BoostingSettings
from fedcore.trees.tree import RegressionTree

__all__ = ["BoostingSettings", "Cuts", "Ensemble", "RegressionTree", "Scale", "TreeGrowth", "histogram_sums"]
