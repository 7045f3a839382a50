"""What is measured, against what a user would pick instead: `python -m benchmarks.NAME`."""
