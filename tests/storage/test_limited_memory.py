"""A job whose data does not fit into its memory reads each byte of its shards about once."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mpload import BlockShuffle
from mpload.units import KIB, MIB
from tests.support.limited_disk import CannotLimitError, DiskLimits, LimitedDisk, limited_disk
from tests.support.programs import run_script

pytestmark = [pytest.mark.slow, pytest.mark.processes]

SAMPLE_BYTES = 24 * KIB + 100  # so that neighbours share pages
NUM_SAMPLES = 16_000
MEMORY_BYTES = 480 * MIB  # the program itself uses about 300 MB

EPOCH = """
import hashlib, sys
import mpload

blocks = mpload.BlockShuffle(block_samples=256, window_blocks=8)
dataset = mpload.MPDataset(
    sys.argv[1], decode=mpload.RawBytes(), batch_size=64, tail="ragged", shuffle=blocks, topology=mpload.Topology()
)
digest = hashlib.blake2b()
with mpload.MPLoader(dataset, num_workers=2) as loader:
    for samples, _ in loader:
        for sample in samples:
            digest.update(sample)
print(digest.hexdigest())
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LimitedDisk]:
    limits = DiskLimits(reads_per_second=5000, bytes_per_second=150 * MIB, memory_bytes=MEMORY_BYTES)
    try:
        with limited_disk(tmp_path, NUM_SAMPLES * SAMPLE_BYTES + 64 * MIB, limits) as found:
            yield found
    except CannotLimitError as error:
        pytest.skip(str(error))


def test_shards_in_blocks_are_read_once_under_a_memory_limit(disk: LimitedDisk) -> None:
    noise = np.random.default_rng(0).bytes(SAMPLE_BYTES + NUM_SAMPLES)
    with (disk.folder / "shard").open("wb") as shard:
        for number in range(NUM_SAMPLES):
            shard.write(noise[number : number + SAMPLE_BYTES])
    lines = [f"{number * SAMPLE_BYTES}+{SAMPLE_BYTES}@shard\t{number}\n" for number in range(NUM_SAMPLES)]
    index = disk.folder / "train.txt"
    index.write_text("#mpload 1\n#columns data:span label:int\n" + "".join(lines))
    order = BlockShuffle(block_samples=256, window_blocks=8).order(num_samples=NUM_SAMPLES, seed=0, epoch=0)
    digest = hashlib.blake2b()
    for number in order.sample_ids(np.arange(NUM_SAMPLES)).tolist():
        digest.update(noise[number : number + SAMPLE_BYTES])
    disk.empty_page_cache()
    before = disk.read_bytes
    ran = run_script(EPOCH, str(index), prefix=disk.prefix)
    assert (ran.stdout.strip(), ran.stderr) == (digest.hexdigest(), "")
    assert NUM_SAMPLES * SAMPLE_BYTES <= disk.read_bytes - before <= 1.2 * NUM_SAMPLES * SAMPLE_BYTES
