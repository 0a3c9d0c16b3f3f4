"""Folders of processors that truth was made with: the ten real ones, and 35 made of TRL's chat templates."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

import energon_pack
from energon_pack.errors import PackError
from energon_pack.templates.build import build
from energon_pack.templates.families.rules import MediaRules, ProcessorSettings
from energon_pack.templates.settings import ModelConfig, TemplateSettings
from energon_pack.templates.template import Template
from support.running import REAL

TRL = "trl==1.16.0"
#: folder of ../shared/real/processors → file of conf/model
REAL_FOLDERS = {
    "qwen2_5_text": "text",
    "llama3_text": "text",
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "internvl3_hf": "internvl3",
    "llava_onevision_qwen2_hf": "llava_onevision",
    "gemma3": "gemma3",
    "granite_docling_idefics3": "idefics3",
    "kimi_k25": "kimi_k2_5",
}
#: the only day on which truth that writes today's date holds
DAY = "2026-11-23"

_SPECIAL = re.compile(
    r"<[|\uff5c][^<>\s|\uff5c]{1,40}[|\uff5c]>|<(?:bos|eos|s|/s|start_of_turn|end_of_turn|turn\||\|turn|pad)>|<\|[a-z_]+>|<[a-z_]+\|>"
    r"|<end_of_utterance>|<fake_token_around_image>"
)
_GLM = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
_DEEPSEEK = {f"{name[0]}os_token": f"<\uff5c{name}\u2581of\u2581sentence\uff5c>" for name in ("begin", "end")}
_OWN_TOKENS = {
    "phi3": {"eos_token": "<|endoftext|>"},
    "phi3_5": {"eos_token": "<|endoftext|>"},
    "llama3": {"bos_token": "<|begin_of_text|>"},
    "llama3_2": {"bos_token": "<|begin_of_text|>"},
    "deepseekv3": _DEEPSEEK,
    "deepseek_r1_distill": _DEEPSEEK,
}
#: what templates write for an image
_IMAGE_TOKENS = ("<|image_pad|>", "<start_of_image>", "<|image|>", "<image>")


def has_real_folder(name: str) -> bool:
    """Whether truth of this name belongs to a folder of ../shared/real."""
    return not name.startswith("trl_")


def download_trl(folder: Path) -> Path:
    """The chat templates of TRL's package, through pip; raises OSError where pip can't."""
    templates = folder / "trl" / "chat_templates"
    if not templates.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", TRL, "--no-deps", "-d", str(folder)]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise OSError(f"pip can't download {TRL}: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(next(folder.glob("trl-*.whl"))) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if "/chat_templates/" in name])
    return templates


def make_folder(name: str, trl: Path, folder: Path) -> Path:
    """The Qwen2.5 tokenizer with a template of TRL's and the special tokens it writes."""
    target = folder / name
    if (target / "whole").exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(REAL / "processors" / "qwen2_5_text", target, copy_function=shutil.copyfile)
    target.chmod(0o755)
    source = (trl / f"{name.removeprefix('trl_')}.jinja").read_text()
    own = _OWN_TOKENS.get(name.removeprefix("trl_"), {})
    config = json.loads((target / "tokenizer_config.json").read_text())
    added = config["added_tokens_decoder"]
    have = {token["content"] for token in added.values()}
    wanted = _GLM if name == "trl_glm4moe" else [*sorted(set(_SPECIAL.findall(source))), *own.values()]
    config |= {"chat_template": source, **own}
    if name.startswith(("trl_gemma", "trl_diffusion")):
        config["bos_token"] = "<bos>"
    if name.startswith("trl_gemma"):
        wanted.append("<bos>")
    if name.startswith("trl_lfm2"):
        config["bos_token"] = "<|startoftext|>"
    first = max(map(int, added)) + 1
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    new = [token for token in dict.fromkeys(wanted) if token not in have]
    for number, token in enumerate(new, first):
        added[str(number)] = {"content": token, **flags, "special": True}
    (target / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False))
    (target / "whole").touch()
    return target


def build_template(name: str, folder: Path, **settings: Any) -> Template:
    """Our template of a folder, with the settings that `+model=NAME` would give it, the day that truth was made on.

    Args:
        settings: of the node `labels`.
    """
    conf = Path(energon_pack.__file__).parents[1] / "conf" / "model" / f"{REAL_FOLDERS.get(name, 'text')}.yaml"
    known = {field.name for field in fields(ModelConfig)}
    values = {key: value for key, value in yaml.safe_load(conf.read_text()).items() if key in known}
    if values["template"] == "auto":
        values["template"] = "shapes"  # what is chosen for these, without the trial
    given = {"processor": str(folder), "factor": None, "date": DAY}
    model = ModelConfig(**{**values, **{key: given[key] for key in known & given.keys()}})
    whole = TemplateSettings(model)
    for key, value in {"final_end": "none", **settings}.items():  # truth has what the chat template writes, no more
        setattr(whole.labels, key, value)
    template = build(whole, folder)
    return template if has_real_folder(name) else _with_images(template)


class _OneToken(MediaRules):
    """Images of a made folder, which has no processor: each is the token that the template writes."""

    def __init__(self, processor: ProcessorSettings):
        self.media_tokens = {"image": processor.tokens["image"]}
        self.settings = {}

    def expand(self, media: Any, frames: Any) -> tuple[str, int]:
        return self.media_tokens["image"], 1


def _with_images(template: Template) -> Template:
    source = template.spec.chat_template
    token = next((token for token in _IMAGE_TOKENS if token in source), None)
    if token is None:
        return template
    try:
        return Template(template.spec, _OneToken(ProcessorSettings(tokens={"image": token})), template.tokenizer)
    except PackError:
        return template
