"""The listening socket, bound before anything heavy starts, so that a taken port is said at once."""

from __future__ import annotations

import errno
import socket

from ops.errors import ConfigError

BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on the address; port 0 takes a free one. Raises ConfigError.

    Connections that come before the server is up wait in the backlog.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"The host {host!r} is not known.", why=f"{error}.", param="host") from error
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} of {host} is in use.",
                remedy="Choose another with --port, or end the program that uses it.",
                param="port",
            ) from error
        raise ConfigError(
            f"{host}:{port} cannot be listened on.", why=f"{error.strerror}.", param="host"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address of a listening socket as a URL; one that means every address is shown as this machine."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
