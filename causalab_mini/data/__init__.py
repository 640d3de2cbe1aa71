"""Rows: tables below a data root, field paths into a row, variables, and prompts as tokens.

Knows nothing of sites, interventions or models; a tokenizer is handed in as an object.
"""

from causalab_mini.data.fields import FieldPath, parse_field
from causalab_mini.data.table import Table, find_data_root, open_table

__all__ = ["FieldPath", "Table", "find_data_root", "open_table", "parse_field"]
