"""TRL's DPOTrainer on packed preference pairs, of text or with images and videos.

    python recipes/reference_logps.py packed/pairs reference.npz --model MODEL
    python recipes/trainers/with_trl_dpo.py packed/pairs MODEL reference.npz --output_dir out --max_steps 20

TRL itself pads each side of a pair to a row of its own, with the images twice. `PackedDPOTrainer` takes batches of
packs and this package's losses; optimizer, schedule, checkpoints, logs and all other arguments are TRL's.
"""

import sys
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, AutoTokenizer, HfArgumentParser
from trl import DPOConfig, DPOTrainer

from energon_pack import PackedDataset, guard, member_logps, num_pairs, preference_loss, use_tree_attention


class PackedDPOTrainer(DPOTrainer):
    """Trains on batches of `packs.pair_collator()`: the mean loss over the pairs of a step, on all ranks."""

    loss_is_scaled_for_ga = True  # losses are divided by the step's pairs already

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset  # rows name packs: there is nothing to tokenise in them

    def _precompute_ref_logps(self, dataset: Any, *_: Any) -> Any:
        return dataset  # the batches have them, so that no reference model is in memory

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Return the batches of a step, and the number of their pairs on all ranks."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        total = sum(map(num_pairs, batches), torch.zeros((), dtype=torch.float64))
        return batches, self.accelerator.reduce(total.to(device), "sum")

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the batch's part of the step's loss; in evaluation the mean of its own pairs."""
        outputs = model(**inputs.model_inputs(model))
        logps = member_logps(outputs.logits, inputs)
        total = None if num_items_in_batch is None else num_items_in_batch / self.accelerator.num_processes
        (kind,) = self.loss_types
        loss = preference_loss(logps, inputs["reference_logps"], inputs, self.beta, kind, total)
        return (loss, outputs) if return_outputs else loss


def main() -> None:
    dataset, name, reference = sys.argv[1:4]
    parser = HfArgumentParser(DPOConfig)
    parser.set_defaults(remove_unused_columns=False)  # the columns name packs
    parser.set_defaults(train_sampling_strategy="sequential", per_device_train_batch_size=1)  # even steps
    parser.set_defaults(precompute_ref_log_probs=True, ddp_find_unused_parameters=True, gradient_checkpointing=False)
    (args,) = parser.parse_args_into_dataclasses(sys.argv[4:])
    config = AutoConfig.from_pretrained(name)
    kind = AutoModelForMultimodalLM if hasattr(config, "vision_config") else AutoModelForCausalLM
    model = kind.from_pretrained(args.resume_from_checkpoint or name)
    packs = PackedDataset(dataset, name, reference_logps=reference)
    use_tree_attention(model)
    guard(model, packs.encoder)
    trainer = PackedDPOTrainer(
        model,
        args=args,
        train_dataset=packs.as_dataset(micro_batches=args.gradient_accumulation_steps),
        data_collator=packs.pair_collator(),
        processing_class=AutoTokenizer.from_pretrained(name),
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    main()
