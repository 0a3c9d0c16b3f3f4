"""Four nodes of a Ray cluster on this machine, by Ray's own utility."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from support.running import ROOT

_TASK = "ray::energon_pack_job"  # what Ray calls a process that does one of our jobs


class Nodes:
    """A head without room for jobs, and nodes with room for one each.

    Args:
        num: nodes beside the head.
    """

    def __init__(self, num: int = 4):
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self._add() for _ in range(num)]

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def workers(self) -> list[psutil.Process]:
        """The processes that are at work on jobs of a run."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(_TASK):
                    found.append(process)
        return found

    def lose(self, number: int) -> None:
        """Kill a node with all that runs on it, and add another."""
        self._cluster.remove_node(self.nodes[number], allow_graceful=False)
        self.nodes[number] = self._add()

    def lose_head(self) -> None:
        """Kill the node through which all others speak, for good."""
        processes = self._cluster.head_node.all_processes
        for name in ("gcs_server", "raylet"):
            for found in processes[name]:
                psutil.Process(found.process.pid).kill()

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1)

    def shut_down(self) -> None:
        self._cluster.shutdown()


@contextmanager
def nodes(num: int = 4) -> Iterator[Nodes]:
    """A cluster whose workers can import the package and the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'tests'}")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        made = Nodes(num)
        try:
            yield made
        finally:
            made.shut_down()
