"""Model folders that ship with the package; data only, written by `training/train_bundled.py`."""
