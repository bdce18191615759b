"""The datasets that rows can come from, one class each."""
