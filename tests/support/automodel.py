"""Return the `pack` setting of a NeMo Automodel YAML for the demo."""

from pathlib import Path


def pack_overrides(source: Path, processor: Path, cache: Path, *more: str) -> list[str]:
    """Overrides of a small plan in this process; `more` of them come last."""
    return [
        "+model=qwen2_5_vl",
        f"model.processor={processor}",
        f"source.path={source}",
        f"cache_dir={cache}",
        "source.limit=60",
        "packing.max_token_len=800",
        "packing.overlong=drop",
        "executor.num_workers=1",
        "measure.verify=0",
        *more,
    ]
