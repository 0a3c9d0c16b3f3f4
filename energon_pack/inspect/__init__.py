"""What is in a packed dataset, or will be: `python -m energon_pack.inspect DIR`, `… --source PATH +model=…`"""
