"""Metrics that two papers share, one file per kind."""
