"""Packs a tar of samples by LoongForge's or LLaVA-OneVision-2's own writer of packs, inside an environment for it.

    PYTHONPATH=… python pack_as_peers.py packed_chat_mix|packed_multi_mix_qa|packed_captioning TAR OUT NUMBER

NUMBER members of one media type are a pack: by their plan, which needs a model's processor, it might be others.
"""

import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main(form: str, tar: str, out: str, number: str) -> None:
    import webdataset

    Path(out).mkdir(parents=True)
    packs = llava(tar, int(number), Path(out)) if form == "packed_captioning" else loongforge(form, tar, int(number))
    with webdataset.ShardWriter(f"{out}/pretrain-%06d.tar", maxcount=4) as sink:
        for pack in packs:
            sink.write(pack)


def groups(tar: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield key and parts of each sample: its JSON, and members of the tar."""
    found: dict[str, dict[str, Any]] = {}
    with tarfile.open(tar) as file:
        for member in file:
            key, _, part = member.name.partition(".")
            data = file.extractfile(member)
            assert data is not None
            is_json = part == "json"
            found.setdefault(key, {})[part] = json.load(data) if is_json else (member, data.read())
    yield from found.items()


def some(items: list[Any], number: int) -> Iterator[list[Any]]:
    yield from (items[start : start + number] for start in range(0, len(items), number))


def turns_of(value: dict[str, Any]) -> list[dict[str, str]]:
    return next(value[name] for name in ("messages", "texts", "conversations") if name in value)


def media_of(value: dict[str, Any], parts: dict[str, Any]) -> list[str]:
    return value.get("name") or [name for name in parts if name != "json"]


def loongforge(form: str, tar: str, number: int) -> Iterator[dict[str, Any]]:
    from wds_pack.core.types import ManifestMember, ManifestSample
    from wds_pack.io.webdataset_writer import ShardReaderCache, construct_native_packed_sample

    samples, members, by_type = {}, {}, dict[str, list[str]]()
    for key, parts in groups(tar):
        value = parts["json"]
        texts = [turn.get("content", turn.get("value")) for turn in turns_of(value)]
        names = media_of(value, parts)
        kind = "text" if not names else "video" if names[0].endswith("mp4") else "image"
        by_type.setdefault(kind, []).append(key)
        samples[key] = ManifestSample(key, kind, 9, Path(tar).name, key, texts[0], texts[-1], tuple(names), value)
        members[key] = {
            name: ManifestMember(name, f"{key}.{name}", part[0].offset_data, part[0].size)
            for name, part in parts.items()
            if name != "json"
        }
    with ShardReaderCache(Path(tar).parent) as reader:
        for kind, keys in by_type.items():
            for index, ids in enumerate(some(keys, number)):
                plan = {"pack_id": f"{kind}_pack_{index:08d}", "sample_ids": ids, "media_type": kind}
                yield construct_native_packed_sample(plan, samples, members, reader, form)


def llava(tar: str, number: int, out: Path) -> Iterator[dict[str, Any]]:
    from s4_bins_to_webdataset import build_direct_sample
    from s4_pack_samples import PackSamplesConfig, SamplePacker

    folder, names = out.with_name(f"{out.name}-files"), []
    folder.mkdir()
    for key, parts in groups(tar):
        turns = [{"role": turn["role"], "content": turn["content"]} for turn in turns_of(parts["json"])]
        images = media_of(parts["json"], parts)
        for image in images:
            (folder / f"{key}.{image}").write_bytes(parts[image][1])
        value = {"messages": turns, "images": [f"{key}.{image}" for image in images]}
        (folder / f"{key}.json").write_text(json.dumps(value))
        names.append({"name": key})
    packer = SamplePacker(PackSamplesConfig(source_dir=str(folder), output_dir=str(out), clear_output_dir=False))
    for index, bin_data in enumerate(some(names, number)):
        yield build_direct_sample(packer, index, bin_data)


if __name__ == "__main__":
    main(*sys.argv[1:])
