"""Malformed input: every case is a small function that breaks a folder, and what the error says."""
