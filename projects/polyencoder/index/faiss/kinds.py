"""Kinds of FAISS indexes: defaults for a number of vectors, and parsing of `"hnsw,m=16"`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from polyencoder.errors import ConfigError
from polyencoder.index.vectors import VectorDtype

Parameters = dict[str, int | str]

_LISTS = ("nlist", "nprobe", "training_rows")
KINDS = {
    "hnsw": ("m", "ef_construction", "ef_search", "storage"),
    "ivf-flat": (*_LISTS, "storage"),
    "ivf-pq": (*_LISTS, "pq_m", "pq_bits"),
}
"""Each kind and its parameters; see `build_faiss`."""

_STORAGES = {"float32": "Flat", "float16": "SQfp16"}  # storage of vectors -> FAISS's name
_MINIMA = {"m": 2}  # FAISS crashes with a graph of one neighbour
_MAXIMA = {"m": 2048, "pq_bits": 16}  # memory grows with the neighbours of each node, and with 2^bits centroids
_MAX_INTEGER = (1 << 31) - 1  # FAISS's integers
_PQ_FROM = 4_000_000  # a graph and fp32 vectors of this many take more memory than most machines have
_TRAINING_PER_LIST = 64
_ROWS_PER_CENTROID = 39  # FAISS complains about fewer


def parse_faiss(text: str) -> tuple[str, Parameters]:
    """A kind and its parameters: `"hnsw,m=16"` is "hnsw" and {"m": 16}. ConfigError for bad ones, or without FAISS."""
    from polyencoder.index.faiss.library import import_faiss  # here: a description needs no FAISS

    import_faiss()
    kind, *settings = text.split(",")
    parameters: Parameters = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(
                f"faiss is {text!r}; {setting!r} must be NAME=VALUE, as in hnsw,m=16,ef_search=256", argument="faiss"
            )
        if name in parameters:
            raise ConfigError(f"faiss is {text!r}; {name} is given twice", argument="faiss")
        parameters[name] = int(value) if value.isdecimal() and len(value) < 20 else value
    check_parameters(kind, parameters)
    return kind, parameters


def choose(kind: str, overrides: Parameters, *, rows: int, dim: int, dtype: VectorDtype) -> tuple[str, Parameters]:
    """The kind for `rows` vectors, with parameters as given or by their number. ConfigError for what does not fit."""
    check_parameters(kind, overrides, dim=dim)
    if kind == "auto":
        kind = "hnsw" if rows < _PQ_FROM else "ivf-pq"
    parameters = _choose_defaults(kind, rows=rows, dim=dim, dtype=dtype, nlist=overrides.get("nlist")) | overrides
    trained = min(rows, int(parameters.get("training_rows", rows)))
    needed = {"nlist": int(parameters.get("nlist", 1)), "pq_bits": 1 << int(parameters.get("pq_bits", 0))}
    for name, centroids in needed.items():
        if centroids > trained:
            raise ConfigError(
                f"{name} is {parameters[name]}, which takes {centroids} rows to train, and there are {trained}",
                argument="faiss",
            )
    return kind, parameters


def write_recipe(kind: str, parameters: Mapping[str, int | str]) -> str:
    """The index as a description for `faiss.index_factory`."""
    if kind == "ivf-pq":
        # Tables in registers: a third of the time of other bits. The codes are of residuals (r), as with other bits.
        fast = "fsr" if parameters["pq_bits"] == 4 else ""
        return f"IVF{parameters['nlist']},PQ{parameters['pq_m']}x{parameters['pq_bits']}{fast}"
    storage = _STORAGES[str(parameters["storage"])]
    return f"HNSW{parameters['m']},{storage}" if kind == "hnsw" else f"IVF{parameters['nlist']},{storage}"


def check_parameters(kind: str, parameters: Parameters, *, dim: int | None = None) -> None:
    """Raises ConfigError for an unknown kind or parameter, or a value that is not valid, perhaps for this `dim`."""
    if kind == "auto":
        if parameters:
            raise ConfigError(
                f"auto chooses {', '.join(parameters)} too; name the kind, one of {', '.join(KINDS)}", argument="faiss"
            )
        return
    if kind not in KINDS:
        must = f"it must be auto or one of {', '.join(KINDS)}"
        must = "leave it out: an index without FAISS compares everything" if kind == "flat" else must
        raise ConfigError(f"the kind of FAISS index is {kind!r}; {must}", argument="faiss")
    for name, value in parameters.items():
        if name not in KINDS[kind]:
            raise ConfigError(
                f"a {kind} index has no parameter {name!r}; it has {', '.join(sorted(KINDS[kind]))}", argument="faiss"
            )
        if name == "storage":
            if value not in _STORAGES:
                raise ConfigError(f"storage must be one of {', '.join(_STORAGES)}; got {value!r}")
        else:
            lowest, highest = _MINIMA.get(name, 1), _MAXIMA.get(name, _MAX_INTEGER)
            if not isinstance(value, int) or not lowest <= value <= highest:
                raise ConfigError(f"{name} must be a whole number from {lowest} to {highest}, got {value!r:.60}")
            if name == "pq_m" and dim is not None and dim % value:
                raise ConfigError(f"pq_m must divide the vectors' dimension, {dim}; got {value}", argument="faiss")


def _choose_defaults(kind: str, *, rows: int, dim: int, dtype: VectorDtype, nlist: int | str | None) -> Parameters:
    """The defaults for a number of vectors and, if given, of lists."""
    parameters: Parameters = {}
    if kind == "hnsw":
        parameters |= {"m": 32, "ef_construction": 100, "ef_search": 512}
    if kind.startswith("ivf"):
        suggested = 1 << round(math.log2(4 * math.sqrt(rows)))
        lists = int(nlist or max(1, min(suggested, rows // _ROWS_PER_CENTROID)))
        parameters |= {"nlist": lists, "nprobe": max(1, lists // 8)}
        parameters["training_rows"] = min(rows, max(_TRAINING_PER_LIST * lists, 1 << 16))
    if kind == "ivf-pq":
        pq_m = next(m for m in range(max(1, dim // 8), 0, -1) if dim % m == 0)
        bits = max(1, min(8, int(math.log2(max(2, rows // _ROWS_PER_CENTROID)))))
        parameters |= {"pq_m": pq_m, "pq_bits": bits}
    else:
        parameters["storage"] = "float32" if dtype == "float32" else "float16"
    return parameters
