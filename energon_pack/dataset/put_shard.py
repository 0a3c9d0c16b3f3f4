"""Write a packed shard to an object store: it is made in a folder of temporary files, uploaded, and removed there."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from energon_pack.dataset.marker import Marker
from energon_pack.dataset.shards import ShardJob, WrittenShard, write_packs, written_shard
from energon_pack.dataset.tar_writer import TarWriter
from energon_pack.run import stores
from energon_pack.sources.tar import tar_len


def put_shard(folder: str, identity: str | None, job: ShardJob) -> WrittenShard:
    """Do the same as `write_shard` on an object store: upload the shard in parts, then its index.

    The marker is read before each of the two. A process that is paused between reading it and the end of its request
    may still upload that one object when it resumes, over another run's.

    Args:
        folder: the address of the dataset.
        identity: the identity of the run; None: the job's.

    Raises:
        PackError: a source shard changed since it was measured; the store refuses the shard; or no run of this identity
            is at work there.
    """
    marker = Marker(folder)
    table = pq.ParquetFile(job.plan).read_row_group(job.row_group)
    address = f"{folder}/{job.path.name}"
    num_packs = _num_packs(table)
    marker.refuse_other(identity or job.identity)
    size = _size_there(address, num_packs)
    if size is not None:
        return written_shard(job, table, num_packs, size, was_there=True)
    with TemporaryDirectory(prefix="energon_pack-") as temporary:
        path = Path(temporary, job.path.name)
        with open(path, "wb", buffering=0) as file:
            starts = write_packs(TarWriter(file.fileno()), job, table)
        marker.refuse_other(identity or job.identity)
        stores.put_file(address, path)
        size = path.stat().st_size
    marker.refuse_other(identity or job.identity)
    stores.put(f"{address}.idx", starts)
    return written_shard(job, table, num_packs, size, was_there=False)


def is_put(folder: str, job: ShardJob) -> bool:
    """Say whether `put_shard` has uploaded this shard, so that a run of the same identity may trust it."""
    note, _ = Marker(folder).read()
    if note is None or job.identity is None or not note.trusts(job.identity):
        return False
    table = pq.ParquetFile(job.plan).read_row_group(job.row_group)
    return _size_there(f"{folder}/{job.path.name}", _num_packs(table)) is not None


def _num_packs(table: pa.Table) -> int:
    return int(pc.count_distinct(table["pack"]).as_py())


def _size_there(address: str, num_packs: int) -> int | None:
    """Return the size of a shard that an earlier run uploaded; a store has an object whole or not at all."""
    try:
        ends, size = stores.read_whole(f"{address}.idx"), stores.find(address).size
    except FileNotFoundError:
        return None
    is_whole = len(ends) == 8 * (num_packs + 1) and size == tar_len(int(np.frombuffer(ends, "<u8")[-1]))
    return size if is_whole else None
