"""Starting runs on machines that are not this one: XManager, Slurm, TPU pods.

`jobs` says what is run: stages, flags, sweeps, names. Each launcher turns that, by pure functions,
into what its cluster wants (a plan, a batch script, gcloud commands), which --dry_run prints. What
talks to a cluster is a few lines after that. No launcher imports jax, or anything else that a
laptop without the project's requirements lacks, besides absl and ml_collections.
"""
