"""Configs: the lab record of every run. ml_collections only, no code of ours."""
