"""What `python -m energon_pack.verify` looks at: a shard, the dataset around it, its source, its lengths, a model."""
