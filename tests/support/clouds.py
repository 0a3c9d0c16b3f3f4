"""A processor and a tiny model that take point clouds: no class of transformers does, so both are ours.

A cloud is cut into pieces of 64 points, and each piece is a token.
"""

from pathlib import Path

import numpy as np

from support.processors import write_tokenizer
from support.remote import CODE, OF_TENSORS, add_code

CLOUDS = (
    CODE.format(images=OF_TENSORS)
    .replace(
        "class TinyProcessor",
        """class TinyClouds(ImageProcessingMixin):
    def __init__(self, piece=64, **settings):
        super().__init__(**settings)
        self.piece = piece

    def __call__(self, clouds):
        pieces = [torch.as_tensor(np.pad(cloud, ((0, -len(cloud) % self.piece), (0, 0)))) for cloud in clouds]
        pieces = [points.reshape(-1, self.piece, 3) for points in pieces]
        sizes = torch.tensor([len(points) for points in pieces])
        return {"cloud_values": torch.cat(pieces), "cloud_sizes": sizes}


class TinyProcessor""",
    )
    .replace(
        "        super().__init__(image_processor",
        """\
        self.cloud_token = "<cloud>"
        self.cloud_token_id = tokenizer.convert_tokens_to_ids("<cloud>")
        self.cloud_processor = TinyClouds()
        super().__init__(image_processor""",
    )
    .replace("text_kwargs=None, **settings):", "text_kwargs=None, clouds=None, **settings):")
    .replace(
        "        return BatchFeature({**self",
        """\
        if clouds:
            own = self.cloud_processor(clouds)
            made, counts = {**made, **own}, iter(own["cloud_sizes"].tolist())
            for i, one in enumerate(texts):
                first, *rest = one.split("<cloud>")
                texts[i] = first + "".join("<cloud>" * next(counts) + more for more in rest)
        return BatchFeature({**self""",
    )
)
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<{{ part.type }}>{% endif %}"
    "{% endfor %}{% endif %}</s>{% endfor %}"
)


def write_clouds(folder: Path) -> Path:
    """The folder of a processor of images and point clouds, with code of its own."""
    folder.mkdir(parents=True)
    write_tokenizer(folder, "TinyProcessor", ["<image>", "<cloud>"], {})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return add_code(folder, CLOUDS)


def ply(num_points: int, seed: int = 0) -> bytes:
    """A file of random points."""
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex {num_points}\n"
    head += "".join(f"property float {axis}\n" for axis in "xyz") + "end_header\n"
    return head.encode() + np.random.default_rng(seed).normal(size=(num_points, 3)).astype("<f4").tobytes()
