"""transformers' Trainer on packs, of text or with images, videos and sounds.

python recipes/trainers/with_trainer.py packed/demo MODEL --output_dir out --max_steps 20 --learning_rate 1e-5
"""

import sys

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)
from transformers.utils.import_utils import is_flash_attn_2_available

from energon_pack import PackedDataset, check_trainer, guard

dataset, name = sys.argv[1:3]
parser = HfArgumentParser(TrainingArguments)  # type: ignore[arg-type]
parser.set_defaults(remove_unused_columns=False)  # the columns name packs
parser.set_defaults(train_sampling_strategy="sequential", per_device_train_batch_size=1)  # even steps
(args,) = parser.parse_args_into_dataclasses(sys.argv[3:])

config = AutoConfig.from_pretrained(name)
has_media = hasattr(config, "vision_config") or hasattr(config, "audio_config")
kind = AutoModelForMultimodalLM if has_media else AutoModelForCausalLM
attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
found = args.resume_from_checkpoint or name  # the Trainer finds only few weights by their names
model = kind.from_pretrained(found, attn_implementation=attention)
if attention != "sdpa":
    model.to(args.device)  # `guard` tries the kernel where it is
packs = PackedDataset(dataset, name)  # or LazyPackedDataset([…])
guard(model, packs.encoder)
trainer = Trainer(
    model,
    args,
    train_dataset=packs.as_dataset(micro_batches=args.gradient_accumulation_steps),
    data_collator=packs.collator(model),
    compute_loss_func=packs.loss_func(),  # the mean over all trained tokens of a step
)
print(check_trainer(trainer))
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
