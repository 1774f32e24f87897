"""The same rows in another library's format, written and read; run by the Python of its virtual environment.

    python loader_peers.py streaming|litdata write|read FOLDER

`FOLDER/rows.npz` holds the rows. Prints one JSON object.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from packing import Arrays, packed_tokens_per_s


def rows_of(folder: Path) -> Iterator[Arrays]:
    """What was left for us."""
    with np.load(folder / "rows.npz") as held:
        bounds = held["bounds"].tolist()
        ids, logprobs, reasons = held["ids"], held["logprobs"], held["reasons"]
    for begin, end in itertools.pairwise(bounds):
        yield ids[begin:end], logprobs[begin:end], reasons[begin:end]


def write_streaming(folder: Path) -> None:
    """MosaicML's MDS, with zstd as its own documents do."""
    from streaming import MDSWriter

    columns = {"ids": "ndarray:int32", "logprobs": "ndarray:float32", "reasons": "ndarray:uint8"}
    with MDSWriter(out=str(folder / "mds"), columns=columns) as out:
        for ids, logprobs, reasons in rows_of(folder):
            out.write({"ids": ids, "logprobs": logprobs, "reasons": reasons})


def read_streaming(folder: Path) -> Iterator[Arrays]:
    from streaming import StreamingDataset

    for row in StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=1):
        yield row["ids"], row["logprobs"], row["reasons"]


def _row(row: Arrays) -> dict[str, Any]:
    return dict(zip(("ids", "logprobs", "reasons"), row, strict=True))


def write_litdata(folder: Path) -> None:
    from litdata import optimize

    optimize(
        fn=_row,
        inputs=list(rows_of(folder)),
        output_dir=str(folder / "litdata"),
        chunk_bytes="64MB",
        num_workers=1,
    )


def read_litdata(folder: Path) -> Iterator[Arrays]:
    from litdata import StreamingDataset

    for row in StreamingDataset(str(folder / "litdata"), shuffle=True):
        yield row["ids"], row["logprobs"], row["reasons"]


WRITERS: dict[str, Callable[[Path], None]] = {"streaming": write_streaming, "litdata": write_litdata}
READERS: dict[str, Callable[[Path], Iterator[Arrays]]] = {
    "streaming": read_streaming,
    "litdata": read_litdata,
}


def main() -> None:
    peer, what, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if what == "write":
        WRITERS[peer](folder)
        print(json.dumps({}))
    else:
        print(json.dumps({"tokens_per_s": round(packed_tokens_per_s(READERS[peer](folder)))}))


if __name__ == "__main__":
    main()
