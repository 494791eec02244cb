"""127.0.0.1 means 127.0.0.1.

Ray replaces a loopback address by the machine's outward one, in `ray.init` and in `ray start`, and a node with an
outward address listens on all of them. Whoever says 127.0.0.1 wants a cluster that nobody else can reach, so the
replacement is taken out: by `keep_loopback` for drivers, by `on_start` for the nodes of `plaudit cluster start`
(Ray calls it by the name in `RAY_START_HOOK`). Without it nothing breaks, the ports are only open wider.
"""

from typing import Any

from plaudit.cluster.patience import be_patient

HOOK = "plaudit.cluster.loopback.on_start"


def keep_loopback() -> None:
    """From now on in this process."""
    from ray._private import services

    services.resolve_ip_for_localhost = lambda host: host


def on_start(ray_params: Any, head: bool) -> None:
    """What `ray start` is about to start, before it does."""
    keep_loopback()
    be_patient()
    ray_params.ray_client_server_port = None  # a server for drivers outside of the cluster; there is no flag against it
    if ray_params.node_name in ("127.0.0.1", "::1"):  # --node-ip-address has been replaced already
        ray_params.node_ip_address = ray_params.node_name
