"""Ports of this machine."""

import socket
from contextlib import ExitStack


def free_ports(number: int) -> list[int]:
    """Ports that are free now, all different."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
