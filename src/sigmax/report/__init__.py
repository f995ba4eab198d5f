"""Reports read records, never a model."""
