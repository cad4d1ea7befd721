"""Train on lines of text: each line is a span of the file, and its tokens are an array of varying length.

python examples/text.py
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import mpload


def write_index(text: Path, index: Path) -> Path:
    """Write an index of the lines of `text` as spans: OFFSET+LENGTH@PATH, in bytes. Reads one line at a time."""
    with text.open("rb") as lines, index.open("w") as out:
        out.write("#mpload 1\n#columns line:span number:int\n")
        offset_bytes = 0
        for number, line in enumerate(lines):
            out.write(f"{offset_bytes}+{len(line.rstrip())}@{text.name}\t{number}\n")
            offset_bytes += len(line)
    return index


def tokens(line: bytes) -> NDArray[np.int64]:
    """Return one token per byte, int64 [length]; the ids of a tokenizer work in the same way."""
    return np.frombuffer(line, np.uint8).astype(np.int64) + 1


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        text = Path(name, "corpus.txt")
        rng = np.random.default_rng(0)
        words = [name for name in dir(np) if name.isalpha()]
        lines = [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(2000)]
        text.write_text("\n".join(lines) + "\n")
        dataset = mpload.MPDataset(
            write_index(text, Path(name, "train.txt")), decode=tokens, batch_size=32, shuffle=True, tail="ragged"
        )
        num_tokens, read = 0, set()
        with mpload.MPLoader(dataset, num_workers=2) as loader:
            for sequences, numbers in loader:  # 32 tensors int64 [length], and int64 [32]
                padded = torch.nn.utils.rnn.pad_sequence(
                    list(sequences), batch_first=True
                )  # int64 [32, longest], padded with 0
                num_tokens += int((padded > 0).sum())
                for sequence, number in zip(padded.tolist(), numbers.tolist(), strict=True):
                    if bytes(token - 1 for token in sequence if token).decode() != lines[number]:
                        raise SystemExit(f"line {number} differs from the file")
                    read.add(number)
        if read != set(range(2000)):
            raise SystemExit(f"{len(read)} of 2000 lines were read")
        print(f"{len(read):,} lines, {num_tokens:,} tokens: every line exactly once, unchanged")


if __name__ == "__main__":
    main()
