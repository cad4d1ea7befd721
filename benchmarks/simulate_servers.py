"""How many servers does a large job need, what is used up first, and what do deaths of servers cost?

    python benchmarks/simulate_servers.py [--seed 0]

Nothing is measured here. Capacities follow from costs that other benchmarks measured (`COSTS`); deaths are drawn at
random over a whole epoch. A job has `num_trainers` machines, which step together and need `rate` images/s each, of
224 x 224 pixels. Servers have 64 cores, and there are a tenth more of them than are needed. A server that dies is back
after two minutes. One death in ten is silent: the network or the power is gone, so no connection is reset. Requests to
it are late until a worker asks another server too (hedging), or else until the time limit. All trainers wait if that
takes longer than the batches that are made ahead last. Two deaths that overlap count twice.

Deaths are those of large clusters: one a machine in 250 days (419 interruptions in 54 days on 2,048 machines: "The
Llama 3 Herd of Models", 2024, table 5), or one a day where machines are taken back at any time.

Records: benchmarks/records/simulation.jsonl.
"""

import argparse
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from records import write_record

from mpload import Servers, Topology
from mpload.client.choice import Nearest

IMAGE_BYTES = 3 * 224 * 224
CORES = 64
SPARE = 0.1
SILENT_SHARE = 0.1
RESTART_SECONDS = 120.0
TIME_LIMIT_SECONDS, HEDGE_SECONDS, RESET_SECONDS = 30.0, 0.5, 0.1
AHEAD_SECONDS = 1.0
WORKERS = 16
"""Of each trainer. Each worker keeps a connection to each server that its rank asks."""
DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Processor time of an image, in microseconds, on the machine of the other benchmarks."""

    decode_us: float
    """A random crop of a photograph of 500 x 375: bench_typed.py."""
    send_us: float
    """See bench_servers.py."""
    receive_us: float
    """See bench_servers.py."""


COSTS = Costs(decode_us=518.0, send_us=53.0, receive_us=39.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job and the machines that it runs on."""

    num_trainers: int
    rate: float
    """Images/s that each trainer needs."""
    gbits: float
    """Network of each machine, in Gbit/s."""
    num_samples: float
    """Samples of an epoch."""
    days_between_deaths: float
    """Mean time between two deaths of the same server."""


def rates_of(job: Job) -> dict[str, float]:
    """Return the images/s that each part of a trainer or a server can do."""
    network = job.gbits * 1e9 / 8 / IMAGE_BYTES
    return {
        "trainer's network": network,
        "trainer's processor": WORKERS * 1e6 / COSTS.receive_us,
        "server's network": network,
        "server's processor": CORES * 1e6 / (COSTS.decode_us + COSTS.send_us),
    }


def simulate(job: Job, *, rng: np.random.Generator, is_hedged: bool) -> dict[str, Any]:
    """Return what an epoch of the job takes, and what deaths cost."""
    rates = rates_of(job)
    at_most = min(rates["trainer's network"], rates["trainer's processor"])
    of_server = min(rates["server's network"], rates["server's processor"])
    wanted = job.num_trainers * min(job.rate, at_most)
    num_servers = math.ceil(wanted * (1 + SPARE) / of_server)
    seconds = job.num_samples / wanted
    num_deaths = rng.poisson(num_servers * seconds / (job.days_between_deaths * DAY_SECONDS))
    is_silent = rng.random(num_deaths) < SILENT_SHARE
    late = np.where(is_silent, HEDGE_SECONDS if is_hedged else TIME_LIMIT_SECONDS, RESET_SECONDS)
    stalled = float(np.maximum(0.0, late - AHEAD_SECONDS).sum())
    deaths = np.sort(rng.uniform(0, seconds, num_deaths))
    short = _short_seconds(deaths, num_servers=num_servers, least=wanted / of_server)
    return {
        "num_servers": num_servers,
        "used_up_first": min(rates, key=lambda name: rates[name] / _asked(job, name, num_servers)),
        "trainer_rate": round(min(job.rate, at_most)),
        "server_cores_used": round(min(1.0, of_server / rates["server's processor"]) * CORES, 1),
        "connections_of_server": WORKERS * math.ceil(job.num_trainers * num_asked(job, num_servers) / num_servers),
        "epoch_seconds": round(seconds),
        "num_deaths": int(num_deaths),
        "stalled_share": stalled / seconds,
        "short_share": short / seconds,
    }


def num_asked(job: Job, num_servers: int) -> int:
    """Return how many servers each trainer asks."""
    servers = Servers(urls=[f"http://node{number}" for number in range(num_servers)])
    topology = Topology(rank=0, world_size=job.num_trainers)
    return Nearest.of(servers.urls, topology, servers_per_rank=servers.servers_per_rank).num_few


def _asked(job: Job, part: str, num_servers: int) -> float:
    return job.rate if part.startswith("trainer") else job.num_trainers * job.rate / num_servers


def _short_seconds(deaths: Any, *, num_servers: int, least: float) -> float:
    """Return the time lost because too few servers were alive: the missing rate, added up over time."""
    events = sorted([*((at, -1) for at in deaths.tolist()), *((at + RESTART_SECONDS, 1) for at in deaths.tolist())])
    alive, before, lost = num_servers, 0.0, 0.0
    for at, change in events:
        lost += max(0.0, 1 - alive / least) * (at - before)
        alive, before = alive + change, at
    return lost


def jobs() -> list[Job]:
    """Return the jobs of the table."""
    return [
        Job(num_trainers=trainers, rate=rate, gbits=gbits, num_samples=num_samples, days_between_deaths=days)
        for trainers, rate, num_samples in ((1, 20_000, 1e9), (8, 20_000, 1e9), (1024, 6_000, 1e12))
        for gbits in (25, 100)
        for days in (250, 1)
    ]


def main() -> None:
    """Simulate all jobs and record them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    for job in jobs():
        hedged, plain = (simulate(job, rng=np.random.default_rng(seed), is_hedged=each) for each in (True, False))
        figures = {**hedged, "stalled_share_without_hedging": plain["stalled_share"]}
        print(asdict(job), figures)
        write_record("simulation", {**asdict(job), **asdict(COSTS)}, figures)


if __name__ == "__main__":
    main()
