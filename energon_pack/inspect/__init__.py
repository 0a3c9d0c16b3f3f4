"""Show what a packed dataset holds, or will hold: `python -m energon_pack.inspect DIR`, `… --source PATH +model=…`"""
