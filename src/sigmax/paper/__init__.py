"""Experiments from a TOML file to a report: train what is missing, certify what is missing, set the paper beside it."""
