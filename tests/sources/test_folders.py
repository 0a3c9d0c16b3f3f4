"""Images in folders are packed with the texts beside them, or, where that is asked for, with the folders' names."""

from pathlib import Path

import pytest

from energon_pack.errors import PackError
from energon_pack.sources.described import read_as
from energon_pack.sources.forms import find_source
from energon_pack.sources.reader import Reader, SourceChanged
from energon_pack.sources.settings import Classes, SourceConfig
from energon_pack.verify import Options, verify
from support.packed import Make, json_lines, packed, samples
from support.samples import picture

AUTO = SourceConfig()
CLASSES = SourceConfig(classes=Classes.caption, caption_prompt="What is this?")


def a_folder(path: Path, **files: str | None) -> Path:
    """Images `cat__1` as cat/1.JPEG, each with its text beside it."""
    for name, text in files.items():
        image = path / f"{name.replace('__', '/')}.JPEG"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(picture())
        if text is not None:
            image.with_suffix(".txt").write_text(text)
    return path


def conversations(folder: Path) -> list[str]:
    """The texts of all packs, and their ids."""
    return [parts["json"].decode() for parts in samples(folder).values()]


def test_texts_beside_images_are_captions(config: Make, tmp_path: Path) -> None:
    source = a_folder(tmp_path / "set", a__1="One.", a__2="Two.\n", b__3=None)
    assert read_as(find_source(AUTO, str(source)), AUTO.reading, 3) == (
        "images or videos in folders, captions: texts beside them, 1 folder; 3 samples"
    )
    folder = packed(config(source, source__format="auto", max_skipped=0.5, packing__max_token_len=256))
    (text,) = conversations(folder)
    assert '"One."' in text
    assert '"Two."' in text
    (skipped,) = json_lines(folder / "skipped.jsonl")
    assert (skipped["sample_id"], skipped["reason"]) == ("files:3", "no_messages")
    assert verify(folder, Options(source=[], num_workers=1)).first(9) == []


def test_names_of_folders_are_captions_where_that_is_asked_for(config: Make, tmp_path: Path) -> None:
    """A name may be no answer, as `n01440764`: it is trained only by a setting."""
    source = a_folder(tmp_path / "set", cat__1=None, dog__2=None)
    with pytest.raises(PackError, match=r"nothing that says what to train: source\.classes=caption takes the names"):
        find_source(AUTO, str(source))
    assert "captions: the names of their folders" in read_as(find_source(CLASSES, str(source)), AUTO.reading)
    run = config(source, source__format="auto", packing__max_token_len=256)
    run.source.classes, run.source.caption_prompt = Classes.caption, "What is this?"
    (text,) = conversations(folder := packed(run))
    assert text.count("What is this?") == 2
    assert '"cat"' in text
    assert '"dog"' in text
    assert verify(folder, Options(source=[], num_workers=1)).first(9) == []


def test_a_file_that_comes_meanwhile_ends_the_run(config: Make, tmp_path: Path) -> None:
    """Otherwise sample numbers would belong to other files."""
    source = a_folder(tmp_path / "set", cat__1=None, dog__2=None)
    shards = find_source(CLASSES, str(source)).shards
    a_folder(source, ant__1=None)
    with Reader() as reader, pytest.raises(SourceChanged, match="changed since it was measured"):
        reader.shard_file(shards[0])


@pytest.mark.parametrize(
    ("files", "settings", "line"),
    [
        ({"train__cat__1": None, "test__cat__2": None}, CLASSES, r"test, train: source\.path=.*train takes one"),
        ({"cat__1": "A cat on a mat."}, CLASSES, r"cat/1\.txt says something else than the name of its folder"),
    ],
)
def test_what_is_not_clear_is_refused(
    tmp_path: Path, files: dict[str, str | None], settings: SourceConfig, line: str
) -> None:
    with pytest.raises(PackError, match=line):
        find_source(settings, str(a_folder(tmp_path / "set", **files)))


def test_names_of_folders_are_asked_for_in_vain(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(PackError, match=r"source\.classes=caption: .* has samples of another form"):
        find_source(CLASSES, str(tmp_path))
    with pytest.raises(PackError, match=r"a\.jsonl: source=folder reads folders of media"):  # it had no samples
        find_source(SourceConfig(format="folder"), str(tmp_path / "a.jsonl"))
