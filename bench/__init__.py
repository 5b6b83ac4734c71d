"""Benchmarks: each a command that prints a table and writes its figures to bench/out."""
