"""What all commands share: files that are written whole, stages that are done once, how they start.

Imports nothing of the project.
"""
