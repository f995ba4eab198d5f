"""Sigma searches: one noise level for all, or the best one for each input."""

from sigmax.sigma.ascent import AscentSearch
from sigmax.sigma.grid import GridSearch
from sigmax.sigma.halving import HalvingSearch
from sigmax.sigma.named import SEARCHES, named_search
from sigmax.sigma.search import FixedSigma, SearchTask, SigmaSearch

__all__ = [
    "SEARCHES",
    "AscentSearch",
    "FixedSigma",
    "GridSearch",
    "HalvingSearch",
    "SearchTask",
    "SigmaSearch",
    "named_search",
]
