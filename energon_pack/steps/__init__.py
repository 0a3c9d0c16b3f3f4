"""Which pack which rank reads when: pure, known to planning and to training."""
