"""Write what turns the packs of a dataset into a model's inputs: see `dataset.inputs`."""

import json
import shutil
from pathlib import Path

from energon_pack.dataset.manifest import PROCESSOR, hash_of
from energon_pack.run.files import META_FOLDER, write_whole
from energon_pack.samples.input_rules import INPUTS, TRIAL, InputRules
from energon_pack.templates.folder import settings_files

#: ends of the names of files that only weights, chats or code need
_UNUSED = (".index.json", ".jinja", ".py", "chat_template.json", "generation_config.json")


def write_inputs(folder: Path, template_folder: str) -> None:
    """Write a template's rules and trial into a dataset's folder; also the processor's files if it takes media."""
    rules = InputRules.load(Path(template_folder))
    meta, of_processor = folder / META_FOLDER, Path(rules.folder)
    every = [path for path in settings_files(of_processor) if path.parent == of_processor]
    chosen = [path for path in every if rules.media_tokens and not path.name.endswith(_UNUSED)]
    (meta / PROCESSOR).mkdir(parents=True, exist_ok=True)
    for path in chosen:
        write_whole(meta / PROCESSOR / path.name, path.read_bytes())
    has_code = any(path.suffix == ".py" for path in every)
    values = {
        **rules.to_json(),
        "files": {path.name: hash_of(path.read_bytes()) for path in chosen},
        "has_code": has_code,
    }
    shutil.copyfile(Path(template_folder, TRIAL), meta / TRIAL)
    write_whole(meta / INPUTS, json.dumps(values, indent=1, sort_keys=True).encode())
