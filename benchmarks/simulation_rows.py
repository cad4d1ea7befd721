"""The rows of the table of simulate_servers.py."""

from records import latest

__all__ = ["SIMULATION_HEADER", "simulation_rows"]

SIMULATION_HEADER = [
    "trainers x images/s",
    "network",
    "samples",
    "a server dies every",
    "servers",
    "used up first",
    "cores busy of 64",
    "connections of a server",
    "deaths in an epoch",
    "time lost",
    "without hedging",
]
_NAMES = ("num_trainers", "rate", "gbits", "num_samples", "days_between_deaths")


def simulation_rows() -> list[list[str]]:
    """Return what each job needs, and what an epoch of it loses."""
    rows = []
    for record in latest("simulation", *_NAMES):
        case, figures = record["case"], record["figures"]
        days = case["days_between_deaths"]
        rows.append(
            [
                f"{case['num_trainers']:,} x {case['rate']:,}",
                f"{case['gbits']} Gbit/s",
                f"{case['num_samples']:.0e}".replace("e+0", "e").replace("e+", "e"),
                f"{days} days" if days > 1 else "day",
                str(figures["num_servers"]),
                figures["used_up_first"],
                f"{figures['server_cores_used']:.0f}",
                f"{figures['connections_of_server']:,}",
                f"{figures['num_deaths']:,}",
                f"{figures['stalled_share'] + figures['short_share']:.2%}",
                f"{figures['stalled_share_without_hedging'] + figures['short_share']:.2%}",
            ]
        )
    return rows
