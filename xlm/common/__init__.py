"""Utilities of all commands: files, stages, entry points. Imports nothing of the project."""
