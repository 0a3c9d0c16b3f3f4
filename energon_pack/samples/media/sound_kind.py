"""Sounds: one kind of media."""

import math
from typing import TYPE_CHECKING, Any, BinaryIO

from energon_pack.samples.media.medium import Media, MediaFormat, Medium, first_bytes_pattern
from energon_pack.samples.media.video_kind import has_whole_boxes

if TYPE_CHECKING:
    import numpy as np

_RANDOM_SECONDS = (0.03, 45)  # of random sounds: shorter than some features, and longer than most models hear at once
_RATE = 16_000


class Sound(Medium):
    """Sounds as a kind of media; the model gets the mean of the channels at the processor's rate."""

    kind, noun, token_type = "audio", "a sound", 3
    models = ("qwen2_5_omni", "qwen3_omni", "gemma3n", "gemma4", "qwen2_audio", "audio_flamingo3", "glm_asr")
    argument, parts = "audio", ("audio_processor", "feature_extractor")
    other_part_types = ("input_audio",)  # OpenAI's
    colour = "cyan"
    fields = ("num_samples", "rate")
    formats = (
        MediaFormat("audio", "wav", first_bytes_pattern(rb"(RIFF|RF64)....WAVE")),
        MediaFormat("audio", "flac", first_bytes_pattern(rb"fLaC")),
        MediaFormat("audio", "ogg", first_bytes_pattern(rb"OggS"), also=("oga", "opus")),
        MediaFormat("audio", "mp3", first_bytes_pattern(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")),
        MediaFormat("audio", "aac", first_bytes_pattern(rb"\xff[\xf0\xf1\xf8\xf9]")),
        MediaFormat("audio", "aiff", first_bytes_pattern(rb"FORM....AIF[FC]"), also=("aif", "aifc")),
        MediaFormat("audio", "m4a", first_bytes_pattern(rb"....ftypM4[AB]"), also=("m4b",), is_whole=has_whole_boxes),
        MediaFormat("audio", "mka", first_bytes_pattern(rb"\x1a\x45\xdf\xa3"), also=("weba",)),
    )
    example = Media("audio", num_samples=48_000, rate=_RATE)

    def probe(self, file: BinaryIO, container: MediaFormat) -> Media:
        from energon_pack.samples.media.stream_probe import probe_sound_length

        num_samples, rate = probe_sound_length(file, container)
        return Media(self.kind, extension=container.extension, num_samples=num_samples, rate=rate)

    def defect(self, data: bytes, medium: Media) -> str:
        from energon_pack.samples.media.streams import decode_audio

        number = len(decode_audio(data, medium.rate))
        return "" if number == medium.num_samples else f"{number} samples decode, its header says {medium.num_samples}"

    def said(self, medium: Media) -> str:
        return f"a sound of {medium.num_samples:,} samples at {medium.rate:,} a second"

    def size(self, medium: Media) -> str:
        return f"{medium.seconds:.1f} s"

    def is_part(self, part: Any) -> bool:
        return isinstance(getattr(part, "sampling_rate", None), int)

    def blank(self, medium: Media) -> Any:
        import numpy as np

        return np.zeros(medium.num_samples, np.float32)

    def drawn(self, rng: "np.random.Generator") -> Media:
        seconds = math.exp(rng.uniform(math.log(_RANDOM_SECONDS[0]), math.log(_RANDOM_SECONDS[1])))
        return Media(self.kind, num_samples=round(seconds * _RATE), rate=_RATE)

    def noise(self, medium: Media, rng: "np.random.Generator") -> Any:
        """Return random samples: float32 [num_samples]."""
        import numpy as np

        return rng.uniform(-0.5, 0.5, medium.num_samples).astype(np.float32)

    def prepared(self, medium: Media, rate: int) -> Media:
        from energon_pack.samples.media.streams import resampled_length

        rate = rate or medium.rate
        return Media(self.kind, num_samples=resampled_length(medium.num_samples, medium.rate, rate), rate=rate)

    def decoded(self, data: bytes, medium: Media, rate: int) -> Any:
        """Decode a sound, or the sound of a video, at the processor's rate: float32 [num_samples]."""
        from energon_pack.samples.media.streams import UndecodableError, decode_audio

        samples, expected = decode_audio(data, rate), self.prepared(medium, rate).num_samples
        if len(samples) != expected:
            raise UndecodableError(f"a sound has {len(samples)} samples, and {expected} by its header: it is damaged")
        return samples
