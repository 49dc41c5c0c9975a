"""Utilities of all commands: atomic files, resumable stages, entry points.

Imports no other package of the project.
"""
