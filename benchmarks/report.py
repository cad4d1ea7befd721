"""Write the tables and figures of the README and the documentation from the benchmarks' records.

    python benchmarks/report.py [--check]

A page holds a table between `<!-- table: NAME -->` and `<!-- end -->`. The function registered under NAME in TABLES
makes it from the latest record of each case. The figures are benchmarks/records/*.png; drawing them needs matplotlib.
`--check` writes nothing, and fails if a page differs from the records.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from accuracy_rows import ACCURACY_HEADER, accuracy_rows, draw_accuracy
from ahead import ahead
from auto_rows import auto_header, auto_rows
from bench_repeated import OFFERS
from cache_machine_rows import CACHE_MACHINES_HEADER, cache_machine_rows
from contestants import ENTRIES, LISTS
from cores_rows import core_header, core_rows
from device_ahead import device_ahead_by_peer
from device_peer_rows import RACE_HEADER, machine_sentence, race_rows, readme_sentence, short_header, short_rows
from device_rows import COPY_HEADER, copy_rows, hidden_sentence, step_header, step_rows
from dlio_rows import DLIO_HEADER, dlio_rows
from doctor_rows import DOCTOR_HEADER, doctor_rows
from fault_rows import FAULT_HEADER, fault_rows
from gpu_decode_rows import DECODERS_HEADER, RECEIVED_HEADER, decoder_rows, received_rows
from hits import draw_hits
from limited_rows import LIMITED_HEADER, limited_rows
from map_style_rows import MAP_STYLE_HEADER, map_style_rows
from memory_figure import draw_memory
from mixture_rows import MIXTURE_HEADER, mixture_rows
from network_rows import network_header, network_rows
from own_code_rows import OWN_CODE_HEADER, own_code_rows
from parts_rows import PARTS_HEADER, parts_rows
from records import RECORDS, Record, latest
from served_rows import RECEIVING_HEADER, SERVERS_HEADER, rates_and_costs, receiving_rows, server_rows, with_spread
from simulation_rows import SIMULATION_HEADER, simulation_rows
from standings import Standing, standings

from mpload.tools.bench.memory import MemoryCase, MemoryResult, Outcome
from mpload.tools.bench.memory_report import memory_tables
from mpload.units import format_bytes, format_count, format_seconds

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def markdown(header: list[str], rows: list[list[str]], *, num_names: int = 1) -> str:
    """Return a table whose columns are right-aligned, except for the first `num_names`."""
    rule = ["---"] * num_names + ["---:"] * (len(header) - num_names)
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, rule, *rows])


def short_count(count: int) -> str:
    """Return a count as the head of a column: a power of ten as 10⁷, any other count in digits."""
    exponent = len(str(count)) - 1
    return f"10{str(exponent).translate(SUPERSCRIPT)}" if count == 10**exponent else format_count(count)


def memory_results() -> list[MemoryResult]:
    """Return the latest record of each case of bench_memory.py, without the curve of memory over time."""
    return [
        MemoryResult(
            case=MemoryCase(**record["case"]),
            **{**record["figures"], "outcome": Outcome(record["figures"]["outcome"])},
        )
        for record in latest("memory")
    ]


def memory() -> str:
    """Return the peak PSS of each way to keep a list, by length of the list, and the peak USS for the longest list."""
    results = memory_results()
    most = max(result.case.num_workers for result in results)
    of_most = [result for result in results if result.case.num_workers == most]
    lengths = [short_count(length) for length in sorted({result.case.num_samples for result in of_most})]
    pss, uss, *_ = memory_tables(of_most)
    header = [f"{most} workers", f"{lengths[0]} samples", *lengths[1:], f"USS at {lengths[-1]}"]
    rows = [[row[0], *row[2:], of_uss[-1]] for row, of_uss in zip(pss.rows, uss.rows, strict=True)]
    return markdown(header, rows)


def race_table(name: str) -> str:
    """Return the images per second of every contestant of a race, with a column for each kind of batch."""
    found = standings(name)
    notes = {entry.name: entry.note for entry in ENTRIES}
    titles = {"uint8": "uint8", "float32": "normalised float32", "bytes": "bytes"}
    outputs = [output for output in titles if any(output in of_contestant for of_contestant in found.values())]

    def cell(standing: Standing | None) -> str:
        if standing is None or not standing.rates:
            return "-"
        rates = f"{standing.rate:,.0f} ({min(standing.rates):,.0f}-{max(standing.rates):,.0f})"
        return f"{rates} {standing.ratio:.2f}" if standing.ratios else rates

    def place(contestant: str) -> list[float]:
        of_contestant = found[contestant]
        return [of_contestant[output].rate if output in of_contestant else 0.0 for output in outputs]

    rows = []
    for contestant in sorted(found, key=place, reverse=True):
        of_contestant = found[contestant]
        failed = sorted({standing.failed for standing in of_contestant.values() if standing.failed})
        note = "; ".join([notes.get(contestant, ""), *failed]).strip("; ")
        codec = next((standing.codec for standing in of_contestant.values() if standing.codec), "-")
        rows.append([contestant, *(cell(of_contestant.get(output)) for output in outputs), codec, note])
    table = markdown(["images/s", *(titles[output] for output in outputs), "JPEG decoder", "notes"], rows)
    return table.replace("---: | ---: |\n", "--- | --- |\n", 1)  # the last two columns hold text


def peak(figures: Record | None) -> str:
    """Return the peak PSS of a case of bench_peer_memory.py; `~` marks one that was predicted, not measured."""
    if figures is None:
        return "-"
    if figures["outcome"] == Outcome.NOT_RUN:
        return f"~{format_bytes(figures['needed_bytes'])}"
    if figures["failed"]:
        return "failed"
    is_complete = figures["outcome"] == Outcome.DONE
    return f"{'' if is_complete else 'stopped at '}{format_bytes(figures['peak_pss_bytes'])}"


def peer_memory_cases() -> dict[str, dict[tuple[int, int], Record]]:
    """Return each contestant's figures by number of samples and of workers, for the default number of batches."""
    found: dict[str, dict[tuple[int, int], Record]] = {}
    for record in latest("peer_memory"):
        case = record["case"]
        if "num_batches" not in case:
            found.setdefault(case["contestant"], {})[case["num_samples"], case["num_workers"]] = record["figures"]
    return found


def summary() -> str:
    """Return speed and memory of the loaders in both races that read plain files, each with its fastest decoder."""
    race = standings("peers")
    memory = peer_memory_cases()
    most = max(num_workers for _, num_workers in memory["mpload"])
    lengths = [num_samples for num_samples, num_workers in sorted(memory["mpload"]) if num_workers == most]
    few, many = lengths[0], lengths[-1]

    def best_rate(package: str, output: str) -> float:
        entries = (of_race for name, of_race in race.items() if name.partition(",")[0] == package)
        return max((of_race[output].rate for of_race in entries if output in of_race), default=0.0)

    rows = []
    for contestant, figures in memory.items():
        package = contestant.partition(",")[0]
        rates = [best_rate(package, output) for output in ("uint8", "bytes")]
        at_few, at_many = figures.get((few, most)), figures.get((many, most))
        seconds = (at_many or {}).get("start_seconds")
        cells = [f"{rate:,.0f}" if rate else "-" for rate in rates]
        cells += [peak(at_few), peak(at_many), format_seconds(seconds) if seconds else "-"]
        rows.append((rates[0], [package, *cells]))
    header = ["", "images/s", "files/s"]
    header += [f"memory, {short_count(few)}", f"memory, {short_count(many)}", f"first batch, {short_count(many)}"]
    return markdown(header, [row for _, row in sorted(rows, reverse=True)])


def peer_memory() -> str:
    """Return the peak PSS of loaders that read plain files, by length of the list, and for the longest by workers."""
    found = peer_memory_cases()
    cases = {key for of_contestant in found.values() for key in of_contestant}
    lengths, workers = (sorted(set(values)) for values in zip(*cases, strict=True))
    columns = [*((length, workers[-1]) for length in lengths), *((lengths[-1], few) for few in workers[-2::-1])]
    longest = columns[len(lengths) - 1]
    keeps = dict(LISTS.values())

    def size(contestant: str) -> int:
        figures = found[contestant].get(longest, {})
        return int(max(figures.get("peak_pss_bytes", 0), figures.get("needed_bytes") or 0))

    rows = []
    for contestant in sorted(found, key=size):
        of_contestant = found[contestant]
        seconds = of_contestant.get(longest, {}).get("start_seconds")
        start = "-" if seconds is None else format_seconds(seconds)
        note = keeps.get(contestant, "-")
        rows.append([contestant, *(peak(of_contestant.get(column)) for column in columns), start, note])
    titles = [short_count(length) for length in lengths]
    fewer = [f"{short_count(length)}, {num_workers} workers" for length, num_workers in columns[len(lengths) :]]
    header = [f"{workers[-1]} workers or threads", f"{titles[0]} samples", *titles[1:], *fewer]
    table = markdown([*header, f"first batch at {titles[-1]}", "how it keeps the list"], rows)
    return table.replace("---: |\n", "--- |\n", 1)  # the last column holds text


def batch_sizes() -> str:
    """Return for every contestant the rate at each batch size, as a fraction of its rate at 128."""
    found: dict[str, dict[int, Record]] = {}
    failed: dict[str, str] = {}
    for record in latest("batch_sizes", "contestant", "batch_size"):
        case, figures = record["case"], record["figures"]
        if "failed" in figures:
            failed[case["contestant"]] = figures["failed"]
        else:
            found.setdefault(case["contestant"], {})[case["batch_size"]] = figures
    sizes = sorted({size for of_contestant in found.values() for size in of_contestant})
    rows = []
    for contestant, of_contestant in found.items():
        shares = (f"{of_contestant[size]['share_of_128']:.2f}" for size in sizes)
        rows.append([contestant, *shares, f"{of_contestant[128]['images_per_second']:,.0f}"])
    rows += [
        [contestant, reason, *[""] * len(sizes)] for contestant, reason in failed.items() if contestant not in found
    ]
    return markdown(["batch size", *map(str, sizes), "images/s at 128"], rows)


def repeated() -> str:
    """Return what each contestant reaches over repeated epochs, the fastest first."""
    reads = {offer.entry.name: offer.reads for offer in OFFERS}
    rows = []
    records = latest("repeated", "contestant")
    for record in sorted(records, key=lambda record: -float(record["figures"].get("images_per_second", 0))):
        case, figures = record["case"], record["figures"]
        if "failed" in figures:
            rows.append([case["contestant"], figures["failed"], *["-"] * 4])
            continue
        rows.append(
            [
                case["contestant"],
                reads.get(case["contestant"], "-"),
                f"{figures['prepare_seconds']:.0f}" if figures["prepare_seconds"] else "-",
                f"{figures['first_epoch_images_per_second']:,.0f}",
                f"{figures['images_per_second']:,.0f} ({figures['ratio_to_plain']:.2f})",
                format_bytes(figures["disk_bytes"]) if figures["disk_bytes"] else "-",
            ]
        )
    header = ["images/s", "reads", "preparation, s", "first epoch", "later epochs", "disk"]
    return markdown(header, rows, num_names=2)


def start() -> str:
    """Return the time to the first batch by number of samples, at the start of an epoch and after a resume."""
    found: dict[str, dict[tuple[float, int], Record]] = {}
    for record in latest("start"):
        case = record["case"]
        found.setdefault(case["loader"], {})[case["resumed_share"], case["num_samples"]] = record["figures"]
    columns = sorted({column for of_loader in found.values() for column in of_loader})
    titles = [f"{short_count(num)}, resumed at {share:.0%}" if share else short_count(num) for share, num in columns]
    rows = [
        [loader, *(format_seconds(of_loader[column]["first_batch_seconds"]) for column in columns)]
        for loader, of_loader in found.items()
    ]
    return markdown(["number of samples", *titles], rows)


def arrays() -> str:
    """Return the rate of each loader of small arrays, and the CPU time that a sample takes in all its processes."""
    able, failed = [], []
    for record in latest("arrays", "contestant"):
        case, figures = record["case"], record["figures"]
        if "failed" in figures:
            failed.append([case["contestant"], "-", "-", "-", figures["failed"]])
        else:
            able.append((median(figures["samples_per_second"]), case, figures))
    rows = [
        [
            case["contestant"],
            with_spread(figures["samples_per_second"]),
            f"{median(figures['cpu_us_per_sample']):.2f}",
            str(case["num_workers"]),
            case["note"],
        ]
        for _, case, figures in sorted(able, key=lambda each: -each[0])
    ]
    table = markdown(["arrays of 32 x 32 x 3", "samples/s", "CPU µs a sample", "workers", "notes"], rows + failed)
    return table.replace("---: |\n", "--- |\n", 1)  # the last column holds text


def small() -> str:
    """Return the rate of each loader of short lines, and the CPU time that a line takes in all its processes."""
    found = [(record["case"], record["figures"]) for record in latest("small", "contestant")]
    rows = [
        [
            case["contestant"],
            with_spread(figures["samples_per_second"]),
            f"{median(figures['cpu_us_per_sample']):.2f}",
        ]
        for case, figures in sorted(found, key=lambda each: -median(each[1]["samples_per_second"]))
    ]
    return markdown(["lines of 100 bytes", "samples/s", "CPU µs a sample"], rows)


def typed() -> str:
    """Return the rate of each loader of images, masks and boxes, and its ratio to mpload with images alone."""
    found = [(record["case"], record["figures"]) for record in latest("typed", "contestant")]
    rows = [
        [
            case["contestant"],
            with_spread(figures["samples_per_second"]),
            f"{median(figures['ratio_to_images']):.2f}",
            f"{median(figures['cpu_us_per_sample']):,.0f}",
            str(case["num_workers"]),
        ]
        for case, figures in sorted(found, key=lambda each: -median(each[1]["samples_per_second"]))
    ]
    return markdown(["images of 500 x 375", "samples/s", "ratio to images alone", "CPU µs a sample", "workers"], rows)


def views() -> str:
    """Return the rate and CPU time of each way to make several crops of one image."""
    found = [(record["case"], record["figures"]) for record in latest("views", "contestant")]
    rows = rates_and_costs(sorted(found, key=lambda each: -median(each[1]["samples_per_second"])))
    return markdown(["photographs of about 500 x 375", "samples/s", "CPU µs a sample"], rows)


def collate() -> str:
    """Return the rate of each way to make batches of images that differ in size, and what it takes of the training."""
    found = [(record["case"], record["figures"]) for record in latest("collate", "contestant")]
    rows = [
        [
            case["contestant"],
            with_spread(figures["samples_per_second"]),
            f"{median(figures['training_process_cpu_ms_per_batch']):.1f}",
            f"{median(figures['cpu_us_per_sample']):,.0f}",
        ]
        for case, figures in sorted(found, key=lambda each: median(each[1]["training_process_cpu_ms_per_batch"]))
    ]
    return markdown(["batches of 64 images", "images/s", "training process: CPU ms a batch", "CPU µs an image"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "accuracy": lambda: markdown(ACCURACY_HEADER, accuracy_rows(), num_names=2),
    "ahead": ahead,
    "arrays": arrays,
    "auto": lambda: markdown(auto_header(), auto_rows()),
    "batch-sizes": batch_sizes,
    "cache-machines": lambda: markdown(CACHE_MACHINES_HEADER, cache_machine_rows()),
    "collate": collate,
    "cores": lambda: markdown(core_header(), core_rows()),
    "gpu-ahead": device_ahead_by_peer,
    "gpu-decoders": lambda: markdown(DECODERS_HEADER, decoder_rows()),
    "gpu-copies": lambda: markdown(COPY_HEADER, copy_rows()),
    "gpu-hidden": hidden_sentence,
    "gpu-machine": machine_sentence,
    "gpu-race": lambda: markdown(RACE_HEADER, race_rows()),
    "gpu-received": lambda: markdown(RECEIVED_HEADER, received_rows()),
    "gpu-short": lambda: markdown(short_header(), short_rows()),
    "gpu-steps": lambda: markdown(step_header(), step_rows(), num_names=2),
    "gpu-summary": readme_sentence,
    "receiving": lambda: markdown(RECEIVING_HEADER, receiving_rows()),
    "servers": lambda: markdown(SERVERS_HEADER, server_rows()),
    "simulation": lambda: markdown(SIMULATION_HEADER, simulation_rows(), num_names=6),
    "dlio": lambda: markdown(DLIO_HEADER, dlio_rows(), num_names=2),
    "doctor": lambda: markdown(DOCTOR_HEADER, doctor_rows(), num_names=3),
    "faults": lambda: markdown(FAULT_HEADER, fault_rows(), num_names=3),
    "leaders": lambda: race_table("leaders"),  # the longer race among the fastest contestants
    "limited-memory": lambda: markdown(LIMITED_HEADER, limited_rows()),
    "memory": memory,
    "mixtures": lambda: markdown(MIXTURE_HEADER, mixture_rows()),
    "network": lambda: markdown(network_header(), network_rows()),
    "map-style": lambda: markdown(MAP_STYLE_HEADER, map_style_rows(), num_names=2),
    "own-code": lambda: markdown(OWN_CODE_HEADER, own_code_rows(), num_names=3),
    "parts": lambda: markdown(PARTS_HEADER, parts_rows()),
    "peer-memory": peer_memory,
    "repeated": repeated,
    "small": small,
    "start": start,
    "summary": summary,
    "throughput": lambda: race_table("peers"),
    "typed": typed,
    "views": views,
}


def rewritten(page: Path) -> str:
    """Return the text of `page` with every table regenerated."""

    def table(place: re.Match[str]) -> str:
        if place[2] not in TABLES:
            raise SystemExit(f"{page}: no function makes the table {place[2]!r}. Add one to TABLES in {__file__}")
        return f"{place[1]}\n{TABLES[place[2]]()}\n{place[3]}"

    return PLACE.sub(table, page.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs from the records")
    arguments = parser.parse_args()
    pages = {page: rewritten(page) for page in [*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")]}
    stale = [page for page, text in pages.items() if page.read_text(encoding="utf-8") != text]
    if not arguments.check:
        for page in stale:
            page.write_text(pages[page], encoding="utf-8")
        draw_memory(memory_results(), RECORDS / "memory.png")
        (hits,) = (record["figures"] for record in latest("cache", "measure") if record["case"]["measure"] == "hits")
        draw_hits(hits, RECORDS / "cache.png")
        draw_accuracy(RECORDS / "accuracy.png")
    elif stale:
        names = ", ".join(str(page.relative_to(ROOT)) for page in stale)
        sys.exit(f"{names}: not what the records say. Run: python benchmarks/report.py")


if __name__ == "__main__":
    main()
