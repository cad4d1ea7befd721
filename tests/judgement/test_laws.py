"""Laws of the judgement that hold for any facts."""

import ast
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpload
from mpload.judgement import remedies as remedies_module
from mpload.judgement.facts import (
    Cost,
    Facts,
    ReadRate,
    StorageSpeed,
)
from mpload.judgement.model import Part, costs_of_worker, hit_share, predict
from mpload.judgement.remedies import remedies
from mpload.judgement.verdict import judge
from mpload.judgement.words import Bottleneck
from tests.support.judged import findings, rates


@given(findings())
def test_any_findings_have_a_verdict_and_a_remedy_gains_no_more_than_the_need(found: Facts) -> None:
    verdict = judge(found)
    for sentence in (verdict.headline, verdict.reason, *verdict.next_step.removesuffix(".").splitlines()):
        assert re.fullmatch(r"[A-Z0-9].*[^.]", sentence, re.DOTALL)
        assert not re.search(r"(?<![.,\d])\b1 \w+s\b(?<!us)(?<!ms)(?!/s)", sentence), sentence  # but "2.1 times"
    need = found.job.needed_rate
    advice = remedies(found, verdict)
    assert (verdict.bottleneck is Bottleneck.CONSUMER) == (verdict.samples_per_second >= need)
    assert (verdict.bottleneck is Bottleneck.OPEN) == (
        found.job.step_seconds is None and verdict.samples_per_second > 0
    )
    if verdict.bottleneck is Bottleneck.CONSUMER:
        assert advice == []
    elif verdict.samples_per_second:
        assert all(1.1 <= remedy.gain <= need / verdict.samples_per_second * (1 + 1e-9) for remedy in advice)
        assert all(remedy.gain < math.inf for remedy in advice)
    else:
        assert verdict.bottleneck in {Bottleneck.MEMORY, Bottleneck.DESCRIPTORS}
        assert advice
    for stage in verdict.stages:
        assert stage.share is None or 0 <= stage.share <= 1


@given(findings(), st.integers(1, 16))
def test_more_of_anything_never_makes_a_job_slower(found: Facts, more: int) -> None:
    found = replace(found, trials=())
    before = predict(found).total
    environment = replace(found.environment, usable_cores=(found.environment.usable_cores or 1) + more)
    assert predict(replace(found, environment=environment)).total >= before * (1 - 1e-9)
    faster = replace(
        found.storage,
        rates=tuple(replace(rate, samples_per_second=rate.samples_per_second * more) for rate in found.storage.rates),
    )
    assert predict(replace(found, storage=faster)).total >= before * (1 - 1e-9)
    assert predict(replace(found, transform=Cost())).total >= before * (1 - 1e-9)
    assert predict(replace(found, kept_share=0.5)).total >= before * (1 - 1e-9)
    # In little memory, workers displace the page cache.
    roomy = replace(found, environment=replace(found.environment, memory_free_bytes=1 << 60))
    job = replace(
        found.job, num_workers=(found.job.num_workers or 1) + more
    )  # in little memory, they displace the cache
    assert predict(replace(roomy, job=job)).total >= predict(roomy).total * (1 - 1e-9)


@given(st.lists(rates, min_size=1), st.lists(st.floats(0.1, 100), min_size=2))
def test_storage_is_not_slower_with_more_readers(measured: list[ReadRate], concurrencies: list[float]) -> None:
    storage = StorageSpeed(rates=tuple(measured), read=Cost())
    first = measured[0]
    given = [
        storage.rate(first.temperature, number, is_sequential=first.is_sequential) or 0.0
        for number in sorted(concurrencies)
    ]
    assert all(rate <= more * (1 + 1e-9) for rate, more in pairwise(given))
    assert (storage.rate(first.temperature, 16, is_sequential=first.is_sequential) or 0.0) >= first.samples_per_second


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8, 0.95])
def test_the_hit_rate_of_the_page_cache_equals_a_simulated_one(share: float) -> None:
    num, rng = 4000, np.random.default_rng(0)
    last = np.argsort(rng.permutation(num))  # the position of each sample in the previous epoch
    hits = 0.0
    this = rng.permutation(num)
    before = last[this]
    for place in range(0, num, 7):
        later = int(np.count_nonzero(last > before[place]))
        sooner = int(np.count_nonzero(before[:place] < before[place]))  # read in this epoch, not counted before
        hits += later + sooner < share * num
    assert hits / len(range(0, num, 7)) == pytest.approx(hit_share(share), abs=0.05)
    assert (hit_share(0.0), hit_share(1.0), hit_share(2.0)) == (0, 1, 1)


@given(findings(), st.integers(2, 16))
def test_a_remedy_of_a_part_that_does_not_limit_predicts_no_gain(found: Facts, factor: int) -> None:
    rates = predict(found)
    spare = rates.without(rates.limit) * (1 - 1e-9)
    if rates.limit not in {Part.CORES, Part.WORKERS} and spare > rates.total:
        cores = replace(found.environment, usable_cores=(found.environment.usable_cores or 1) * factor)
        assert predict(replace(found, environment=cores)).total == rates.total
        assert not any("cores" in remedy.text for remedy in remedies(found, judge(found)) if "machine" in remedy.text)
    if rates.limit not in {Part.READS, Part.BANDWIDTH} and found.storage.reads_per_worker > 1:
        verdict = judge(found)
        texts = [remedy.text for remedy in remedies(found, verdict) if verdict.samples_per_second]
        assert not any("Cache " in text for text in texts)


@given(findings())
def test_the_limit_is_the_part_with_the_least_capacity(found: Facts) -> None:
    rates = predict(found)
    assert rates.total == min(float(getattr(rates, part)) for part in Part)
    costs = costs_of_worker(found)
    verdict = judge(found)
    if verdict.bottleneck in {Bottleneck.TRANSFORM, Bottleneck.DECODE}:
        assert costs[verdict.stage].seconds == max(cost.seconds for cost in costs.values())


_TOOLS = ("tools/doctor", "tools/trials.py", "tools/running.py", "loader/advice.py", "telemetry")
_COMMANDS = tuple(f"cli/{name}.py" for name in ("doctor", "plan", "top", "verdicts"))


@pytest.mark.parametrize("place", [*_TOOLS, *_COMMANDS])
def test_remedies_are_worded_in_the_judgement_alone(place: str) -> None:
    path = Path(mpload.__file__).parent / place
    for file in path.rglob("*.py") if path.is_dir() else [path]:
        assert not re.search(r"--resize-short|BlockShuffle\(|PartialCache\(|machine with|num_workers=\{", _code(file))


def _code(path: Path) -> str:
    """Return the text of a module's strings, without docstrings."""
    tree = ast.parse(path.read_text())
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docs = {ast.get_docstring(node, clean=False) for node in documented}
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(value for value in values if value not in docs)


def test_the_order_that_remedies_suggest_can_be_made() -> None:
    order = remedies_module._BLOCKS.removeprefix("shuffle=")
    assert isinstance(eval(order, {"BlockShuffle": mpload.BlockShuffle}), mpload.BlockShuffle)
