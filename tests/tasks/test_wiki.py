"""Article search: another sentence each epoch, fixed ones in evaluation, the same other articles for all queries."""

from __future__ import annotations

from collections import Counter

import pytest
from parlai.tasks.selection import wiki

from polyencoder.errors import ConfigError, InputError
from tests.parameters import mostly_long


@pytest.fixture(autouse=True)
def offline(no_network, monkeypatch):
    def build(opt):
        raise RuntimeError("no connection")

    monkeypatch.setattr(wiki, "_build", build)


def article(number: int, sentences: int = 4) -> list[str]:
    return [f"article {number} says {n} ." for n in range(sentences)]


@pytest.fixture
def save(tmp_path, write):
    """(name, articles) -> the file below tmp_path, one article a line."""

    def save(name, articles):
        text = "".join("\t".join(sentences) + "\n" for sentences in articles)
        return write(tmp_path / f"wiki_article_search/{name}", text)

    return save


@pytest.fixture
def make(make_teacher, tmp_path):
    def make(datatype="valid", **options):
        return make_teacher("selection:wiki", datatype=datatype, datapath=str(tmp_path), **options)

    return make


def whole(message) -> set[str]:
    """The sentences of query and answer."""
    (label,) = message.get("labels") or message["eval_labels"]
    return {message["text"], *(f"{part} ." for part in label.removesuffix(" .").split(" . "))}


@pytest.mark.parametrize("datatype", ["train", "train:stream"])
def test_a_sentence_and_its_article_without_it(save, make, texts, datatype):
    articles = [article(n) for n in range(12)]
    save("wikipedia_train.txt", articles)
    teacher = make(datatype)
    assert teacher.num_examples() == 12
    epochs = [[teacher.act() for _ in range(12)] for _ in range(8)]
    for epoch in epochs:
        for message in epoch:
            assert message["text"] not in message["labels"][0]
            assert whole(message) in map(set, articles)
        assert len({frozenset(whole(message)) for message in epoch}) == 12
    counts = Counter(message["text"] for epoch in epochs for message in epoch)
    assert len(counts) > 36  # of 48 sentences, in 96 draws: 42 expected
    again = make(datatype)
    assert [message["text"] for epoch in epochs for message in epoch] == texts(again, 96)
    assert texts(make(datatype, teacher_seed=4.0), 96) != texts(make(datatype), 96)


def test_evaluation_asks_the_same_sentences(save, make, messages):
    save("wikipedia_valid.txt", [article(n) for n in range(12)])
    save("wikipedia_train.txt", [article(n) for n in range(50, 70)])
    teacher = make(wiki_candidates=5)
    seen = messages(teacher)
    teacher.reset()
    assert messages(teacher) == seen == messages(make("valid:stream", wiki_candidates=5))
    assert len({message["text"].split()[-2] for message in seen}) > 1  # not always the first sentence


def test_candidates_are_shared_by_all_queries(save, make, messages):
    save("wikipedia_valid.txt", [article(n) for n in range(30)])
    save("wikipedia_train.txt", [article(n) for n in range(50, 70)])
    seen = messages(make(wiki_candidates=8))
    for message in seen:
        (label,) = message["eval_labels"]
        article_text = " ".join(sorted(whole(message)))
        assert len(set(message["label_candidates"])) == 9
        assert message["label_candidates"].count(label) == 1
        assert article_text not in message["label_candidates"]
    others = {text for m in seen for text in m["label_candidates"] if text != m["eval_labels"][0]}
    assert len(others) <= 10  # 8, and two that take the place of a query's own: each is encoded once
    assert len({m["label_candidates"].index(m["eval_labels"][0]) for m in seen}) > 4


def test_articles_of_the_training_data_fill_up(save, make, messages):
    save("wikipedia_valid.txt", [article(n) for n in range(3)])
    save("wikipedia_train.txt", [article(n) for n in range(50, 70)])
    assert {len(m["label_candidates"]) for m in messages(make(wiki_candidates=15))} == {16}
    assert {len(m["label_candidates"]) for m in messages(make(wiki_candidates=500))} == {23}  # all but the query's own


def test_articles_for_it_come_first(save, make):
    """StarSpace has a file of other articles for each split."""
    save("wikipedia_test10k.txt", [article(n) for n in range(3)])
    save("wikipedia_test_basedocs.txt", [article(n) for n in range(100, 130)])
    message = make("test", wiki_candidates=20).act()
    others = set(message["label_candidates"]) - set(message["eval_labels"])
    assert others <= {" ".join(article(n)) for n in range(100, 130)}
    assert len(others) == 20


def test_a_number_of_other_articles_that_cannot_be(save, make):
    save("wikipedia_valid.txt", [article(n) for n in range(3)])
    with pytest.raises(ConfigError, match="--wiki-candidates -1: give 0 or more"):
        make(wiki_candidates=-1)


def test_no_other_articles(save, make):
    save("wikipedia_valid.txt", [article(n) for n in range(3)])
    assert "label_candidates" not in make(wiki_candidates=0).act()


def test_negatives_in_training(save, make):
    save("wikipedia_train.txt.gz", [article(n) for n in range(30)])
    message = make("train", candidates="inline", num_negatives=7).act()
    assert len(set(message["label_candidates"])) == 8


@pytest.mark.parametrize("datatype", ["train:evalmode", "train:evalmode:stream"])
def test_article_of_one_sentence(save, make, messages, datatype):
    """StarSpace's files have some: they are left out and counted, whatever --skip-bad-examples says."""
    save("wikipedia_train.txt", [article(0), ["alone ."], article(1), ["alone too .", " "]])
    teacher = make(datatype, wiki_candidates=0)
    for _ in range(2):  # counted once, however often they are read
        assert len(messages(teacher)) == 2
        teacher.reset()
        assert teacher.report()["left_out"].value() == 2
    assert "bad_examples" not in teacher.report()


def test_article_of_one_sentence_stands_among_the_others(save, make):
    save("wikipedia_test10k.txt", [article(0), ["alone ."]])
    save("wikipedia_test_basedocs.txt", [["one ."], ["two ."], ["three ."], article(9)])
    save("wikipedia_train.txt", [article(0)])
    message = make("test", wiki_candidates=4).act()
    others = set(message["label_candidates"]) - set(message["eval_labels"])
    assert others == {"one .", "two .", "three .", " ".join(article(9))}


def test_only_articles_of_one_sentence(save, make):
    path = save("wikipedia_train.txt", [["alone ."], ["alone too ."]])
    with pytest.raises(InputError, match=f"{path}: holds no example"):
        make("train")


def test_empty_and_damaged(save, make):
    path = save("wikipedia_train.txt", [])
    with pytest.raises(InputError, match=f"{path}: holds no example"):
        make("train:stream")
    path.write_bytes(b"one\ttwo\ncaf\xe9\tthree\n")
    with pytest.raises(InputError, match=f"{path}, line 2: is not utf-8 text"):
        make("train")


def test_missing(make, tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/wiki_article_search: has none of wikipedia_valid.txt, wikipedia"):
        make()


# Real data.


@pytest.mark.slow
@mostly_long(("datatype", "count"), [("valid", 1000), ("train", 17_179), ("test", 1000)], quick=1)
def test_real(make_teacher, real_path, datatype, count):
    datapath = str(real_path("wiki_article_search").parent)
    teacher = make_teacher("selection:wiki", datatype=datatype, datapath=datapath)
    assert (teacher.num_episodes(), teacher.num_examples()) == (count, count)
    message = teacher.act()
    (label,) = message.get("labels") or message["eval_labels"]
    assert label
    assert message["text"] not in label
    if datatype == "train":
        assert "label_candidates" not in message
    else:
        assert len(set(message["label_candidates"])) == 10_001  # R10001@1
        others = set(message["label_candidates"]) - {label}
        again = teacher.act()
        assert len(others ^ (set(again["label_candidates"]) - set(again["eval_labels"]))) <= 2
    if datatype == "valid":
        assert message["text"].startswith('"minority report" was one of the best-reviewed films of 2002 and was ')
        assert label.startswith("minority report is a 2002 american neo-noir science fiction ")
