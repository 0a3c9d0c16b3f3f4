"""Reads packs that are made while loading, as a training does, until it is killed: `python online_reader.py JSON`.

The JSON: `kind` (lazy, streaming), `settings`, `rank`, `ranks`, `workers`, `folder`, `num`. After each batch its
samples are added to `<folder>/<rank>.log`, then the loader's state takes the place of that in `<folder>/<rank>.state`;
a run goes on from there. Ends after `num` batches in all.
"""

import json
import os
import pickle
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from energon_pack.lazy import LazyPackedDataset
from energon_pack.samplers import PackSampler
from energon_pack.streaming import StreamingPackedDataset


def loader_of(job: dict[str, Any]) -> Any:
    packs: Any
    world: dict[str, Any] = {"rank": job["rank"], "world_size": job["ranks"]}
    if job["kind"] == "lazy":
        packs = LazyPackedDataset(job["settings"])
        given = {"sampler": PackSampler(packs, **world)}
    else:
        packs, given = StreamingPackedDataset(job["settings"], buffer_size=20, **world), {}
    return StatefulDataLoader(packs, 1, collate_fn=packs.collate, num_workers=job["workers"], **given)


def main() -> None:
    job = json.loads(sys.argv[1])
    log, kept = (Path(job["folder"]) / f"{job['rank']}.{name}" for name in ("log", "state"))
    loader, done = loader_of(job), 0
    if kept.exists():
        done, state = pickle.loads(kept.read_bytes())
        loader.load_state_dict(state)
    lines = log.read_text().splitlines()[:done] if log.exists() else []
    log.write_text("".join(f"{line}\n" for line in lines))  # what came after the state was not trained on
    batches = chain.from_iterable(iter(loader) for _ in range(1_000))
    with log.open("a") as file:
        while done < job["num"]:
            batch = next(batches)
            done += 1
            file.write(json.dumps(batch["sample_ids"][0]) + "\n")
            file.flush()
            temporary = kept.with_suffix(".tmp")
            temporary.write_bytes(pickle.dumps((done, loader.state_dict())))
            os.replace(temporary, kept)
            print(done, flush=True)


if __name__ == "__main__":
    main()
