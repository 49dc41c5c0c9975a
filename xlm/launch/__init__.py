"""Launchers: `start` here, on Slurm and on TPU slices by shell scripts, `xmanager` with XManager.

`jobs` expands sweeps and grids to jobs. Launchers need absl and ml_collections only.
"""

from xlm.common import packages

packages.find_recipes()
