"""Tensor arithmetic: windows, mechanisms, metrics, featurizers. Sees tensors and numbers, never documents, plans or models."""
