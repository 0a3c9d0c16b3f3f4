# Installed as hydra_plugins/energon_pack_shim.py, where Hydra 1.3 looks for plugins.
from energon_pack.hydra_plugin import EnergonPackSearchPath  # noqa: F401
