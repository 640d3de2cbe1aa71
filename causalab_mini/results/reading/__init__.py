"""Reading a results folder back: tables, tensors and sweeps, without the engine, the model or the document's data.

    folder.py    what is in a folder, from its documented files alone
    rows.py      a table's file as rows: JSON, CSV and parquet of one table are equal
    table.py     rows with the axes of a sweep as columns: plain, pandas, polars
    arrays.py    a metric over a sweep: numbers with named axes
    tensors.py   tensors of safetensors files, read when they are asked for
    run.py       `open_run`, and what it returns
    html.py      what notebooks show
    compare.py   two runs, row by row
    export.py    all tables as tidy files

Nothing here imports torch, numpy or a frame library at module level.
"""

from causalab_mini.results.reading.arrays import AxesArray
from causalab_mini.results.reading.run import SavedPoint, SavedRun, open_run
from causalab_mini.results.reading.table import Table
from causalab_mini.results.reading.tensors import SavedTensor

__all__ = ["AxesArray", "SavedPoint", "SavedRun", "SavedTensor", "Table", "open_run"]
