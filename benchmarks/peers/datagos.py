"""datago: decodes whole files in Rust threads. It has no random crops, so OpenCV makes them, in Python threads."""

import json
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import PurePath
from typing import Any

import datago
import numpy as np
import torch

from peers.crops import channels_first, crop_pixels, finished
from peers.race import CROP, Batch, Contestant, Epoch, Output, Race

__all__ = ["CONTESTANTS"]


def start(race: Race) -> Epoch:
    if race.output is Output.BYTES or race.listing is not None:
        raise SystemExit("datago walks a folder and decodes all files in it: it delivers no bytes and accepts no list")
    os.environ["DATAGO_MAX_TASKS"] = str(max(1, race.num_workers))
    folders = {folder.name: label for label, folder in enumerate(sorted((race.data / "photos").iterdir()))}
    num_samples = sum(len(list(folder.iterdir())) for folder in (race.data / "photos").iterdir())
    options = {
        "source_type": "file",
        "source_config": {"root_path": str(race.data / "photos"), "random_sampling": True},
        "prefetch_buffer_size": 2 * race.batch_size,
        "samples_buffer_size": 2 * race.batch_size,
        "limit": num_samples,
    }
    datago.initialize_logging(log_level="warn")
    client = datago.DatagoClient(json.dumps(options))
    threads = ThreadPoolExecutor(2)
    torch.set_num_threads(1)  # per thread
    dtype = np.uint8 if race.output is Output.UINT8 else np.float32

    def make(samples: list[Any]) -> Batch:
        images, labels = np.empty((len(samples), CROP, CROP, 3), dtype), np.empty(len(samples), np.int64)
        for row, sample in enumerate(samples):
            images[row] = finished(crop_pixels(sample.image.to_numpy_array()), race.output)
            labels[row] = folders[PurePath(sample.id.strip('"')).parent.name]
        return channels_first(torch.from_numpy(images)), torch.from_numpy(labels)

    def epoch(number: int) -> Iterator[Batch]:
        if number:
            client.start()
        samples = iter(client.get_sample, None)
        ahead: deque[Future[Batch]] = deque()
        while taken := list(islice(samples, race.batch_size)):
            ahead.append(threads.submit(make, taken))
            if len(ahead) > 2:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    return epoch


CONTESTANTS: dict[str, Contestant] = {"datago, OpenCV": Contestant(start=start, library="datago")}
