"""Launchers: `start` and its shell scripts, `xmanager`, and `jobs` of sweeps and grids for both."""

from xlm.common import packages

packages.find_recipes()
