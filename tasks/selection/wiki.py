"""`-t selection:wiki`: Wikipedia article search. The query is a sentence, the answer its article without it.

Files, under `--datapath`/wiki_article_search: one article a line, its sentences separated by tabs, as in StarSpace's
`wikipedia_train250k.txt` or `wikipedia_shuf_train5M.txt`, `wikipedia_test10k.txt` and `wikipedia_test_basedocs.txt`;
or `wikipedia_{train,valid,test}.txt`, which `wiki_dump` writes. Plain or `.gz`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from parlai.core import build_data
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.tasks.selection.download import find
from parlai.tasks.selection.epochs import Episode
from parlai.tasks.selection.teacher import SelectionTeacher
from parlai.utils import logging

from polyencoder.data.epochs import Source
from polyencoder.data.example import Example
from polyencoder.data.readers import DataFile, OnBad, iter_lines
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import ConfigError, InputError

FOLDER = "wiki_article_search"
NAMES = {
    "train": ["wikipedia_train.txt", "wikipedia_shuf_train5M.txt", "wikipedia_train250k.txt"],
    "valid": ["wikipedia_valid.txt", "wikipedia_dev10k.txt"],
    "test": ["wikipedia_test.txt", "wikipedia_test10k.txt"],
}
BASE = {"valid": "wikipedia_dev_basedocs.txt", "test": "wikipedia_test_basedocs.txt"}  # StarSpace's other articles
ARCHIVES = ("wikipedia_train250k.tgz", "wikipedia_devtst.tgz")


class WikiTeacher(SelectionTeacher):
    """Article search: the query is a random sentence, the label the rest of its article.

    In training the sentence changes with each epoch. In evaluation it is fixed, and every query has the same
    `--wiki-candidates` other articles, so that an agent with a cache encodes them once. Articles of one sentence are
    dropped and counted, as the paper's counts of 9,921 and 9,925 of 10,000 suggest.
    """

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt)
        parser.add_argument_group("Wikipedia article search").add_argument(
            "--wiki-candidates",
            type=int,
            default=10_000,
            help="In evaluation: the number of other articles among the candidates.",
        )
        return parser

    def files(self, split: str) -> list[str]:
        return [str(self._find(NAMES[split]))]

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        for number, sentences in _read_articles(file, bad):
            if len(sentences) < 2:
                self.left_out(InputError(f"{file}, line {number}: an article of one sentence has no query"))
                continue
            yield [Example(sentences, "")]  # the label is drawn

    def open_source(self, split: str) -> Source[Episode]:
        if (count := self.opt.get("wiki_candidates", 10_000)) < 0:
            raise ConfigError(f"--wiki-candidates {count}: give 0 or more")
        self._distractors: list[str] = []
        source = super().open_source(split)
        if not self.training and self.opt.get("wiki_candidates", 10_000):
            self._distractors = self._read_other_articles(split)
        return source

    def draw(self, episode: Episode, rng: SeededRandom) -> Episode:
        sentences = episode[0].turns
        query = rng.draw_below(len(sentences))
        rest = " ".join([*sentences[:query], *sentences[query + 1 :]])
        candidates = None
        if self._distractors:
            article = " ".join(sentences)
            count = self.opt.get("wiki_candidates", 10_000)
            candidates = [text for text in self._distractors if text not in (article, rest)][:count]
            candidates.insert(rng.draw_below(len(candidates) + 1), rest)
        return [Example([sentences[query]], rest, candidates)]

    def _read_other_articles(self, split: str) -> list[str]:
        """The other candidates, and two spare ones, for queries whose own article is among them.

        They come from StarSpace's file, else from the split itself and, if it is too small, from the training data.
        Articles of one sentence are included.
        """
        count = self.opt["wiki_candidates"] + 2
        base = [BASE[split]] if split in BASE else []
        pools = [[*base, *NAMES[split]], NAMES["train"]]
        drawn: dict[str, None] = {}
        for names in pools:
            path = self._find(names)
            articles = [" ".join(sentences) for _, sentences in _read_articles(str(path), self.bad) if sentences]
            drawn.update(dict.fromkeys(SeededRandom(f"other articles of {path.name}").sample(articles, len(articles))))
            if len(drawn) >= count:
                break
        else:
            logging.warning(f"{self.opt['task']}: only {len(drawn)} articles exist, --wiki-candidates is {count - 2}")
        return list(drawn)[:count]

    def _find(self, names: list[str]) -> Path:
        return find(self.opt, FOLDER, names, build=_build)


def _read_articles(file: str | DataFile, bad: OnBad) -> Iterator[tuple[int, list[str]]]:
    """(line, sentences) of a file's articles."""
    for number, line in iter_lines(file, bad=bad):
        yield number, [sentence for part in line.split("\t") if (sentence := part.strip())]


def _build(opt: Opt) -> None:
    folder = str(Path(opt["datapath"]) / FOLDER)
    if build_data.built(folder):
        return
    build_data.make_dir(folder)
    for archive in ARCHIVES:
        build_data.download(f"https://dl.fbaipublicfiles.com/starspace/{archive}", folder, archive)
        build_data.untar(folder, archive)
    build_data.mark_done(folder)
