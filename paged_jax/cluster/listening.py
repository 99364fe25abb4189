"""Where rank 0 listens for its followers."""

import socket

from paged_jax.engine_args import EngineArgs


def address_of(args: EngineArgs) -> tuple[str, int]:
    """Return where rank 0 listens for its followers: the port after the coordinator's."""
    return args.master_addr, args.master_port + 1


def listen(args: EngineArgs) -> socket.socket:
    """Return the socket that followers connect to.

    Raises:
        OSError: the address cannot be had; names it.
    """
    try:
        return socket.create_server(address_of(args))
    except OSError as error:
        host, port = address_of(args)
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from error
