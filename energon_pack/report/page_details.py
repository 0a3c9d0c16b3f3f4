"""Build the rest of the page: skipped samples, times, the config, and how to load the packs."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from energon_pack.config import ModelConfig, PackConfig, plain
from energon_pack.errors import amount
from energon_pack.plan.report import RunFacts
from energon_pack.report.figures import Figures
from energon_pack.report.pages.bars import short_number
from energon_pack.report.pages.html import Html, clip_text, details, section, table, tag
from energon_pack.run.packages import version_of
from energon_pack.samples.skip import Reason
from energon_pack.templates.models import packaged_models, read_model_config
from energon_pack.version import VERSION

_MAX_TEXT_CHARS, _MAX_CONFIG_CHARS, _MAX_PATH_CHARS = (
    200,
    12_000,
    4096,
)  # characters of an id or a detail, of all settings, of a path
_PACKAGES_SHOWN = ("transformers", "tokenizers", "numpy", "pyarrow", "megatron-energon")


def skipped_section(figures: Figures, ledger: str | None) -> Html:
    """Build the section that counts skipped and cut samples by reason, with examples; `ledger` is the file with all."""
    reasons, samples = figures.ledger_counts, figures.source.samples
    title = "Skipped samples"
    if not reasons:
        return section(title, tag("p", "None."))
    rows = [
        (reason, "choice of the settings" if Reason(reason).is_policy else "bad data", f"{number:,}",
         f"{number / max(1, samples):.2%}")
        for reason, number in sorted(reasons.items(), key=lambda item: -item[1])
    ]  # fmt: skip
    parts = [table(("reason", "kind", "samples", "of all"), rows, 2)]
    for reason, *_ in rows:
        if entries := figures.examples.get(reason):
            parts.append(details(f"{reason}: {len(entries)} of {reasons[reason]:,}", _examples(entries), is_open=True))
    if ledger:
        parts.append(tag("p", "All of them: ", tag("code", ledger), class_="faint"))
    return section(title, *parts)


def _examples(entries: Sequence[Mapping[str, Any]]) -> Html:
    rows = [
        (tag("code", clip_text(entry["sample_id"], _MAX_TEXT_CHARS)), clip_text(entry["detail"] or "", _MAX_TEXT_CHARS))
        for entry in entries
    ]
    return table(("sample", "what is wrong with it"), rows, 2)


def time_section(facts: RunFacts) -> Html:
    """Build the section of a run's stages: their seconds, samples, bytes and memory."""
    total = sum(facts.seconds.values()) or 1.0
    header = ("stage", "seconds", "of all", "samples", "from the cache", "MB", "peak memory, MB")
    rows = []
    for name, seconds in facts.seconds.items():
        done = facts.throughput.get(name, {})
        counts = [short_number(done[key]) if done.get(key) else "" for key in ("samples", "cached")]
        megabytes = [f"{done.get('bytes', 0) / 1e6:,.0f}", f"{facts.peak_rss_bytes_by_stage.get(name, 0) / 1e6:,.0f}"]
        rows.append((name, f"{seconds:,.1f}", f"{seconds / total:.0%}", *counts, *megabytes))
    return section("Time", table(header, rows), *_lines_below_times(facts))


def _lines_below_times(facts: RunFacts) -> Iterator[Html]:
    cache = facts.cache
    yield tag(
        "p",
        f"{facts.bytes_read / 1e6:,.1f} MB read, {facts.bytes_written / 1e6:,.1f} MB written; lengths of"
        f" {amount(cache['shards_reused'], 'shard')} from the cache, {cache['shards_measured']:,} measured; at most"
        f" {facts.peak_rss_bytes / 1e6:,.0f} MB of memory in all processes together.",
    )
    checked, not_checked = facts.samples_verified, facts.samples_not_verified
    rest = f"; {not_checked:,} could not be" if not_checked else ""
    yield tag("p", f"Samples verified in the full processor, or as it agreed before: {checked:,}{rest}.")


def settings_section(settings: Mapping[str, Any], facts: RunFacts | None, processor: str, folder: str | None) -> Html:
    """Build the section with all settings, and the Python that loads the packs (`folder`; None: there are none)."""
    changed = [(key, _value(value)) for key, value in _changed(settings)]
    parts = [details("Settings that are not the default", table(("setting", "value"), changed, 2), is_open=True)]
    if folder:
        parts.append(details("Load it", tag("pre", _snippet(processor, folder)), is_open=True))
    parts.append(
        details(
            "Every setting",
            tag("pre", clip_text(json.dumps(settings, indent=1, ensure_ascii=False), _MAX_CONFIG_CHARS)),
        )
    )
    versions = {"energon_pack": VERSION, "Python": sys.version.split()[0]}
    versions |= {name: version for name in _PACKAGES_SHOWN if (version := version_of(name))}
    versions_text = ", ".join(f"{name} {version}" for name, version in versions.items())
    if facts:
        versions_text += f"; fingerprint {facts.fingerprint}"
    return section("Settings", *parts, tag("p", versions_text, class_="faint"))


def _changed(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings that differ from the default and from the model's YAML."""
    defaults = plain(PackConfig(model=ModelConfig(name="", template="")))
    name = values["model"]["name"]
    if name in packaged_models():
        defaults["model"] |= read_model_config(name)
    return _differences("", values, defaults)


def _differences(prefix: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict) and default:
            yield from _differences(f"{prefix}{key}.", value, default)
        elif value != default:
            yield f"{prefix}{key}", value


def _value(value: Any) -> Html:
    return tag(
        "code", clip_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _MAX_TEXT_CHARS)
    )


def _snippet(processor: str, folder: str) -> str:
    processor = clip_text(processor, _MAX_PATH_CHARS)
    return (
        "from megatron.energon import WorkerConfig, get_savable_loader, get_train_dataset\n\n"
        "from energon_pack import PackedTaskEncoder, train_arguments\n\n"
        f"path = {folder!r}\n"
        f"encoder = PackedTaskEncoder(path, {processor!r})\n"
        "worker_config = WorkerConfig.default_worker_config(num_workers=2)\n"
        "dataset = get_train_dataset(path, **train_arguments(path, encoder, worker_config))\n"
        "for batch in get_savable_loader(dataset):\n"
        "    ...\n"
    )
