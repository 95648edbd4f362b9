"""The layout of a model's folder: its towers and heads as modules of sentence-transformers, one folder each.

`AutoModel` reads each tower, and `SentenceTransformer` or `CrossEncoder` the whole where their modules can compute
what the model does. Tensors of no module, such as codes and weights of terms, have a separate file (`storage.names`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from polyencoder.config import DenseConfig, RankerConfig, Reduction, WeightDtype
from polyencoder.modeling.families import get_family
from polyencoder.modeling.pooling import ACTIVATIONS
from polyencoder.storage.names import CONFIG, MODULE_CONFIG, MODULE_WEIGHTS, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS

Kind = Literal["Transformer", "StaticEmbedding", "Pooling", "Dense", "LayerNorm", "Normalize", "Router"]

MODULES, ROUTER = "modules.json", "router_config.json"
SENTENCE_CONFIG, LENGTHS = "config_sentence_transformers.json", "sentence_bert_config.json"

POOLINGS: Mapping[Reduction, str] = {
    "first": "cls",
    "mean": "mean",
    "max": "max",
    "weighted_mean": "weightedmean",
    "last": "lasttoken",
}
"""A reduction -> the pooling mode of sentence-transformers."""
# as older versions, text-embeddings-inference and vLLM read them
_POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_NORM_EPS = 1e-5  # of a LayerNorm of sentence-transformers

_FILES = (MODULE_CONFIG, MODULE_WEIGHTS, TOKENIZER, TOKENIZER_CONFIG, LENGTHS)
_TOP = (*_FILES, MODULES, ROUTER, SENTENCE_CONFIG, CONFIG, WEIGHTS)
_FOLDER = re.compile(r"((query|document)_)?\d+_(Transformer|StaticEmbedding|Pooling|Dense|LayerNorm|Normalize)|base")


@dataclass(frozen=True)
class Module:
    """A module: its folder, its settings by file, and the prefixes of its tensors -> their prefixes in the ranker.

    scale: the only number of `linear.weight`, in a Dense that multiplies a score.
    """

    kind: Kind
    folder: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    scale: float | None = None

    @property
    def type(self) -> str:
        return f"sentence_transformers.models.{self.kind}"

    @property
    def has_tokenizer(self) -> bool:
        return self.kind in ("Transformer", "StaticEmbedding")

    def take(self, weights: dict[str, Any]) -> dict[str, Any]:
        """Removes the module's tensors from a ranker's weights; returns them by their names in the module's file."""
        tensors = {}
        for theirs, ours in self.tensors.items():
            for name in [name for name in weights if name.startswith(ours)]:
                tensors[theirs + name.removeprefix(ours)] = weights.pop(name)
        return tensors

    def rename_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of the module's file by their names in the ranker."""
        return {
            ours + name.removeprefix(theirs): tensor
            for theirs, ours in self.tensors.items()
            for name, tensor in tensors.items()
            if name.startswith(theirs)
        }

    def move_inside(self, folder: str, *, prefix: str) -> Module:
        """The same module in a ranker that is part of another."""
        tensors = {theirs: prefix + ours for theirs, ours in self.tensors.items()}
        return replace(self, folder=f"{folder}/{self.folder}".rstrip("/"), tensors=tensors)


@dataclass(frozen=True)
class Layout:
    """The modules of a model, and the files at the top of its folder, by name, that describe the use of the modules."""

    modules: tuple[Module, ...] = ()
    files: Mapping[str, Any] = field(default_factory=dict)


def build_layout(config: RankerConfig, *, dim: int = 1, dtype: WeightDtype = "float32") -> Layout:
    """The layout of a model with this configuration.

    A backbone without a class in transformers, ConveRT's or a ParlAI encoder without a norm of embeddings, has no
    modules. Where modules cannot compute what the model does, there are no `files`: no library shall load them.

    dim, dtype: of the towers' outputs, and of the stored weights; for writing only.
    """
    if not config.backbone or config.backbone.get("embedding_norm") is False:
        return Layout()
    tower = _Towers(config, dim, dtype)
    towers = tower.build_text_layout() if get_family(config.architecture).can.has_vectors else tower.build_pair_layout()
    if config.base is None:
        return towers
    base = build_layout(config.base, dim=dim, dtype=dtype).modules
    return Layout((*towers.modules, *(module.move_inside("base", prefix="base.") for module in base)))


def list_layout_files(folder: Path) -> list[str]:
    """The files of a model, a ranker or an encoder, in a folder, by their paths in it."""
    names = [name for name in _TOP if (folder / name).is_file()]
    for subfolder in folder.iterdir() if folder.is_dir() else ():
        if _FOLDER.fullmatch(subfolder.name) and subfolder.is_dir() and not subfolder.is_symlink():
            paths = (path.relative_to(folder).as_posix() for path in subfolder.rglob("*") if path.is_file())
            names += filter(is_layout_file, paths)
    return names


def is_layout_file(name: str) -> bool:
    """Whether a model, a ranker or an encoder, has a file of this path in its folder."""
    *folders, file = name.split("/")
    return bool(_FOLDER.fullmatch(folders[0])) and file in _FILES if folders else file in _TOP


def build_tokenizer_config(*, segments: bool, **settings: Any) -> dict[str, Any]:
    """The values of tokenizer_config.json: `settings`, such as a `pad_token`, and the values of all tokenizers here."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",  # so that transformers does not rebuild it for a model family
        "model_input_names": ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **settings,
    }


@dataclass(frozen=True)
class _Towers:
    """Makes the modules of a configuration."""

    config: RankerConfig
    dim: int
    dtype: WeightDtype

    def build_text_layout(self) -> Layout:
        """The modules of a bi-, poly- or late-interaction encoder: a row of modules, or a `Router` of two rows."""
        config = self.config
        size = config.dense[-1].size if config.dense else self.dim
        shares_tower = config.share_encoders or config.foreign_dim is not None
        foreign_map = DenseConfig(size=config.foreign_dim or size, bias=False)
        foreign = () if config.foreign_dim is None else self.build_dense(size, {"foreign_map": foreign_map})
        perceptron = {
            "candidate_mlp.0": DenseConfig(size=size, activation="relu"),
            "candidate_mlp.2": DenseConfig(size=size),
        }
        mlp = self.build_dense(size, perceptron) if config.candidate_mlp else ()
        normalize = (Module("Normalize"),) if config.normalize else ()
        lengths = {"query_length": config.text.longest_context, "document_length": config.text.label_truncate}
        is_readable = config.reduction in POOLINGS and (config.reduction == "mean" or not self.is_static)
        side = "left" if config.text.truncation == "tokens" else config.text.truncation_side

        def build_tower(name: str, dense: str, lengths: Mapping[str, int], side: str) -> tuple[Module, ...]:
            return (*self.build_modules(name, lengths, side=side), *self.build_hidden(dense))

        query = build_tower("context_tower", "dense", lengths if shares_tower else _select_length(lengths), side)
        if shares_tower and not mlp:
            row = _number_folders([*query, *foreign, *normalize], root=is_readable)
            return Layout(row, self.build_files(row) if is_readable else {})
        query = _number_folders([*query, *foreign], prefix="query_")
        if shares_tower:
            document = (*query, *_number_folders(mlp, prefix="document_", start=len(query)))
        else:
            candidate = build_tower("own_candidate_tower", "own_candidate_dense", _select_length(lengths, 1), "right")
            document = _number_folders([*candidate, *mlp], prefix="document_")
        last_modules = _number_folders(normalize, start=1)
        modules = tuple({module.folder: module for module in (*query, *document, *last_modules)}.values())
        if not is_readable:
            return Layout(modules)
        routes = {"query": query, "document": document}
        router = {
            "types": {module.folder: module.type for module in (*query, *document)},
            "structure": {route: [module.folder for module in row] for route, row in routes.items()},
            "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
        }
        return Layout(modules, {ROUTER: router, **self.build_files([Module("Router"), *last_modules])})

    def build_pair_layout(self) -> Layout:
        """The modules of a cross-encoder."""
        config = self.config
        longest = config.pair_truncate or config.text.longest_context + config.text.label_truncate
        size, scale = config.dense[-1].size if config.dense else self.dim, config.output_scaling
        norms = [layer.norm_eps for layer in config.dense]
        is_readable = (
            config.reduction in POOLINGS
            and all(eps in (None, _NORM_EPS) for eps in norms)
            and not (config.residual or self.is_static or config.text.candidate_prompt)
        )
        tower = self.build_modules("tower", {"max_seq_length": longest}, side="right")
        score = self.build_dense(
            size, {"linear": DenseConfig(size=1, bias=scale == 1)}, output="scores" if scale == 1 else None
        )
        if scale != 1:  # W (s x) + b = s (W x) + b
            last = self.build_dense(1, {"linear": DenseConfig(size=1)}, output="scores")[0]
            score = (*score, replace(last, tensors={"linear.bias": "linear.bias"}, scale=scale))
            score = (replace(score[0], tensors={"linear.weight": "linear.weight"}), score[1])
        row = _number_folders([*tower, *self.build_hidden("dense"), *score], root=is_readable)
        return Layout(row, self.build_files(row, pairs=True) if is_readable else {})

    @property
    def is_static(self) -> bool:
        return bool(self.config.backbone["model_type"] == "static_embedding")

    def build_modules(self, name: str, lengths: Mapping[str, int], *, side: str) -> list[Module]:
        """A backbone and its pooling; `side`: where a text that is too long is cut."""
        if self.is_static and self.config.reduction == "mean":
            tensors = {"embedding.": f"{name}.model.embeddings."}
            return [Module("StaticEmbedding", tensors=tensors)]
        config = self.config
        longest = {"max_seq_length": max(lengths.values()), **lengths}
        limits = {"model_max_length": longest["max_seq_length"], "truncation_side": side}
        special = {"pad_token": config.text.pad_token}
        if config.text.surround:
            special |= {"cls_token": config.text.start_token, "sep_token": config.text.end_token}
        segments = (config.backbone.get("type_vocab_size") or 0) > 1
        tokenizer = build_tokenizer_config(segments=segments, **limits, **special)
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

        kind = MODEL_MAPPING_NAMES.get(config.backbone["model_type"], "")
        model_config = {"architectures": [kind], **config.backbone, "dtype": self.dtype}
        files = {MODULE_CONFIG: model_config, LENGTHS: longest, TOKENIZER_CONFIG: tokenizer}
        transformer = Module("Transformer", files=files, tensors={"": f"{name}.model."})
        mode = POOLINGS.get(config.reduction)
        if mode is None:
            return [transformer]
        keys = {key: pooling == mode for pooling, key in _POOLING_KEYS.items()}
        pooling = {"word_embedding_dimension": self.dim, **keys, "include_prompt": config.prompt_tokens is None}
        return [transformer, Module("Pooling", files={MODULE_CONFIG: pooling})]

    def build_hidden(self, name: str) -> list[Module]:
        """The modules of `RankerConfig.dense`; `name`: of the submodule with their weights (`pooling.build_dense`)."""
        modules: list[Module] = []
        size, position = self.dim, 0
        for layer in self.config.dense:
            modules += self.build_dense(size, {f"{name}.{position}": layer})
            size, position = layer.size, position + 2
            if layer.norm_eps is not None:
                files = {MODULE_CONFIG: {"dimension": size}}
                modules.append(Module("LayerNorm", files=files, tensors={"norm.": f"{name}.{position}."}))
                position += 1
        return modules

    def build_dense(
        self, size: int, layers: Mapping[str, DenseConfig], *, output: str | None = None
    ) -> tuple[Module, ...]:
        """Linear layers by the names of their weights, behind vectors of this size."""
        modules = []
        for name, layer in layers.items():
            activation = ACTIVATIONS[layer.activation]
            settings = {
                "in_features": size,
                "out_features": layer.size,
                "bias": layer.bias,
                "activation_function": f"{activation.__module__}.{activation.__name__}",
                **({} if output is None else {"module_output_name": output}),
            }
            modules.append(Module("Dense", files={MODULE_CONFIG: settings}, tensors={"linear.": f"{name}."}))
            size = layer.size
        return tuple(modules)

    def build_files(self, row: Iterable[Module], *, pairs: bool = False) -> dict[str, Any]:
        """The files that make a row of modules a `SentenceTransformer`, or for `pairs` a `CrossEncoder`."""
        text = self.config.text
        prompts = {"query": text.context_prompt, "document": text.candidate_prompt}
        settings: dict[str, Any] = {"model_type": "SentenceTransformer", "prompts": prompts}
        settings["similarity_fn_name"] = "cosine" if self.config.normalize else "dot"
        if self.config.vector_dim is not None:
            settings["truncate_dim"] = self.config.vector_dim
        if pairs:
            prompts = {"query": text.context_prompt} if text.context_prompt else {}
            settings = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
            settings |= {"prompts": prompts, "default_prompt_name": next(iter(prompts), None)}
        modules = [
            {"idx": i, "name": str(i), "path": module.folder, "type": module.type} for i, module in enumerate(row)
        ]
        return {MODULES: modules, SENTENCE_CONFIG: settings}


def _select_length(lengths: Mapping[str, int], index: int = 0) -> dict[str, int]:
    return {"max_seq_length": [*lengths.values()][index]}


def _number_folders(
    row: Iterable[Module], *, prefix: str = "", start: int = 0, root: bool = False
) -> tuple[Module, ...]:
    """Names the modules' folders; with `root`, the first module is in the model's own folder."""
    named = [replace(module, folder=f"{prefix}{i}_{module.kind}") for i, module in enumerate(row, start)]
    return tuple([replace(named[0], folder=""), *named[1:]] if root else named)
