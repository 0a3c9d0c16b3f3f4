"""Tokenize some members of packs again, from the conversations in their JSON, and compare the tokens."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from energon_pack.dataset.contents import Pack, sample_of, written_tokens
from energon_pack.dataset.files import at
from energon_pack.dataset.folder import DatasetFolder
from energon_pack.dataset.inputs import OtherTokenizer
from energon_pack.dataset.manifest import processor_folder
from energon_pack.errors import one_line, short
from energon_pack.packed_with import load_template
from energon_pack.samples.bytes import Bytes
from energon_pack.samples.flavors.base import PackedFlavor
from energon_pack.samples.skip import Skip
from energon_pack.templates.template import Template
from energon_pack.verify.findings import Findings
from energon_pack.verify.members import made_otherwise
from energon_pack.verify.shard import VerifiedShard, packs_of
from energon_pack.verify.source import demo_of

_SEED = 0


def measured_again(
    folder: DatasetFolder,
    flavor: PackedFlavor,
    shards: Sequence[VerifiedShard],
    number: int,
    processor: str | None,
    trust_remote_code: bool,
) -> Iterator[tuple[str, list[str]]]:
    """Tokenize `number` random members; yield the name of each, and what is wrong with its tokens.

    Args:
        processor: folder or hub id; None: see `load_template`.
    """
    warnings.filterwarnings("ignore", module="PIL")  # about odd EXIF and the like
    try:
        template = load_template(folder.path, processor, trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        yield str(folder), [" ".join(str(error).split())]
        return
    except (KeyError, TypeError, AttributeError) as error:  # the manifest is damaged
        yield str(folder), [f"the manifest does not say how it was measured: {error!r}"]
        return
    starts = np.cumsum([0, *(sum(shard.members) for shard in shards)])
    drawn = np.random.default_rng(_SEED).choice(starts[-1], min(number, int(starts[-1])), replace=False)
    for shard, start, end in zip(shards, starts[:-1], starts[1:], strict=True):
        wanted = np.sort(drawn[(drawn >= start) & (drawn < end)] - start)
        firsts = np.cumsum([0, *shard.members])
        chosen = np.unique(np.searchsorted(firsts, wanted, side="right") - 1).tolist()
        packs = packs_of(folder, shard.name, flavor, [(shard.ends[n], shard.ends[n + 1]) for n in chosen])
        for n, (file, pack, _) in zip(chosen, packs, strict=True) if chosen else ():
            for index in (wanted[(wanted >= firsts[n]) & (wanted < firsts[n + 1])] - firsts[n]).tolist():
                yield pack.ids[index], list(_differs(file, pack, index, template))


@contextmanager
def saved_template(
    folder: DatasetFolder, report: Mapping[str, Any], processor: str | None, trust_remote_code: bool, findings: Findings
) -> Iterator[str | None]:
    """Save the template of a dataset, and yield its folder; None: there is none here, as the findings then say.

    Args:
        processor: folder or hub id; None: the one that it was packed with.
    """
    with TemporaryDirectory(prefix="energon_pack-") as made:
        try:
            load_template(folder.path, processor or packed_with(folder, report), trust_remote_code).save(Path(made))
        except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
            why = f"its tokens are not compared with the source: {one_line(error)}"
            if processor or isinstance(error, OtherTokenizer):
                findings.add("source tokens", folder.name, [why], 0)
            else:
                findings.notes.append(f"{why} (--processor FOLDER names its processor)")
            yield None
            return
        yield made


def packed_with(folder: DatasetFolder, report: Mapping[str, Any]) -> str | None:
    """Return the processor a dataset was packed with; None: the model's published one."""
    processor: str | None = at(report, "config", "model", "processor")
    if processor is None and at(report, "config", "source", "path") is None and report:
        return demo_of(folder, report)[1]
    return processor_folder(folder.path) or processor  # a hub id, or a folder that is gone


def _differs(file: Bytes, pack: Pack, index: int, template: Template) -> Iterator[str]:
    try:
        sample = sample_of(file, pack, index)
        yield from made_otherwise(written_tokens(file, pack)[index], template, sample)
    except Skip as skip:
        yield f"it can't be measured: {skip}"
    except (KeyError, IndexError) as error:
        yield f"it can't be measured: the pack lacks {error}"
    except (TypeError, ValueError) as error:  # the conversation or the tokens are damaged
        yield f"it can't be measured: {short(str(error) or type(error).__name__)}"
