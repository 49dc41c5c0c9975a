"""Configs: the lab record of every run."""
