"""What watches a model while it generates: `probing.spec` says what is to be watched, `probing.run` does it on an engine."""
