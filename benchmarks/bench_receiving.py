"""How many images can one core receive that other machines have made?

    python benchmarks/bench_receiving.py
    python benchmarks/bench_receiving.py --quick

Images of 224 x 224 (150,528 bytes) come 16 at a time over the loopback interface, and three requests are open. The
sender makes nothing: it repeats the same bytes. It has one core of the machine to itself, and the receiver another one,
so that the receiver alone is measured. "CPU" is the processor time of all processes that receive. With mpload these are
the training process and a worker, which ends with batches of 256 in tensors; the others end with bytes in memory:

- mpload, without and with TLS: an `MPLoader` of one worker, whose decoder is never called;
- a socket, without and with TLS: Python's `recv_into` alone, into the same memory again and again. It is the floor;
- gRPC: `grpcio`, a unary call for each request, answered with bytes; three calls in flight;
- Ray's object store: an actor on another node returns an array, `ray.get` maps it; the raylet of the receiving node,
  which copies objects between nodes, is counted too.

gRPC and Ray are left out if they are not installed (`pip install grpcio ray`).

The contestants take turns in random order, each in its own process. Their first epoch is not timed.
Records: benchmarks/records/receiving.jsonl.
"""

import argparse
import importlib.util
import json
import logging
import os
import random
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from turns import Process, started, told

IMAGE_BYTES = 3 * 224 * 224
REQUEST_SAMPLES = 16
NUM_OPEN = 3
MODULE = """
import numpy as np
from pathlib import Path
from mpload import MPDataset, Topology


class Zeros:
    output_shape = (224, 224, 3)

    def __repr__(self):
        return "Zeros"

    def __call__(self, data, rng=None, out=None):
        out = np.empty(self.output_shape, np.uint8) if out is None else out
        out[...] = 0
        return out


INDEX = Path(__file__).parent / "zeros.txt"
dataset = MPDataset(INDEX, decode=Zeros(), batch_size=256, shuffle=True, topology=Topology())
"""
CONTESTANTS = {
    "mpload": "",
    "mpload, TLS": "",
    "socket": "",
    "socket, TLS": "",
    "gRPC": "grpc",
    "Ray's object store, between nodes": "ray",
}
"""By name: the package that a contestant needs."""


def pin(process: psutil.Process, core: int) -> None:
    """Let a process, its threads and its descendants run on one core only."""
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error, OSError):
            for thread in each.threads():
                os.sched_setaffinity(thread.id, {core})


def cores() -> tuple[int, int]:
    """Return the cores of the receiver and of the sender."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


# Senders


def send(kind: str, folder: Path) -> None:
    """Answer requests until killed, after writing the port."""
    os.sched_setaffinity(0, {cores()[1]})
    if kind == "gRPC":
        send_by_grpc()
        return
    context = None
    if kind.endswith("TLS"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection = listener.accept()[0]
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=converse, args=(connection, context), daemon=True).start()


def converse(connection: socket.socket, context: ssl.SSLContext | None) -> None:
    """Answer the requests of a connection with zeros."""
    from mpload.client.protocol import MEDIA_TYPE, AnswerHead, Wanted
    from mpload.transport.messages import Tally

    if context is not None:
        connection = context.wrap_socket(connection, server_side=True)
    zeros, head = memoryview(bytes(256 * (IMAGE_BYTES + 8))), AnswerHead(tally=Tally()).encode()
    with suppress(OSError), connection, connection.makefile("rb") as requests:
        while requests.readline():
            num_bytes = 0
            while (line := requests.readline()) not in {b"\r\n", b""}:
                if line.lower().startswith(b"content-length:"):
                    num_bytes = int(line.split(b":")[1])
            num_samples = len(Wanted.decode(requests.read(num_bytes)).sample_ids)
            size = num_samples * (IMAGE_BYTES + 8)
            lines = ["HTTP/1.1 200 OK", f"Content-Type: {MEDIA_TYPE}", f"Content-Length: {size + len(head)}", "", ""]
            connection.sendall("\r\n".join(lines).encode() + head)
            connection.sendall(zeros[:size])


def send_by_grpc() -> None:
    """Answer each call with the bytes of 16 images."""
    import grpc  # type: ignore[import-untyped]

    answer = bytes(REQUEST_SAMPLES * IMAGE_BYTES)
    method = grpc.unary_unary_rpc_method_handler(lambda *_: answer)
    server = grpc.server(ThreadPoolExecutor(NUM_OPEN), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Samples", {"Get": method})])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


# Receivers


def receive(kind: str, folder: Path, port: str, num_samples: int) -> None:
    """Run the first epoch, and then one for each line of the input."""
    os.sched_setaffinity(0, {cores()[0]})
    receivers = [psutil.Process()]
    if kind.startswith("Ray"):
        epoch, raylet = by_ray(num_samples)
        receivers.append(raylet)
    else:
        ways: dict[str, Callable[[str, int], Epoch]] = {
            "mpload": partial(by_mpload, folder),
            "mpload, TLS": partial(by_mpload, folder, is_encrypted=True),
            "socket": by_socket,
            "socket, TLS": partial(by_socket, folder=folder),
            "gRPC": by_grpc,
        }
        epoch = ways[kind](port, num_samples)
    received = sum(epoch())
    if kind.startswith("mpload"):  # its workers are there by now
        receivers += psutil.Process().children(recursive=True)
    print(json.dumps({"num_samples": received}), flush=True)
    for _ in sys.stdin:
        before, start = cpu_seconds(receivers), time.perf_counter()
        received = sum(epoch())
        seconds = time.perf_counter() - start
        figures = {"seconds": seconds, "cpu_seconds": cpu_seconds(receivers) - before, "num_samples": received}
        print(json.dumps(figures), flush=True)


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time of processes so far."""
    return sum(sum(each.cpu_times()[:2]) for each in processes)


Epoch = Callable[[], Iterator[int]]
"""Receives an epoch, and yields the number of samples in each batch."""


def by_mpload(folder: Path, port: str, num_samples: int, *, is_encrypted: bool = False) -> Epoch:
    """Return what an `MPLoader` receives."""
    del num_samples  # the dataset has so many
    sys.path.insert(0, str(folder))
    import zeros_data  # type: ignore[import-not-found]

    import mpload

    servers = mpload.Servers(
        urls=[f"http{'s' * is_encrypted}://127.0.0.1:{port}"],
        fallback="raise",
        ca_file=str(folder / "certificate.pem") if is_encrypted else None,
    )
    loader = mpload.MPLoader(zeros_data.dataset, servers=servers, num_workers=1)
    return lambda: (len(labels) for _, labels in loader)


def by_grpc(port: str, num_samples: int) -> Epoch:
    """Return what a channel receives."""
    import grpc

    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)])
    call = channel.unary_unary("/Samples/Get")

    def epoch() -> Iterator[int]:
        left = iter([call.future] * (num_samples // REQUEST_SAMPLES))
        waiting = [ask(b"") for ask in islice(left, NUM_OPEN)]
        while waiting:
            yield len(waiting.pop(0).result()) // IMAGE_BYTES
            waiting += [ask(b"") for ask in islice(left, 1)]

    return epoch


def by_socket(port: str, num_samples: int, folder: Path | None = None) -> Epoch:
    """Return what `recv_into` receives; with TLS if there is a folder with the certificate."""
    import numpy as np

    from mpload.client.protocol import Wanted

    sockets = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(NUM_OPEN)]
    if folder is not None:
        context = ssl.create_default_context(cafile=folder / "certificate.pem")
        sockets = [context.wrap_socket(each, server_hostname="127.0.0.1") for each in sockets]
    wanted = Wanted(seed=0, epoch=0, sample_ids=np.zeros(REQUEST_SAMPLES, np.int64)).encode()
    asking = f"POST / HTTP/1.1\r\nContent-Length: {len(wanted)}\r\n\r\n".encode() + wanted
    memory = memoryview(bytearray(REQUEST_SAMPLES * IMAGE_BYTES + (1 << 14)))

    def epoch() -> Iterator[int]:
        for each in sockets:
            each.sendall(asking)
        for number in range(num_samples // REQUEST_SAMPLES):
            each = sockets[number % NUM_OPEN]
            head, _, body = each.recv(1 << 14).partition(b"\r\n\r\n")
            left = memory[: int(head.rpartition(b":")[2]) - len(body)]
            while left:
                left = left[each.recv_into(left) :]
            if number + NUM_OPEN < num_samples // REQUEST_SAMPLES:
                each.sendall(asking)
            yield REQUEST_SAMPLES

    return epoch


def by_ray(num_samples: int) -> tuple[Epoch, psutil.Process]:
    """Return what one node of a Ray cluster receives from another, and the raylet that receives it."""
    import numpy as np
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 1 << 30})
    far = cluster.add_node(num_cpus=1, resources={"far": 1}, object_store_memory=1 << 30)
    ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)

    class Sender:
        def get(self) -> Any:
            return np.zeros((REQUEST_SAMPLES, IMAGE_BYTES), np.uint8)

    actor: Any = ray.remote(resources={"far": 1})(Sender)
    sender = actor.remote()
    ray.get(sender.get.remote())
    pin(psutil.Process(raylet_of(far)), cores()[1])

    def epoch() -> Iterator[int]:
        left = iter([sender.get.remote] * (num_samples // REQUEST_SAMPLES))
        waiting = [ask() for ask in islice(left, NUM_OPEN)]
        while waiting:
            yield len(ray.get(waiting.pop(0)))
            waiting += [ask() for ask in islice(left, 1)]

    return epoch, psutil.Process(raylet_of(cluster.head_node))


def raylet_of(node: Any) -> int:
    """Return the process id of a node's raylet."""
    return int(node.all_processes["raylet"][0].process.pid)


def write_data(folder: Path, num_samples: int) -> None:
    """Write an index of samples that are all zero, the module of its dataset, and a certificate."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.fault_runs import certificate_in

    (folder / "zero").write_bytes(b"\0")
    lines = "0+1@zero\t0\n" * num_samples
    (folder / "zeros.txt").write_text(f"#mpload 1\n#columns image:span label:int\n{lines}", encoding="utf-8")
    (folder / "zeros_data.py").write_text(MODULE, encoding="utf-8")
    certificate_in(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, one round; write no record")
    parser.add_argument("--num-samples", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--send", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--receive", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        send(arguments.send[0], Path(arguments.send[1]))
        return
    if arguments.receive:
        kind, folder, port = arguments.receive
        receive(kind, Path(folder), port, arguments.num_samples)
        return
    if arguments.quick:
        arguments.num_samples, arguments.rounds = 512, 1
    compare(arguments.num_samples, arguments.rounds, is_recorded=not arguments.quick)


def compare(num_samples: int, num_rounds: int, *, is_recorded: bool) -> None:
    """Let the contestants take turns, print what they took, and record it."""
    from records import write_record

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_data(folder, num_samples)
        running = {}
        for kind, package in CONTESTANTS.items():
            if package and importlib.util.find_spec(package) is None:
                print(f"{kind}: left out, {package} is not installed")
                continue
            port = ""
            if package != "ray":
                sender = stack.enter_context(started(__file__, "--send", kind, str(folder)))
                stack.callback(sender.kill)
                assert sender.stdout is not None
                port = sender.stdout.readline().strip()
            sizes = "--num-samples", str(num_samples)
            running[kind] = stack.enter_context(started(__file__, "--receive", kind, str(folder), port, *sizes))
            if (first := told(running[kind])) != {"num_samples": num_samples}:
                raise SystemExit(f"{kind}: the first epoch did not hold every sample once: {first}")
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in running}
        for number in range(num_rounds):
            for kind in random.Random(number).sample(list(running), len(running)):
                found[kind].append(turn(running[kind]))
        for process in running.values():
            process.communicate()
    for kind, turns in found.items():
        rates, cpu_us = zip(*turns, strict=True)
        print(f"{kind:36} {statistics.median(rates):7,.0f} images/s {statistics.median(cpu_us):7.1f} us CPU an image")
        if is_recorded:
            case = {
                "contestant": kind,
                "num_samples": num_samples,
                "request_samples": REQUEST_SAMPLES,
                "openssl": ssl.OPENSSL_VERSION,
            }
            figures = {
                "samples_per_second": [round(each) for each in rates],
                "cpu_us_per_sample": [round(each, 1) for each in cpu_us],
            }
            write_record("receiving", case, figures)


def turn(process: Process) -> tuple[float, float]:
    """Let a contestant receive an epoch; return samples per second, and microseconds of CPU time per sample."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    result = told(process)
    num_samples = result["num_samples"]
    return num_samples / result["seconds"], 1e6 * result["cpu_seconds"] / num_samples


if __name__ == "__main__":
    main()
