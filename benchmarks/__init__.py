"""Studies of speed, memory and quality; each prints one table. Run as python -m benchmarks.NAME."""
