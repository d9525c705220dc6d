"""The command `benchmarks`: docs/benchmarks.md, its figures and its pictures."""
