"""Videos that are heard, from the command line to loaders: by the run, by a sample, by an entry of a mixture."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from energon_pack import LazyPackedDataset, PackedDataset, StreamingPackedDataset
from energon_pack.training.encoded import has_audio_in_video
from support import processors
from support.running import need_torchvision, run_here
from support.samples import picture, sound, video, video_with_sound

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of tensors, in transformers
]
Line = dict[str, Any]
HEARD = {"use_audio_in_video": True}


def line(asked: str, **fields: Any) -> Line:
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": "Noise, as ever."}]
    return {"messages": turns, **fields}


LINES = [
    line("<video>What is heard?", videos=["a.mp4"], **HEARD),
    line("<audio><video><image>And here?", audios=["a.wav"], videos=["b.mkv"], images=["a.jpg"], **HEARD),
    line("<video>Nobody listens.", videos=["b.mkv"], use_audio_in_video=False),
    line("<video>A silent one.", videos=["c.mp4"], **HEARD),
    line("<video>As the run says.", videos=["a.mp4"]),
    line("Only words?"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A processor, media, and lines that name them."""
    need_torchvision()
    made = tmp_path_factory.mktemp("heard")
    processors.qwen2_5_omni(made / "processor")
    (made / "source").mkdir()
    media = {"a.mp4": video_with_sound(8, 4, 50_000, 22_050), "a.wav": sound(30_000), "a.jpg": picture(60, 50)}
    media |= {"b.mkv": video_with_sound(6, 2, 20_000, 48_000, "matroska", "libopus"), "c.mp4": video(8)}
    for name, data in media.items():
        (made / "source" / name).write_bytes(data)
    (made / "source" / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in LINES))
    return made


def settings(folder: Path, out: str, *more: str) -> list[str]:
    own = ["+model=qwen2_5_omni", f"model.processor={folder}/processor", "packing.max_token_len=4096"]
    own += [f"source.path={folder}/source/a.jsonl", "packing.group_by=none", "executor.num_workers=1"]
    return [*own, f"output.dir={folder}/{out}", "output.name=packed", f"cache_dir={folder}/cache", *more]


def packed(folder: Path, out: str, *more: str) -> Path:
    code, _, said = run_here(*settings(folder, out, *more), cwd=folder)
    assert code == 0, said
    return folder / out / "packed"


def rows(dataset: Path) -> list[dict[str, Any]]:
    """The rows of the plan, whose keys are numbers of lines."""
    found: list[dict[str, Any]] = pq.read_table(next(dataset.rglob("pack_plan.parquet"))).to_pylist()
    return found


def lens(dataset: Path) -> dict[str, int]:
    return {row["key"]: row["token_len"] for row in rows(dataset)}


def test_a_sample_says_and_else_the_run(folder: Path) -> None:
    """The last of two like lines is longer by the 57 tokens and the two marks of its sound, where the run wants it."""
    by_sample, by_run = lens(packed(folder, "one")), lens(packed(folder, "two", "source.use_audio_in_video=true"))
    changed = {key for key in by_run if by_run[key] != by_sample[key]}
    assert changed == {"5"}
    assert by_run["5"] - by_sample["5"] == 57 + 2


def test_every_door_gives_the_same(folder: Path) -> None:
    """References, a dataset on disk, lazy and streamed packs: tokens, positions and media of each sample are one."""
    whole = packed(folder, "three", "source.use_audio_in_video=true")
    referred = packed(folder, "four", "source.use_audio_in_video=true", "output.media=reference")
    told = settings(folder, "five", "source.use_audio_in_video=true")
    on_disk = [found(PackedDataset(path, str(folder / "processor"))) for path in (whole, referred)]
    lazy = found(LazyPackedDataset(told))
    streamed = StreamingPackedDataset(told, replacement=False, buffer_size=10)
    for other in (on_disk[1], lazy, found(list(streamed))):
        assert other == on_disk[0]
    assert sum(is_heard for *_, is_heard in on_disk[0].values()) == 3


def found(packs: Any) -> dict[str, Any]:
    """Of each sample by its id: its tokens, the sum of its positions, and whether a video of it is heard."""
    result: dict[str, Any] = {}
    for number in range(len(packs)):
        for member in packs[number].members:
            tokens = member.tokens
            assert tokens.rope is not None
            told = tokens.ids.tolist(), int(tokens.rope.sum()), has_audio_in_video(tokens.types)
            result[member.sample_id.rpartition(":")[2].rpartition("/")[2]] = told
    return result


def test_a_cap_counts_the_sounds_of_videos(folder: Path) -> None:
    """A pack of 100 tokens of sounds holds one of the two clips of 57."""
    dataset = packed(folder, "six", "source.use_audio_in_video=true", "packing.max_audio_tokens=100")
    by_key = {row["key"]: row["pack"] for row in rows(dataset)}
    assert by_key["1"] != by_key["5"]


def test_an_entry_of_a_mixture_says_it(folder: Path) -> None:
    entries: dict[str, Line] = {"heard": HEARD, "seen": {}}
    for name in entries:
        (folder / "source" / f"{name}.jsonl").write_text(json.dumps(LINES[4]) + "\n")
    mixture = [{"path": f"source/{name}.jsonl", "epochs": 1, **own} for name, own in entries.items()]
    (folder / "mix.yaml").write_text(yaml.safe_dump({"mixture": mixture}))
    dataset = packed(folder, "seven", f"source.path={folder}/mix.yaml", f"source.media_root={folder}/source")
    heard, seen = (row["token_len"] for row in sorted(rows(dataset), key=lambda row: row["shard"]))
    assert heard - seen == 57 + 2
