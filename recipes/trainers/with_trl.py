"""TRL's SFTTrainer on packs, of text or with images, videos and sounds.

python recipes/trainers/with_trl.py packed/demo MODEL --output_dir out --max_steps 20 --learning_rate 1e-5
"""

import sys

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, AutoTokenizer, HfArgumentParser
from transformers.utils.import_utils import is_flash_attn_2_available
from trl import SFTConfig, SFTTrainer

from energon_pack import PackedDataset, check_trainer, guard

dataset, name = sys.argv[1:3]
parser = HfArgumentParser(SFTConfig)
parser.set_defaults(dataset_kwargs={"skip_prepare_dataset": True}, remove_unused_columns=False)  # rows hold no texts
parser.set_defaults(train_sampling_strategy="sequential", per_device_train_batch_size=1)  # even steps
parser.set_defaults(ddp_find_unused_parameters=True)  # packs of text give the vision tower no gradients
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
rows = packs.as_dataset(micro_batches=args.gradient_accumulation_steps)
trainer = SFTTrainer(
    model,
    args,
    train_dataset=rows,
    data_collator=packs.collator(model),
    processing_class=AutoTokenizer.from_pretrained(name),
)
trainer.model_accepts_loss_kwargs = True  # the mean over all trained tokens of a step
print(check_trainer(trainer))
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
