"""XLM's encoders: files in its layout, made here from random weights, against the XLMModel of the same weights."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModel, AutoTokenizer, XLMConfig, XLMModel

from polyencoder.config import RankerConfig, TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.xlm import import_xlm
from polyencoder.modeling.build import build_model
from polyencoder.modeling.encoder_config import max_length
from polyencoder.modeling.loading import load_pretrained, load_tokenizer
from polyencoder.text import TextEncoder, TokenBatch

DIM, N_HEADS, N_LAYERS, N_POSITIONS = 16, 2, 2, 40
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]
PARAMS = {
    "n_layers": N_LAYERS,
    "n_heads": N_HEADS,
    "emb_dim": DIM,
    "gelu_activation": True,
    "sinusoidal_embeddings": False,
    "dropout": 0.2,
    "attention_dropout": 0.0,
    "n_langs": 1,
    "lang2id": {"en": 0},
    "asm": False,
}
TWO_LANGUAGES = {"n_langs": 2, "lang2id": {"input": 0, "label": 1}}


def fast_bpe(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """The pieces of a word as fastBPE writes them, `@@` where the word goes on: every merge over the whole word."""
    parts = [*word[:-1], f"{word[-1]}</w>"]
    for left, right in merges:
        i = 0
        while i < len(parts) - 1:
            if parts[i : i + 2] == [left, right]:
                parts[i : i + 2] = [left + right]
            i += 1
    return [part.removesuffix("</w>") if part.endswith("</w>") else f"{part}@@" for part in parts]


@pytest.fixture(scope="module")
def merges(sentences) -> list[tuple[str, str]]:
    """What fastBPE might have learned from the sentences."""
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=110, end_of_word_suffix="</w>", show_progress=False)
    learner.train_from_iterator(sentences, trainer)
    return [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]


@pytest.fixture(scope="module")
def counts(sentences, merges) -> Counter:
    """How often each piece occurs in the sentences: fastBPE's vocabulary, without pieces that never remain."""
    return Counter(piece for sentence in sentences for word in sentence.split() for piece in fast_bpe(word, merges))


@pytest.fixture(scope="module")
def word2id(counts) -> dict[str, int]:
    return {word: i for i, word in enumerate([*SPECIAL, *(word for word, _ in counts.most_common())])}


@pytest.fixture
def files(tmp_path, merges) -> dict:
    """The arguments of `import_xlm` but for the checkpoint."""
    (tmp_path / "codes").write_text("".join(f"{left} {right} 9\n" for left, right in merges), encoding="utf-8")
    return {"codes": tmp_path / "codes", "out": tmp_path / "out"}


@pytest.fixture(scope="module")
def make_xlm(word2id):
    def make(**changes) -> XLMModel:
        sizes = {"vocab_size": len(word2id), "emb_dim": DIM, "n_layers": N_LAYERS, "n_heads": N_HEADS}
        config = XLMConfig(**sizes, max_position_embeddings=N_POSITIONS, **changes)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(5)
            model = XLMModel(config).eval()
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.3)  # sharp attention: nothing that is wrong remains small
        return model

    return make


@pytest.fixture(scope="module")
def xlm(make_xlm) -> XLMModel:
    return make_xlm()


def state_of(model):
    return {
        **model.state_dict(),
        "pred_layer.proj.weight": model.embeddings.weight.detach(),
        "pred_layer.proj.bias": torch.zeros(len(model.embeddings.weight)),
    }


@pytest.fixture
def checkpoint(tmp_path, xlm, word2id):
    """(state=None, params={}, legacy=False, **states) -> the path of a checkpoint, without states that are `...`."""

    def make(state=None, *, params=None, legacy=False, **states):
        path = tmp_path / "best.pth"
        states = {
            "epoch": 3,
            "model": state_of(xlm) if state is None else state,
            "params": PARAMS | (params or {}),
            "dico_word2id": word2id,
            **states,
        }
        torch.save(
            {key: value for key, value in states.items() if value is not ...},
            path,
            _use_new_zipfile_serialization=not legacy,
        )
        return path

    return make


@pytest.fixture
def sequences(padded, word2id):
    """A padded batch of random tokens between </s> and </s>."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(len(SPECIAL), len(word2id), (n,), generator=generator).tolist() for n in (1, 9, 4, 38)]
    return padded([[1, *row, 1] for row in rows], pad_id=2)


@torch.no_grad()
def assert_same_outputs(folder, model, tokens, *, segments=None, langs=None):
    inputs = {"input_ids": tokens.ids, "attention_mask": tokens.mask.long()}
    expected = model(**inputs, langs=langs).last_hidden_state[tokens.mask]
    ours = load_pretrained(folder).eval()
    torch.testing.assert_close(
        ours(TokenBatch(tokens.ids, tokens.mask, segments))[tokens.mask], expected, rtol=0, atol=1e-5
    )
    plain = AutoModel.from_pretrained(folder).eval()(**inputs, token_type_ids=segments).last_hidden_state
    torch.testing.assert_close(plain[tokens.mask], expected, rtol=0, atol=1e-5)


class TestOutputs:
    @pytest.mark.parametrize("legacy", [False, True])
    def test_are_those_of_the_same_xlm(self, checkpoint, files, xlm, sequences, legacy):
        import_xlm(checkpoint(legacy=legacy), **files)
        assert_same_outputs(files["out"], xlm, sequences)

    def test_with_relu(self, checkpoint, files, make_xlm, sequences):
        model = make_xlm(gelu_activation=False)
        import_xlm(checkpoint(state_of(model), params={"gelu_activation": False}), **files)
        assert_same_outputs(files["out"], model, sequences)

    def test_from_several_gpus_and_as_the_encoder_of_a_translation_model(self, checkpoint, files, xlm, sequences):
        state = {f"module.{name}": tensor for name, tensor in state_of(xlm).items()}
        import_xlm(checkpoint(state=..., encoder=state, decoder={"x": torch.zeros(1)}), **files)
        assert_same_outputs(files["out"], xlm, sequences)

    def test_languages_become_segments(self, checkpoint, files, make_xlm, sequences):
        model = make_xlm(n_langs=2)
        path = checkpoint(state_of(model), params=TWO_LANGUAGES)
        import_xlm(path, **files, languages=["label", "input"])
        segments = (torch.arange(sequences.ids.numel()).view_as(sequences.ids) % 2).long()
        assert_same_outputs(files["out"], model, sequences, segments=segments, langs=1 - segments)

    def test_one_language_is_that_of_every_token(self, checkpoint, files, make_xlm, sequences):
        model = make_xlm(n_langs=2)
        path = checkpoint(state_of(model), params=TWO_LANGUAGES)
        import_xlm(path, **files, languages="label")
        assert_same_outputs(files["out"], model, sequences, langs=torch.ones_like(sequences.ids))


def test_the_configuration_is_the_checkpoints(checkpoint, files):
    import_xlm(checkpoint(), **files)
    config = AutoModel.from_pretrained(files["out"]).config
    assert (config.model_type, config.hidden_dropout_prob, config.attention_probs_dropout_prob) == ("bert", 0.2, 0.0)
    assert (config.pad_token_id, config.layer_norm_eps, config.architectures) == (2, 1e-12, ["BertModel"])
    assert max_length(config.to_dict()) == N_POSITIONS


class TestTokenizer:
    WORDS = ("hello", "skis", "teachers", "zebra", "Caf\u00e9", "I", "\u03c9", "9", "...", "@@", "s@@")

    def expected(self, text, *, merges, word2id):
        lower = unicodedata.normalize("NFD", text.lower())
        words = "".join(char for char in lower if unicodedata.category(char) != "Mn").split()
        return [word2id.get(piece, 3) for word in words for piece in fast_bpe(word, merges)]

    def test_ids_are_xlms(self, checkpoint, files, sentences, merges, word2id, counts):
        import_xlm(checkpoint(), **files, tokenized=True)
        ours, roles = load_tokenizer(files["out"])
        texts = [*sentences, " ".join(self.WORDS), *(sentence.replace("e", "a").title() for sentence in sentences)]
        found = set()
        for text in texts:
            ids = ours.encode(text, add_special_tokens=False).ids
            assert [i if i < len(word2id) else 3 for i in ids] == self.expected(text, merges=merges, word2id=word2id)
            assert ours.encode(text).ids == [1, *ids, 1] == AutoTokenizer.from_pretrained(files["out"])(text).input_ids
            found.update(ids)
        assert 3 in found  # characters that are not in the vocabulary
        assert max(found) >= len(word2id)  # pieces that never remained in the training text
        assert roles == {"start_token": "</s>", "end_token": "</s>", "separator": "</s>", "pad_token": "<pad>"}
        assert ours.decode(ours.encode(sentences[0]).ids) == sentences[0]

    @torch.no_grad()
    def test_pieces_that_never_remained_have_the_embedding_of_the_unknown(self, checkpoint, files, xlm, word2id):
        import_xlm(checkpoint(), **files)
        words = load_pretrained(files["out"]).model.get_input_embeddings().weight
        assert len(words) == load_tokenizer(files["out"])[0].get_vocab_size() > len(word2id)
        extra = words[len(word2id) :]
        torch.testing.assert_close(extra, xlm.embeddings.weight[3].expand_as(extra), rtol=0, atol=0)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("Hello, how are you?", "hello , how are you ?"),
            ("I don't know... it's 1,000.50 dogs.", "i don 't know ... it 's 1,000.50 dogs ."),
            ("a well-known (old) story - yes", "a well-known ( old ) story - yes"),
            ("i do n't , you 're", "i do n 't , you 're"),
        ],
    )
    def test_raw_text_is_split_into_words(self, checkpoint, files, text, words):
        import_xlm(checkpoint(), **files)
        tokenizer = load_tokenizer(files["out"])[0]
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(text))
        assert [piece for piece, _ in pieces] == words.split()

    def test_case_and_accents_can_be_kept(self, checkpoint, files):
        import_xlm(checkpoint(), **files, lower_case=False)
        assert load_tokenizer(files["out"])[0].normalizer is None

    def test_a_vocabulary_file_stands_in_for_the_dictionary(self, checkpoint, files, tmp_path, counts, word2id):
        lines = [f"{word} {count}" for word, count in counts.most_common()]
        (tmp_path / "vocab").write_text("\n".join([*lines[:5], "", "a b c", lines[0], *lines[5:]]), encoding="utf-8")
        import_xlm(checkpoint(), **files)
        expected = load_tokenizer(files["out"])[0].get_vocab()
        import_xlm(checkpoint(dico_word2id=...), **files, vocabulary=tmp_path / "vocab")
        assert load_tokenizer(files["out"])[0].get_vocab() == expected


def test_a_cross_encoder_can_start_from_it(checkpoint, files):
    import_xlm(checkpoint(), **files)
    tokenizer, roles = load_tokenizer(files["out"])
    text = TextEncoder(tokenizer, TextConfig(text_truncate=20, label_truncate=8, **roles))
    config = AutoModel.from_pretrained(files["out"]).config.to_dict()
    model = build_model(RankerConfig(architecture="cross", backbone=config, text=text.config)).eval()
    with torch.no_grad():
        assert model(text.contexts([["hello", "hi there"]]), text.candidates(["a", "b"])).shape == (1, 2)


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"memories.0_in.keys": torch.zeros(1)}, "memories.0_in.keys is not a tensor of this model$"),
            ({"layer_norm1.1.bias": ...}, "layer_norm1.1.bias is missing$"),
            (
                {"ffns.0.lin2.weight": torch.zeros(3, 3)},
                r"encoder.layer.0.output.dense.weight has shape \[3, 3\], the model needs",
            ),
            ({"embeddings.weight": "words"}, "not a checkpoint of XLM"),
        ],
    )
    def test_every_tensor_is_accounted_for(self, checkpoint, files, xlm, change, message):
        state = {name: tensor for name, tensor in (state_of(xlm) | change).items() if tensor is not ...}
        with pytest.raises(CheckpointError, match=rf"best\.pth: .*{message}"):
            import_xlm(checkpoint(state), **files)
        assert not files["out"].exists()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"n_heads": None}, "its option `n_heads` is None; it must be a count"),
            ({"n_heads": 3}, "no model can be built"),
            ({"n_layers": 1}, "attentions.1.q_lin.weight is not a tensor of this model .and 15 more"),
            ({"gelu_activation": "yes"}, "`gelu_activation` is 'yes'; it must be True or False"),
        ],
    )
    def test_options_that_do_not_describe_it(self, checkpoint, files, change, message):
        with pytest.raises(CheckpointError, match=rf"best\.pth: .*{message}"):
            import_xlm(checkpoint(params=change), **files)

    def test_a_foreign_file(self, tmp_path, files, xlm):
        path = tmp_path / "foreign.pth"
        torch.save(xlm.state_dict(), path)
        with pytest.raises(CheckpointError, match="foreign.pth: not a checkpoint of XLM"):
            import_xlm(path, **files)

    @pytest.mark.parametrize("languages", [[], ["en"], ["input", "label", "input"]])
    def test_languages_must_be_its_own(self, checkpoint, files, make_xlm, languages):
        path = checkpoint(state_of(make_xlm(n_langs=2)), params=TWO_LANGUAGES)
        with pytest.raises(ConfigError, match="languages: .* has embeddings of input, label; give one of these"):
            import_xlm(path, **files, languages=languages)

    def test_no_languages_where_there_are_none(self, checkpoint, files):
        with pytest.raises(ConfigError, match="has no language embeddings; leave them out"):
            import_xlm(checkpoint(), **files, languages=["en"])

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ({"<s>": 0, "</s>": 2}, "`dico_word2id` does not number the words from 0"),
            (["<s>"], "`dico_word2id` does not number the words from 0"),
            ({"hello": 0}, "its dictionary does not begin with XLM's tokens <s>, </s>"),
            ({word: i for i, word in enumerate(SPECIAL)}, "its dictionary has 14 words with the special ones, but"),
        ],
    )
    def test_a_dictionary_that_does_not_fit(self, checkpoint, files, words, message):
        with pytest.raises(CheckpointError, match=message):
            import_xlm(checkpoint(dico_word2id=words), **files)

    def test_the_dictionary_is_given_once(self, checkpoint, files):
        with pytest.raises(ConfigError, match="vocabulary: .* has no dictionary: give fastBPE's vocabulary file"):
            import_xlm(checkpoint(dico_word2id=...), **files)
        with pytest.raises(ConfigError, match="vocabulary: .* has its own dictionary: leave out"):
            import_xlm(checkpoint(), **files, vocabulary="vocab")

    def test_codes_that_are_none(self, checkpoint, files):
        files["codes"].write_text("t h 9\nthe\n")
        with pytest.raises(CheckpointError, match="codes, line 2: 'the' is not a merge"):
            import_xlm(checkpoint(), **files)

    def test_a_truncated_file(self, checkpoint, files):
        path = checkpoint(legacy=True)
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(CheckpointError, match=r"best\.pth: damaged, or not a checkpoint of torch"):
            import_xlm(path, **files)

    def test_a_malicious_pickle_does_not_run(self, checkpoint, files, malicious):
        runs, witness = malicious
        with pytest.raises(CheckpointError, match=r"best\.pth: holds \w+\.mkdir, which is neither a tensor nor plain"):
            import_xlm(checkpoint(best_metrics=runs), **files)
        assert not witness.exists()
