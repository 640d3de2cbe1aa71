"""What watches a model while it generates. Stands beside the schedule; `probing.spec` says what is to be watched."""
