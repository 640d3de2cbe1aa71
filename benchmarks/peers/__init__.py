"""Other tools on the same work, each run by the Python of an environment of its own: `python -m peers.NAME JOB` in `benchmarks/`."""
