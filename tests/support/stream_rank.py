"""One rank that reads packs: `python stream_rank.py SOURCE PROCESSOR FOLDER WORKERS RANK RANKS STEPS [STATE]`.

It writes down the samples of each batch, and after 5 of them the state of its loader. With STATE it goes on from there.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

SAVED_AFTER = 5


def main() -> None:
    warnings.filterwarnings("ignore")
    from torchdata.stateful_dataloader import StatefulDataLoader

    from energon_pack.streaming import StreamingPackedDataset

    source, processor, folder, workers, rank, ranks, steps, *state = sys.argv[1:]
    overrides = ["+model=qwen2_5_vl", f"model.processor={processor}", f"cache_dir={folder}/cache"]
    overrides += ["packing.max_token_len=1024", "packing.group_by=none", f"source.path={source}"]
    options: dict[str, Any] = {"on_bad_member": "drop", "tokens_per_second": 2.0, "buffer_size": 16}
    packs = StreamingPackedDataset(overrides, rank=int(rank), world_size=int(ranks), **options)
    loader = StatefulDataLoader(packs, 1, num_workers=int(workers), collate_fn=packs.collate)
    if state:
        loader.load_state_dict(json.loads(Path(state[0]).read_text()))
    first = SAVED_AFTER if state else 0
    with open(Path(folder, f"{'again' if state else 'first'}-{rank}.txt"), "w") as ids:
        for step, batch in zip(range(first, int(steps)), loader, strict=False):
            ids.write(f"{step} {batch['sample_ids']} {int(batch['input_ids'].sum())}\n")
            ids.flush()
            if step + 1 == SAVED_AFTER:
                Path(folder, f"state-{rank}.tmp").write_text(json.dumps(loader.state_dict()))
                Path(folder, f"state-{rank}.tmp").rename(Path(folder, f"state-{rank}.json"))


if __name__ == "__main__":
    main()
