"""Benchmarks of speed and memory; each prints one table. Run as python -m benchmarks.NAME."""
