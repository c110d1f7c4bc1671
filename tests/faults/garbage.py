"""Bytes of chance, thrown at every port of a mesh while it answers."""

import os
import socket
from contextlib import suppress

import psutil

from runtime.addresses import split_address
from tests.faults.asking import REQUESTS, asking
from tests.faults.cluster import Cluster

TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A SETTINGS frame, as a caller's first one must be; what follows it is looked at.
HTTP2_SETTINGS = HTTP2_PREFACE + bytes(3) + b"\x04" + bytes(5)
HTTP1_HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 5000\r\n\r\n"
HEADS = (b"", TLS_HELLO, HTTP2_PREFACE, HTTP2_SETTINGS, HTTP1_HEAD)
NUM_BYTES = 5000


def listening_ports(cluster: Cluster) -> set[int]:
    """Every port that a process of the mesh listens on."""
    pids = [cluster.coordinator.process.pid, *(worker.pid for worker in cluster.workers)]
    return {
        connection.laddr.port
        for pid in pids
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def throw_garbage(cluster: Cluster) -> None:
    """At every port, with requests in flight; nothing ends and no token is another."""
    ports, epoch = listening_ports(cluster), cluster.epoch()
    # The coordinator's APIs and mesh; each worker's stage and metrics.
    assert len(ports) == 3 + 2 * len(cluster.workers)
    apis = (cluster.target, cluster.http, cluster.mesh_address)
    assert {split_address(api)[1] for api in apis} <= ports
    with asking(cluster, *REQUESTS):
        for port in ports:
            for head in HEADS:
                with (
                    socket.create_connection(("127.0.0.1", port)) as connection,
                    suppress(ConnectionError),
                ):
                    connection.sendall(head + os.urandom(NUM_BYTES))
    assert cluster.epoch() == epoch
    with asking(cluster, *REQUESTS[:2]):
        pass
