"""What a run says about its own numbers: intervals, one row alone against the batch, what every write moved.

Imports no engine; a check is handed the function that runs rows.
"""
