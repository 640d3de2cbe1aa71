"""What a run leaves on disk: a folder, tables, tensors, a summary, a record. Imports no engine."""
