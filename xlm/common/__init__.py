"""Utilities of all commands: atomic files, resumable stages, entry points.

Imports nothing of the project.
"""
