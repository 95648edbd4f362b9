"""`SearchOptions`: the options of a search of an index, for Python, the command line and ParlAI's agents."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, get_args

from polyencoder.calibration.answering import AnswerOptions
from polyencoder.checks import check_choice, check_count, check_text
from polyencoder.errors import ConfigError
from polyencoder.index.filters import Exactness, Filter, parse_filter
from polyencoder.index.hits import TOP_K, check_diversity
from polyencoder.settings.metadata import Flag, Parlai

_MAX_COUNT = (1 << 31) - 1  # of whole numbers that engines take


@dataclass(frozen=True, kw_only=True)
class SearchOptions(AnswerOptions):
    """Options of a search of an index.

    Raises:
        ConfigError: an unknown exactness, or options that contradict each other.
        InputError: a number is too small, or the filter is invalid.
    """

    top_k: Annotated[int | None, Flag(alias="-k"), Parlai("index_top_k")] = None
    """Number of results per context (default: 10); all candidates if there are fewer."""
    filter: Annotated[Filter | None, Flag(parse=False)] = None
    """Metadata fields and what each must be: a value, one value of a list, or operators: {"year": {"$gte": 2020}}."""
    exactness: Exactness | None = None
    """At least exact, certified or approximate (default: the fastest that the index has). Exact scores everything,
    certified where nothing is proven."""
    effort: Annotated[int | None, Parlai("index_effort")] = None
    """Effort of FAISS: ef_search of hnsw, nprobe of ivf (default: as the index was built, and more if only some
    candidates pass the filter). A search for certificates reads all lists."""
    list_length: Annotated[int | None, Parlai("index_list_length")] = None
    """Candidates proposed by each code, or group of codes (default: 4 k, at least 256, in a database 64)."""
    diversity: float | None = None
    """Leave out results that resemble better ones: 0 (by scores alone) to 1, such as 0.3. The results are chosen from
    the first max(4 top_k, 50), or from those that are reranked, by maximal marginal relevance; scores and probabilities
    stay."""
    group_by: str | None = None
    """A metadata field: at most `group_size` results for each of its values, such as passages of a document. Candidates
    without the field are in no group and stay. Up to 16,384 of the best candidates are looked at for this."""
    group_size: int | None = None
    """Results for each value of `group_by` (default: 1)."""
    hybrid: Annotated[bool, Parlai("index_hybrid")] = False
    """Also search by words (BM25), in an index that was made with words; the ranks among the vectors' results and the
    words' order the results (reciprocal rank fusion). What is reranked is the first in this order."""
    words_only: Annotated[bool, Parlai("index_words_only")] = False
    """Search by words alone, for comparison."""

    def __post_init__(self) -> None:
        for name in ("top_k", "list_length", "effort"):
            if (count := getattr(self, name)) is not None:
                check_count(name, count, max_value=_MAX_COUNT)
        if self.exactness is not None:
            check_choice("exactness", self.exactness, get_args(Exactness))
        parse_filter(self.filter)
        AnswerOptions.__post_init__(self)
        check_diversity(self.diversity)
        if self.group_by is not None:
            check_text("group_by", self.group_by)
        if self.group_size is not None:
            check_count("group_size", self.group_size, max_value=_MAX_COUNT)
            if self.group_by is None:
                raise ConfigError(
                    "group_size is read only with group_by: give that too, or leave it out", argument="group_size"
                )
        if self.words_only:
            vector_options = {"hybrid": self.hybrid, "exactness": self.exactness, "diversity": self.diversity}
            if unused := [name for name, value in vector_options.items() if value] + self.list_options + self.limits:
                raise ConfigError(
                    f"{unused[0]} is for searches by vectors, and words_only is one by words alone", argument=unused[0]
                )

    @property
    def list_options(self) -> list[str]:
        """The names of the options that are set and only apply to lists."""
        return [name for name in ("list_length", "effort") if getattr(self, name) is not None]

    def k(self, available: int) -> int:
        """The number of results of a search in `available` candidates."""
        return min(operator.index(self.top_k or TOP_K), available)

    @property
    def reads_words(self) -> bool:
        """Whether the search reads the words of contexts and candidates."""
        return self.hybrid or self.words_only
