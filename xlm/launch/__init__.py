"""Launchers: `start` with its shell scripts, `xmanager`, and for both `jobs` and `grids`."""

from xlm.common import packages

packages.find_recipes()
