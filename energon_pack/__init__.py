"""energon_pack: multimodal fine-tuning samples, packed into full sequences for Megatron-Energon.

Kept empty of imports: every Hydra application of an environment loads this package for its plugin, and a
training job imports only what it needs (`energon_pack.loading`, `energon_pack.flavors`).
"""

__version__ = "0.1.0"
