"""Tensor arithmetic: windows, mechanisms, metrics. Sees tensors and numbers, never documents, plans or models."""
