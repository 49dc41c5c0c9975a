"""Configs of pre-trainings that studies alone run."""
