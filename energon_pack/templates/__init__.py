"""Model templates: how a sample becomes the tokens of one model."""
