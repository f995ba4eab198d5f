"""Sigma searches: one noise level for all, or the best one for each input."""

from sigmax.sigma.ascent import AscentSearch
from sigmax.sigma.grid import GridSearch
from sigmax.sigma.halving import HalvingSearch
from sigmax.sigma.search import FixedSigma, SearchTask, SigmaSearch

__all__ = ["AscentSearch", "FixedSigma", "GridSearch", "HalvingSearch", "SearchTask", "SigmaSearch"]
