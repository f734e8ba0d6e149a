"""Backbones that two papers share."""
