"""What conversations cost in this package and elsewhere: `make bench` writes docs/benchmarks.md."""
