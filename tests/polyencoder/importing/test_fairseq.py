"""fairseq's RoBERTa: files in its layouts, made here from random weights, against the Hugging Face model of these."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest
import regex
import torch
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer, RobertaConfig, RobertaModel

from polyencoder.config import TextConfig
from polyencoder.errors import CheckpointError
from polyencoder.importing.fairseq import import_fairseq
from polyencoder.importing.fairseq_encodings import Gpt2
from polyencoder.modeling.encoder_config import get_max_length
from polyencoder.modeling.loading import load_pretrained, load_tokenizer
from polyencoder.text import TextEncoder
from tests.parameters import mostly_long

DIM, N_HEADS, N_LAYERS, N_POSITIONS = 16, 2, 2, 34
UNSEEN = 3  # tokens of GPT-2's encoding that are not in the dictionary
TO_FAIRSEQ = {
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.position_embeddings": "embed_positions",
    "embeddings.LayerNorm": "emb_layer_norm",
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
ARGS = Namespace(
    arch="roberta_base",
    encoder_layers=N_LAYERS,
    encoder_attention_heads=N_HEADS,
    activation_fn="gelu",
    dropout=0.2,
    attention_dropout=0.0,
    data="/somewhere",
)
WITH_MASK = 1


@pytest.fixture(scope="module")
def bpe(tokenizer) -> tuple[dict[str, int], list[list[str]]]:
    """A small `encoder.json` and the merges of a `vocab.bpe`: a byte-level encoding trained on the sentences."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = [token for token in model["vocab"] if token not in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")]
    return {token: number for number, token in enumerate(tokens)}, model["merges"]


@pytest.fixture(scope="module")
def symbols(bpe) -> list[str]:
    """What `dict.txt` lists: numbers of tokens, in another order, three merged ones of them not there, and a filler."""
    numbers = [str(number) for number in bpe[0].values()]
    del numbers[-UNSEEN:]
    return [*numbers[::-1], "madeupword0000"]


@pytest.fixture
def files(tmp_path, bpe, symbols) -> dict:
    """The arguments of `import_fairseq` but for the checkpoint."""
    encoder, merges = bpe
    (tmp_path / "encoder.json").write_text(json.dumps(encoder))
    (tmp_path / "vocab.bpe").write_text("\n".join(["#version: 0.2", *map(" ".join, merges)]) + "\n", encoding="utf-8")
    (tmp_path / "dict.txt").write_text("".join(f"{symbol} 7\n" for symbol in symbols))
    return {
        "dictionary": tmp_path / "dict.txt",
        "encoding": Gpt2(tmp_path / "encoder.json", tmp_path / "vocab.bpe"),
        "out": tmp_path / "out",
    }


@pytest.fixture(scope="module")
def roberta(symbols) -> RobertaModel:
    config = RobertaConfig(
        vocab_size=4 + len(symbols) + WITH_MASK,
        hidden_size=DIM,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        intermediate_size=24,
        max_position_embeddings=N_POSITIONS,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        initializer_range=0.5,  # sharp attention: nothing that is wrong remains small
        pad_token_id=1,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        model = RobertaModel(config, add_pooling_layer=False).eval()
        for name, weight in model.named_parameters():
            if "LayerNorm" in name or "bias" in name:
                weight.add_(torch.randn_like(weight) * 0.2)
        model.embeddings.token_type_embeddings.weight.zero_()  # fairseq has none
    return model


def state_of(model, *, prefix="decoder.sentence_encoder.", fused=False, new_names=False):
    """The model's weights as fairseq saves them, heads and all."""
    state = {}
    for name, tensor in model.state_dict().items():
        if "token_type" in name:
            continue
        name = name.replace("encoder.layer.", "layers.")
        theirs = max((ours for ours in TO_FAIRSEQ if f"{ours}." in name), key=len)  # the most exact of them
        state[prefix + name.replace(theirs, TO_FAIRSEQ[theirs])] = tensor.clone()
    if fused:
        for i in range(N_LAYERS):
            for kind in ("weight", "bias"):
                parts = [state.pop(f"{prefix}layers.{i}.self_attn.{letter}_proj.{kind}") for letter in "qkv"]
                state[f"{prefix}layers.{i}.self_attn.in_proj_{kind}"] = torch.cat(parts)
    if new_names:
        state = {name.replace("emb_layer_norm", "layernorm_embedding"): tensor for name, tensor in state.items()}
        state[f"{prefix}version"] = torch.tensor([3.0])
    root = prefix.removesuffix("sentence_encoder.")
    state[f"{root}lm_head.weight"] = state[f"{prefix}embed_tokens.weight"]
    state[f"{root}lm_head.dense.bias"] = torch.zeros(DIM)
    state["classification_heads.mnli.out_proj.bias"] = torch.zeros(3)
    return state


@pytest.fixture
def checkpoint(tmp_path, roberta):
    """(state=None, legacy=False, **states) -> the path of a checkpoint, with old options unless others are given."""

    def make(state=None, *, legacy=False, **states):
        path = tmp_path / "model.pt"
        states = {"model": state_of(roberta) if state is None else state} | (states or {"args": ARGS})
        torch.save(states, path, _use_new_zipfile_serialization=not legacy)
        return path

    return make


@pytest.fixture
def sequences(padded, symbols):
    """A padded batch of random tokens between <s> and </s>."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, 4 + len(symbols), (n,), generator=generator).tolist() for n in (1, 9, 4, 30)]
    return padded([[0, *row, 2] for row in rows], pad_id=1)


LAYOUTS = {
    "old, fused": {"prefix": "decoder.sentence_encoder.", "fused": True},
    "old, separate": {"prefix": "decoder.sentence_encoder."},
    "new": {"prefix": "encoder.sentence_encoder.", "new_names": True},
    "bare": {"prefix": "sentence_encoder."},
}


@mostly_long("layout", LAYOUTS, quick=2)
@torch.no_grad()
def test_outputs_are_those_of_the_same_roberta(checkpoint, files, roberta, sequences, layout):
    import_fairseq(checkpoint(state_of(roberta, **LAYOUTS[layout])), **files)
    expected = roberta(input_ids=sequences.ids, attention_mask=sequences.mask.long()).last_hidden_state[sequences.mask]
    ours = load_pretrained(files["out"]).eval()
    torch.testing.assert_close(ours(sequences)[sequences.mask], expected, rtol=0, atol=1e-5)
    plain = AutoModel.from_pretrained(files["out"]).eval()
    outputs = plain(input_ids=sequences.ids, attention_mask=sequences.mask.long()).last_hidden_state
    torch.testing.assert_close(outputs[sequences.mask], expected, rtol=0, atol=1e-5)


def test_the_configuration_is_the_checkpoints(checkpoint, files):
    import_fairseq(checkpoint(legacy=True), **files)
    config = AutoModel.from_pretrained(files["out"]).config
    assert (config.model_type, config.hidden_dropout_prob, config.attention_probs_dropout_prob) == ("roberta", 0.2, 0.0)
    assert get_max_length(config.to_dict()) == N_POSITIONS - 2
    assert (config.pad_token_id, config.layer_norm_eps, config.architectures) == (1, 1e-5, ["RobertaModel"])
    assert sorted(path.name for path in files["out"].iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@pytest.mark.parametrize("model", [ARGS, vars(ARGS)], ids=["namespace", "dictionary"])
def test_newer_options_are_read_from_cfg(checkpoint, files, model):
    import_fairseq(checkpoint(args=None, cfg={"model": model, "task": {"data": "x"}}), **files)
    assert load_pretrained(files["out"]).model.config.num_attention_heads == N_HEADS


class TestTokenizer:
    """Against a direct implementation of GPT-2's encoding and of fairseq's look-up."""

    TEXTS = (
        "hello , how are you?",
        " i'm a teacher",
        "unseen words: zebra99  xylophone",
        "\u03a9mega \n\ttab",
        "living",
        "",
    )

    @staticmethod
    def expected_ids(text, *, encoder, merges, symbols):
        pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
        letters = {byte: chr(byte) for byte in visible}
        letters |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in visible)}
        ids = []
        for word in regex.findall(pattern, text):
            parts = [letters[byte] for byte in word.encode()]
            for left, right in merges:
                i = 0
                while i < len(parts) - 1:
                    if parts[i : i + 2] == [left, right]:
                        parts[i : i + 2] = [left + right]
                    i += 1
            numbers = [str(encoder[part]) for part in parts]
            ids += [4 + symbols.index(number) if number in symbols else 3 for number in numbers]
        return ids

    def test_ids_are_fairseqs(self, checkpoint, files, bpe, symbols, sentences):
        import_fairseq(checkpoint(), **files)
        ours, roles = load_tokenizer(files["out"])
        size = 4 + len(symbols) + WITH_MASK
        unknown = 0
        for text in [*sentences, *self.TEXTS, *(sentence.title() for sentence in sentences)]:
            expected = self.expected_ids(text, encoder=bpe[0], merges=bpe[1], symbols=symbols)
            ids = ours.encode(text, add_special_tokens=False).ids
            assert [i if i < size else 3 for i in ids] == expected
            unknown += expected.count(3)
            assert ours.encode(text).ids == [0, *ids, 2] == AutoTokenizer.from_pretrained(files["out"])(text).input_ids
            assert ours.decode(ids) == text
        assert unknown  # tokens without an entry in dict.txt did occur
        assert roles == {"start_token": "<s>", "end_token": "</s>", "separator": "</s>", "pad_token": "<pad>"}
        assert ours.token_to_id("<mask>") == size - 1

    @torch.no_grad()
    def test_tokens_without_an_entry_have_the_embedding_of_the_unknown(self, checkpoint, files, symbols):
        import_fairseq(checkpoint(), **files)
        words = load_pretrained(files["out"]).model.get_input_embeddings().weight
        assert words.shape == (4 + len(symbols) + WITH_MASK + UNSEEN, DIM)
        assert len(words) == load_tokenizer(files["out"])[0].get_vocab_size()
        torch.testing.assert_close(words[-UNSEEN:], words[3].expand(UNSEEN, -1), rtol=0, atol=0)

    def test_a_ranker_can_read_text_with_it(self, checkpoint, files):
        import_fairseq(checkpoint(), **files)
        tokenizer, roles = load_tokenizer(files["out"])
        text = TextEncoder(tokenizer, TextConfig(**roles))
        assert text.batch_contexts([["hello", "</s>"]]).ids[0, 0] == 0
        assert text.pad_id == 1

    def test_a_model_without_mask_has_no_mask_token(self, checkpoint, files, roberta):
        state = {name: t[:-1] if name.endswith("embed_tokens.weight") else t for name, t in state_of(roberta).items()}
        import_fairseq(checkpoint(state), **files)
        assert Tokenizer.from_file(str(files["out"] / "tokenizer.json")).token_to_id("<mask>") is None


def changed(state, *, without=(), **tensors):
    return {name: tensor for name, tensor in state.items() if name not in without} | tensors


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"decoder.extra.weight": torch.zeros(1)}, "decoder.extra.weight is not a tensor of this model$"),
            ({"without": ["decoder.sentence_encoder.layers.1.fc1.bias"]}, "layers.1.fc1.bias is missing$"),
            (
                {"decoder.sentence_encoder.layers.0.fc2.weight": torch.zeros(3, 3)},
                r"encoder.layer.0.output.dense.weight has shape \[3, 3\], the model needs \[16, 24\]",
            ),
            # pre-layer-norm models have one normalisation more
            (
                {"decoder.sentence_encoder.layer_norm.weight": torch.ones(DIM)},
                "sentence_encoder.layer_norm.weight is not",
            ),
            ({"without": ["decoder.sentence_encoder.embed_tokens.weight"]}, "not a RoBERTa of fairseq"),
            ({"decoder.sentence_encoder.embed_tokens.weight": "words"}, "not a RoBERTa of fairseq"),
        ],
    )
    def test_every_tensor_is_accounted_for(self, checkpoint, files, roberta, change, message):
        with pytest.raises(CheckpointError, match=rf"model\.pt: .*{message}"):
            import_fairseq(checkpoint(changed(state_of(roberta), **change)), **files)
        assert not files["out"].exists()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"encoder_attention_heads": None}, "encoder_attention_heads is None"),
            ({"encoder_attention_heads": 3}, "no model can be built"),
            ({"encoder_layers": 1}, "layers.1.self_attn.*is not a tensor of this model .and 15 more"),
            ({"encoder_layers": 0}, "encoder_layers is 0"),
            ({"activation_fn": "swish"}, "activation_fn is 'swish'; it must be one of gelu"),
            ({"dropout": "x"}, "dropout is 'x'"),
        ],
    )
    def test_options_that_do_not_describe_a_roberta(self, checkpoint, files, change, message):
        with pytest.raises(CheckpointError, match=rf"model\.pt: .*{message}"):
            import_fairseq(checkpoint(args=Namespace(**(vars(ARGS) | change))), **files)

    def test_a_file_without_options(self, checkpoint, files):
        with pytest.raises(CheckpointError, match="not a checkpoint of fairseq"):
            import_fairseq(checkpoint(epoch=3), **files)

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("dict.txt", "1 7\n", r"dict.txt: gives 5 tokens with the special ones, but .*model.pt embeds"),
            ("encoder.json", "[1]", "encoder.json: not the encoder.json of GPT-2"),
            ("encoder.json", "{", "encoder.json: not valid JSON"),
            ("encoder.json", '{"a": 1}', r"dict.txt: \d+ of its \d+ symbols, such as .* are not of .*encoder.json"),
            ("vocab.bpe", "#version: 0.2\na b c d\n", "vocab.bpe, line 2: 'a b c d' is not a merge"),
            ("vocab.bpe", None, r"vocab.bpe: cannot be read \(no such file\)"),
        ],
    )
    def test_files_that_do_not_belong_together(self, checkpoint, files, tmp_path, name, text, message):
        (tmp_path / name).unlink()
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(CheckpointError, match=message):
            import_fairseq(checkpoint(), **files)

    @pytest.mark.parametrize("legacy", [False, True])
    def test_a_malicious_pickle_does_not_run(self, checkpoint, files, malicious, legacy):
        runs, witness = malicious
        with pytest.raises(CheckpointError, match=r"model\.pt: holds \w+\.mkdir, which is neither a tensor nor plain"):
            import_fairseq(checkpoint(args=ARGS, extra_state=runs, legacy=legacy), **files)
        assert not witness.exists()
