"""Pack samples in the data loader, without a writing step."""
