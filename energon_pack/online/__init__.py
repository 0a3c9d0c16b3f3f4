"""What is packed in the data loader, without a writing step."""
