"""Configs of pre-trainings that only studies run."""
