"""Benchmarks of speed and memory. Start one with python -m benchmarks.NAME; it prints tables."""
