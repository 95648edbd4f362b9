"""Saves and loads models: exported folders, and model files written by training.

A folder has the layout of sentence-transformers (`modeling.layout`), with `polyencoder.json`, `polyencoder.safetensors`
and `tokenizer.json`. A model file X, in ParlAI's layout, holds the weights with their configuration;
`X.tokenizer.json` is beside it. Neither is ever unpickled with code execution.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, get_args

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from polyencoder.checks import check_choice
from polyencoder.config import Architecture, RankerConfig, WeightDtype
from polyencoder.errors import CheckpointError, InputError, PolyencoderError, get_first_line
from polyencoder.hub.resolve import download_files, exists
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.build import SkippingInit, build_model
from polyencoder.modeling.encoder_files import ADAPTERS
from polyencoder.modeling.families import FAMILIES, check_config
from polyencoder.modeling.finite import check_finite
from polyencoder.modeling.layout import MODULES, Module, build_layout, list_layout_files
from polyencoder.storage.digests import compute_file_digest, compute_weights_fingerprint
from polyencoder.storage.files import atomic_write, reporting_write_errors
from polyencoder.storage.foreign import describe_file
from polyencoder.storage.names import CONFIG, DIGESTS, MODULE_CONFIG, MODULE_WEIGHTS, TOKENIZER, WEIGHTS
from polyencoder.storage.publish import finish_publication, is_published, publishing
from polyencoder.storage.safe_load import explain_not_loaded, load_states, read_weights
from polyencoder.text.encoder import TextEncoder, read_tokenizer

CONFIG_KEY = "ranker_config"  # where a model file keeps its configuration


def save_folder(
    folder: str | os.PathLike[str], model: RankerModel, text: TextEncoder, *, dtype: WeightDtype = "float32"
) -> None:
    """Writes a model folder. An error, an interrupt or a kill leaves either the old model or the new one."""
    with reporting_write_errors(folder, CheckpointError), publishing_folder(folder) as staging:
        write_model(staging, model, text, dtype=dtype)


def publishing_folder(
    folder: str | os.PathLike[str], *, remove: Iterable[str] = (), check: Callable[[], object] = lambda: None
) -> AbstractContextManager[Path]:
    """`publishing` of a model, which replaces a model of any layout."""
    return publishing(folder, remove=remove, replaces=list_layout_files, check=check)


def write_model(folder: Path, model: RankerModel, text: TextEncoder, *, dtype: WeightDtype = "float32") -> None:
    """Writes a model's files into a folder that `publishing` gave. OSError if it cannot be written."""
    weights, config = _collect_weights(model.merge_adapters(), dtype), model.config
    digests = {WEIGHTS: compute_weights_fingerprint(weights)}
    towers = model.towers
    arranged = build_layout(config, dim=towers[0].dim if towers else 1, dtype=dtype)
    files: dict[str, Any] = dict(arranged.files)
    tokenizer = text.format_tokenizer_json(pair_start=config.pair_start)
    for module in arranged.modules:
        inside = folder / module.folder
        inside.mkdir(parents=True, exist_ok=True)
        files |= {f"{module.folder}/{name}": content for name, content in module.files.items()}
        if module.has_tokenizer:
            (inside / TOKENIZER).write_text(tokenizer, encoding="utf-8")
        if module.tensors:
            tensors = module.take(weights)
            if module.scale is not None:
                tensors["linear.weight"] = torch.tensor([[module.scale]])
            safetensors.torch.save_file(tensors, inside / MODULE_WEIGHTS, metadata={"format": "pt"})
            digests[_get_weights_path(module)] = compute_file_digest(inside / MODULE_WEIGHTS)
    for name, content in files.items():
        (folder / name.lstrip("/")).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / TOKENIZER).write_text(tokenizer, encoding="utf-8")
    (folder / CONFIG).write_text(config.to_json(), encoding="utf-8")
    digests |= {name: compute_file_digest(folder / name) for name in (CONFIG, TOKENIZER)}
    # one key: safetensors writes several in a random order, and equal models shall be equal files
    safetensors.torch.save_file(weights, folder / WEIGHTS, metadata={DIGESTS: json.dumps(digests)})


def read_stored_weights(folder: Path, config: RankerConfig) -> dict[str, Tensor]:
    """The weights in a model folder. CheckpointError for a file that is missing or damaged."""
    weights = read_weights(folder / WEIGHTS)
    for module in build_layout(config).modules:
        if module.tensors:
            weights |= module.rename_tensors(read_weights(folder / _get_weights_path(module)))
    return weights


def _get_weights_path(module: Module) -> str:
    return f"{module.folder}/{MODULE_WEIGHTS}".lstrip("/")


def _collect_weights(model: RankerModel, dtype: WeightDtype) -> dict[str, Tensor]:
    """The model's tensors on the CPU, floating-point ones in this dtype."""
    check_choice("dtype", dtype, get_args(WeightDtype))
    if any(parameter.dtype.itemsize < 4 for parameter in model.parameters()):
        raise InputError("these weights were loaded in low precision: load the ranker without dtype to save it")
    state = model.state_dict()
    weights = {
        name: tensor.contiguous().cpu() for name, tensor in model.get_state_dict_to_save(getattr(torch, dtype)).items()
    }
    for name, tensor in weights.items():
        if not tensor.isfinite().all() and state[name].isfinite().all():
            raise CheckpointError(
                f"{name} has values up to {state[name].abs().max():.1e}, too large for "
                f"{str(tensor.dtype).removeprefix('torch.')}; use bfloat16"
            )
    return weights


def holds_ranker(name: str | os.PathLike[str]) -> bool:
    """Whether a folder, model file or hub id holds a ranker (not an encoder), readable or not."""
    if os.path.isfile(name):  # False for a name of any length
        return True
    folder = _find_described(name)
    if folder is None:
        return False
    return any((folder / file).is_file() for file in (CONFIG, WEIGHTS)) or _is_of_earlier_version(folder)


def holds_encoder(name: str | os.PathLike[str]) -> bool:
    """Whether a folder or hub id holds an encoder of transformers or sentence-transformers, or adapters of one."""
    folder = _find_described(name)
    if folder is None or holds_ranker(name):
        return False
    return "model_type" in _read_json(folder) or any((folder / file).is_file() for file in (MODULES, ADAPTERS))


def _find_described(name: str | os.PathLike[str]) -> Path | None:
    try:
        if exists(name):
            finish_publication(name)
            return Path(name)
        return download_files(name, [CONFIG, MODULE_CONFIG, MODULES, ADAPTERS])
    except (OSError, ValueError, CheckpointError):
        return None


def _is_of_earlier_version(folder: Path) -> bool:
    return not (folder / CONFIG).is_file() and _read_json(folder).get("architecture") in [
        *FAMILIES
    ]  # it may be any JSON


def _read_json(folder: Path) -> dict[str, Any]:
    """The `config.json` of a folder; empty if missing or not a JSON object."""
    try:
        config = json.loads((folder / MODULE_CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def read_architecture(name: str | os.PathLike[str]) -> Architecture | None:
    """The architecture of the ranker in a folder, model file or hub id; None if there is no readable one."""
    path = Path(name)
    try:
        if not exists(name):
            path = download_files(name, [CONFIG])
        if path.is_file():
            return read_model_file(path)[0].architecture
        return read_folder_config(path).architecture
    except (PolyencoderError, OSError):
        return None


def read_folder_config(folder: str | os.PathLike[str]) -> RankerConfig:
    """The configuration of a model folder. CheckpointError if a file is missing, or they are not of one model."""
    return _read_folder(Path(folder))[0]


def load_folder(folder: str | os.PathLike[str]) -> tuple[RankerModel, TextEncoder]:
    """Reads a model folder. CheckpointError if a file is missing or damaged, or they are not of one model."""
    source = Path(folder)
    config, tokenizer, digests = _read_folder(source)
    try:
        weights = read_stored_weights(source, config)
    except CheckpointError:
        if not _is_replaced(source, digests):
            raise
        weights = {}
    if not weights or _is_replaced(source, digests) or not tokenizer.is_file():
        return load_folder(folder)  # another process saved a model meanwhile, whose weights these may be
    return _assemble(config, weights, tokenizer, origin=str(source))


def _is_replaced(source: Path, digests: dict[str, str]) -> bool:
    return is_published(source) or bool(digests and read_digests(source / WEIGHTS) != digests)


def _read_folder(source: Path) -> tuple[RankerConfig, Path, dict[str, str]]:
    """The configuration of a model folder, its tokenizer's path, and the verified digests."""
    finish_publication(source)
    if _is_of_earlier_version(source):
        raise CheckpointError(
            f"{source}: has the layout of an earlier version, which kept a ranker's configuration in {MODULE_CONFIG}: "
            f"export it again with the last commit that has no {CONFIG}"
        )
    if missing := [name for name in (CONFIG, WEIGHTS, TOKENIZER) if not (source / name).is_file()]:
        is_other = len(missing) > 1 or (source / "onnx.json").is_file()
        what = f"; it looks like {kind}" if is_other and (kind := describe_file(source)) else ""
        raise CheckpointError(
            f"{source}: no {missing[0]} in it{what}; a model folder has {CONFIG}, {WEIGHTS} and {TOKENIZER}"
        )
    digests = read_digests(source / WEIGHTS)
    config = read_config((source / CONFIG).read_bytes(), origin=str(source / CONFIG))
    for name in (CONFIG, TOKENIZER):
        if name in digests and compute_file_digest(source / name) != digests[name]:
            if is_published(source) or read_digests(source / WEIGHTS) != digests:
                return _read_folder(source)  # another process is saving a model
            raise CheckpointError(
                f"{source / name}: not the file that was saved with {WEIGHTS}: a copy was interrupted, or it was "
                "changed since; save, export or copy the model again"
            )
    return config, source / TOKENIZER, digests


def read_config(text: str | bytes, *, origin: str) -> RankerConfig:
    """Reads and validates a configuration; ConfigError names the `origin`."""
    config = RankerConfig.from_json(text, origin=origin)
    check_config(config, origin=origin)
    return config


def read_digests(path: Path) -> dict[str, str]:
    """Reads the digests by file name in a weights file; empty for weights that another program wrote."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            written = (file.metadata() or {}).get(DIGESTS)
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged or not a safetensors file ({error})") from None
    try:
        digests = {} if written is None else json.loads(written)
    except (ValueError, RecursionError):
        digests = None
    if not isinstance(digests, dict):
        raise CheckpointError(f"{path}: its metadata `{DIGESTS}` is damaged; save or export the model again")
    return digests


def check_folder(folder: str | os.PathLike[str], *, progress: Callable[[int], object] | None = None) -> None:
    """Verifies a model folder's files by their digests. CheckpointError if a file is missing, damaged or has none."""
    source = Path(folder)
    config = read_folder_config(source)
    digests = read_digests(source / WEIGHTS)
    expected = digests.get(WEIGHTS)
    if expected is None:
        raise CheckpointError(
            f"{source / WEIGHTS}: holds no checksums: another program wrote it; write the folder again "
            "with `polyencoder export`"
        )
    modules = [_get_weights_path(module) for module in build_layout(config).modules if module.tensors]
    try:
        damaged = [
            name for name in modules if compute_file_digest(source / name, progress=progress) != digests.get(name)
        ]
    except OSError as error:
        raise CheckpointError(f"{source}: cannot be read ({get_first_line(error)})") from None
    if not damaged:
        weights = read_stored_weights(source, config)
        damaged = (
            [WEIGHTS]
            if compute_weights_fingerprint(weights, progress=None if modules else progress) != expected
            else []
        )
    if damaged:
        raise CheckpointError(
            f"{source / damaged[0]}: damaged, its checksum has changed since it was written; copy or export it again"
        )


def check_archive(path: str | os.PathLike[str], *, progress: Callable[[int], object] | None = None) -> bool:
    """Verifies the checksums of a `torch.save` file; False if it has none. Raises CheckpointError for a damaged one."""
    name = os.fspath(path)
    if not zipfile.is_zipfile(name):
        return False
    try:
        with zipfile.ZipFile(name) as archive:
            for part in archive.infolist():
                with archive.open(part) as file:
                    while chunk := file.read(1 << 20):
                        if progress is not None:
                            progress(len(chunk))
    except (zipfile.BadZipFile, OSError) as error:
        raise CheckpointError(f"{name}: damaged ({get_first_line(error)}); copy it again") from None
    return True


def read_states(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads all states (`model`, `optimizer`, ...) of a training checkpoint, memory-mapped if possible."""
    name = os.fspath(path)
    try:  # files from before torch 1.6 are no zip archives, and cannot be mapped
        states = load_states(name, mmap=zipfile.is_zipfile(name))
    except FileNotFoundError:
        raise CheckpointError(f"{name}: no such model file") from None
    except Exception as error:  # a damaged or foreign file makes the reader of pickles raise anything
        match = re.search(r"(?:GLOBAL|class) ([\w.]+\.\w+)", str(error))
        reason = (
            f"it holds a {match[1]}: save its tensors alone, if you trust it" if match else explain_not_loaded(error)
        )
        _check_kind(name)
        raise CheckpointError(f"{name}: damaged, or not a file of weights that can be read safely ({reason})") from None
    if not isinstance(states, dict) or not isinstance(states.get("model"), dict):
        _check_kind(name)
        raise CheckpointError(f"{name}: not a model file of biencoder, polyencoder or crossencoder (no `model` in it)")
    return states


def _check_kind(name: str) -> None:
    if what := describe_file(name):
        raise CheckpointError(f"{name}: looks like {what}; give a model's folder, or a model file of ParlAI")


def write_states(path: str | os.PathLike[str], states: Mapping[str, Any]) -> None:
    """Writes states for `read_states`, atomically. OSError if that fails: the old file is unchanged."""
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        try:
            torch.save(states, file)
        except RuntimeError as error:  # so torch reports what a full disk, or an interrupt, has raised in the middle
            raise (error.__context__ or error) from None


def read_model_file(path: str | os.PathLike[str]) -> tuple[RankerConfig, dict[str, Any]]:
    """Reads the configuration and all states (`model`, `optimizer`, ...) of a model file, memory-mapped."""
    name = os.fspath(path)
    states = read_states(path)
    if not isinstance(states.get(CONFIG_KEY), str):
        raise CheckpointError(
            f"{name}: not a model file of biencoder, polyencoder or crossencoder (no `{CONFIG_KEY}` in it); "
            "train one with `parlai train_model -m polyencoder -mf FILE`"
        )
    return read_config(states[CONFIG_KEY], origin=f"{name}, `{CONFIG_KEY}`"), states


def load_model_file(path: str | os.PathLike[str]) -> tuple[RankerModel, TextEncoder]:
    """Reads a model file and its tokenizer."""
    config, states = read_model_file(path)
    return _assemble(config, states["model"], Path(f"{os.fspath(path)}.{TOKENIZER}"), origin=os.fspath(path))


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, origin: str) -> None:
    """Copies weights into the model. CheckpointError: missing, unexpected, wrongly shaped or non-finite tensors."""
    check_shapes(model.state_dict(), weights, origin=origin)
    check_finite(weights.items(), origin=origin)
    model.load_state_dict(dict(weights))


def check_shapes(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, origin: str) -> None:
    """Raises CheckpointError, naming the first problem, unless the weights fit the model, by name and shape."""
    problems = [f"{name} is missing" for name in expected if name not in weights]
    problems += [f"{name} is not part of this model" for name in weights if name not in expected]
    problems += [
        f"{name} has shape {list(weights[name].shape)}, the model needs {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    problems += [
        f"{name} has numbers of the type {str(weights[name].dtype)[6:]}, the model needs {str(tensor.dtype)[6:]}"
        for name, tensor in expected.items()
        if name in weights and weights[name].is_floating_point() != tensor.is_floating_point()
    ]
    if problems:
        others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise CheckpointError(f"{origin}: the weights do not fit the model: {problems[0]}{others}")


def _assemble(
    config: RankerConfig, weights: Mapping[str, Tensor], tokenizer: Path, *, origin: str
) -> tuple[RankerModel, TextEncoder]:
    if not tokenizer.is_file():
        raise CheckpointError(f"{tokenizer}: the model's tokenizer is missing; it belongs beside {origin}")
    text = TextEncoder(read_tokenizer(tokenizer), config.text)
    with torch.device("meta"):  # shapes alone: a configuration that does not fit may be of any size
        shapes = build_model(config)
    shapes.match_quantization(weights)
    check_shapes(shapes.state_dict(), weights, origin=origin)
    with SkippingInit():
        model = build_model(config)
    model.match_quantization(weights)
    load_weights(model, weights, origin=origin)
    model.prepare_for_inference()  # a model file holds the training form of the weights
    return model.eval(), text
