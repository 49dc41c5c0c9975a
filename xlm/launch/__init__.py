"""Launchers of runs on clusters: XManager, Slurm, TPU pods.

`jobs` defines runs independently of the cluster: stages, flags, sweeps, names. Each launcher maps
them by pure functions to the format of its cluster (a plan, a batch script, gcloud commands), which
--dry_run prints; submission is a few lines after that. Launchers need only absl and ml_collections,
not jax or the project's other requirements.
"""

from xlm.common import packages

packages.find_recipes()
