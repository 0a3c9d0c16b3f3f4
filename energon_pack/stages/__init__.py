"""Stages of a run. Each is idempotent: it continues from the files that are there.

    measuring ──► planning ──► writing ──► publishing
    lengths in the cache, the plan and the shards in a staging folder, the dataset under its name

`pack.py` calls them in a row, `chain.py` has Slurm call them. Measuring and writing divide into equal parts, for
processes that know nothing of each other.
"""
