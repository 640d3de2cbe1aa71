"""The engines: `nnterp` (nnterp on nnsight, the one that runs are made with) and `hooks` (plain PyTorch hooks)."""
