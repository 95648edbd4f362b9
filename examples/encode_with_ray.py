"""Encode candidates on several machines with Ray Data, into files that `polyencoder index --vectors` reads.

    pip install 'ray[data]'
    python examples/encode_with_ray.py 'candidates/*.parquet' parts --model MODEL --workers 2
    polyencoder index --vectors 'parts/*.parquet' --model MODEL --out replies

Uses the cluster of RAY_ADDRESS, else processes on this machine; all of them reach the files and the model under the
same names. A worker that dies is started again, and its candidates are encoded by another.
"""

from __future__ import annotations

import argparse
import glob
import os

import pyarrow
import ray

from polyencoder import Ranker


class Encode:
    """Adds vectors to tables of candidates; each worker loads the model once."""

    def __init__(self, model: str) -> None:
        self.ranker = Ranker.load(model)

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        vectors = self.ranker.encode(batch["text"].to_pylist(), kind="candidate")
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1])
        return batch.select(["id", "text"]).append_column("vector", column)


def main(candidates: str, out: str, *, model: str, workers: int = 2, gpus: int = 0, rows: int = 4096) -> None:
    files = [os.path.abspath(path) for path in sorted(glob.glob(candidates))]
    model = os.path.abspath(model) if os.path.exists(model) else model
    if "RAY_ADDRESS" not in os.environ:
        ray.init(num_cpus=2 * workers + 2)  # the others read and write
    table = ray.data.read_parquet(files).select_columns(["id", "text"])
    encoded = table.repartition(target_num_rows_per_block=rows).map_batches(
        Encode,
        fn_constructor_args=(model,),
        batch_format="pyarrow",
        batch_size=rows,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_gpus=gpus,
    )
    encoded.write_parquet(os.path.abspath(out))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", help="Parquet files with the columns id and text")
    parser.add_argument("out", help="a folder for the Parquet files with vectors")
    parser.add_argument("--model", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=0, help="of each worker")
    parser.add_argument("--rows", type=int, default=4096, help="candidates that a worker encodes at once")
    main(**vars(parser.parse_args()))
