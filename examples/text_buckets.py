"""Train on texts of very different lengths with hardly any padding: each batch has texts of similar length.

python examples/text_buckets.py
"""

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import mpload


def write_corpus(folder: Path, num_texts: int) -> Path:
    """Write texts of log-normal lengths to one file, and an index with the span and the length of each."""
    lengths = np.random.default_rng(0).lognormal(5, 0.6, num_texts).astype(int) + 1
    (folder / "corpus.bin").write_bytes(b"".join(bytes([97 + number % 26]) * n for number, n in enumerate(lengths)))
    starts = np.cumsum(lengths) - lengths
    lines = (
        f"{start}+{length}@corpus.bin\t{length}\n"
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    )
    index = folder / "train.txt"
    index.write_text("#mpload 1\n#columns text:span length:int\n" + "".join(lines))
    return index


def tokens(text: bytes) -> NDArray[np.int64]:
    """Return one token per byte, int64 [length]; the ids of a tokenizer work in the same way."""
    return np.frombuffer(text, np.uint8).astype(np.int64)


def share_of_padding(index: Path, buckets: mpload.Buckets | None, batch_size: int | None) -> float:
    """Return the share of padding in the batches of an epoch."""
    dataset = mpload.MPDataset(
        index,
        decode=tokens,
        collate=mpload.Pad(0),
        batch_size=batch_size,
        shuffle=True,
        tail="ragged",
        buckets=buckets,
    )
    num_tokens = num_padded = 0
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for batch, lengths in loader:  # int64 [B, longest], and int64 [B]
            num_tokens += int(lengths.sum())
            num_padded += batch.numel()
            if int((batch > 0).sum()) != int(lengths.sum()):
                raise SystemExit("a batch does not contain its texts")
    return 1 - num_tokens / num_padded


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        index = write_corpus(Path(name), 4000)
        print(f"padding without buckets: {share_of_padding(index, None, 32):.1%}")
        buckets = mpload.Buckets(by="length", num_buckets=32)
        print(f"padding with 32 buckets: {share_of_padding(index, buckets, 32):.1%}")
        buckets = mpload.Buckets(by="length", num_buckets=32, max_cost=8192)
        print(f"padding with batches of up to 8,192 tokens: {share_of_padding(index, buckets, None):.1%}")


if __name__ == "__main__":
    main()
