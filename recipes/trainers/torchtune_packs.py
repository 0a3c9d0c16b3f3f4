"""torchtune on packs of text. Put these lines into the YAML of a recipe:

dataset: {_component_: torchtune_packs.Packs, dataset: packed/demo, processor: MODEL, packed: True}
shuffle: False    # keeps the order, in which steps are even
batch_size: 1

PYTHONPATH=recipes/trainers tune run full_finetune_single_device --config config.yaml
"""

from torch.utils.data import Dataset

from energon_pack import PackedDataset, plain_batch


class Packs(Dataset):  # type: ignore[type-arg]
    """Packs in the form of torchtune's own packs: torchtune's collator makes the mask from the lengths of members."""

    def __init__(self, tokenizer, dataset, processor, packed=False):  # type: ignore[no-untyped-def]
        if not packed:
            raise ValueError("packed=False: torchtune would drop what keeps members apart: packed: True")
        self.packs = PackedDataset(dataset, processor, layout="neat")  # or LazyPackedDataset([…])
        self.rows = self.packs.as_dataset()

    def __len__(self):  # type: ignore[no-untyped-def]
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        row = self.rows[index]
        batch = plain_batch(self.packs, [self.packs[row["epoch"], row["pack"]]], "torchtune")
        if batch["media_keys"]:
            raise ValueError(f"{batch['__key__']}: these packs have media, and torchtune takes texts alone")
        own = {"tokens": batch["input_ids"][0], "labels": batch["labels"][0]}
        own["input_pos"] = batch["position_ids"].view(-1, *own["tokens"].shape)[0]  # texts count alike in all rows
        return own | {"seq_lens": batch["cu_seq_lens_q"].diff()}
