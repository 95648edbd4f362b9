"""The values that a study tries, as flags give them."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.tune import Range, TuneSettings, parse_search

RUN = {"train": "pairs.jsonl", "out": "study", "backbone": "encoder"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("learning_rate=1e-5:1e-3:log", ("learning_rate", Range(1e-5, 1e-3, log=True))),
        ("--learning-rate=0:1", ("learning_rate", Range(0.0, 1.0))),
        ("n_codes=16:70:16", ("n_codes", Range(16, 70, step=16))),
        ("batch_size=16, 32,64", ("batch_size", ("16", "32", "64"))),
        ("architecture=bi,poly", ("architecture", ("bi", "poly"))),
        ("init=hf:one,hf:two", ("init", ("hf:one", "hf:two"))),
        ("context_prompt=1:2,query: ", ("context_prompt", ("1:2", "query:"))),
        ("lora=8", ("lora", ("8",))),
    ],
)
def test_values_of_a_setting(text, values):
    assert parse_search(text) == values


def test_a_range_ends_at_its_last_step():
    assert Range(16, 70, step=16).ends == (16, 64)
    assert Range(0.0, 0.3, step=0.1).ends == pytest.approx((0.0, 0.3))
    assert Range(1, 9).ends == (1, 9)
    assert Range(0.0, 0.9, step=0.3).ends == (0.0, 0.9), "not 0.8999999999999999, which would be below three steps"


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ([], "a study searches the values of at least one setting: give NAME=LOW:HIGH, "),
        (["learning_rate"], "search 'learning_rate': give NAME=LOW:HIGH, "),
        (["learning_rat=1:2"], "no setting 'learning_rat'; did you mean learning_rate"),
        (["num_negatives=1:2"], "trials must have the same num_negatives, or their measures do not compare"),
        (["seed=1,2"], "trials must have the same seed"),
        (["n_codes=1.5:2"], "n_codes takes whole numbers"),
        (["learning_rate=1..2:3"], "learning_rate takes numbers"),
        (["n_codes=2:1"], "the low end must be below the high end"),
        (["learning_rate=0:1:log"], "with log the low end must be above 0"),
        (["n_codes=1:9:0"], "the step must be above 0"),
        (["batch_size=16,16"], "a value is empty or occurs twice"),
        (["n_codes=4,8", "n_codes=16,32"], "search has n_codes twice"),
        (["batch_size=16,many"], "a trial with batch_size many is not possible: batch_size is 'many'; it must be a"),
        (["dropout=0:1"], "dropout is read only where architecture is convert"),
        (["learning_rate=-1:1"], "learning_rate is -1.0; it must be above 0"),
        (
            ["n_codes=4,8", "architecture=poly,bi"],
            "a trial with n_codes 4, architecture bi is not possible: n_",
        ),
        (["batch_size=8,16"], "batch_size is given and searched: leave one out"),
    ],
)
def test_values_that_cannot_be_tried(search, message):
    with pytest.raises(ConfigError, match=message):
        TuneSettings.of(RUN, search=search, **({"batch_size": 4} if search == ["batch_size=8,16"] else {})).check()


def test_a_file_has_the_settings_of_trials_and_what_is_searched(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("epochs: 2\nsearch:\n- architecture=bi,cross\n- learning_rate=1e-5:1e-3:log\ntrials: 5\n")
    settings = TuneSettings.of(RUN, config=str(file), trials=6)
    settings.check()
    assert settings.trials == 6
    assert settings.common == RUN | {"epochs": 2.0}
    trial = settings.trial({"architecture": "cross", "learning_rate": 2e-4}, out="study/trial-0")
    whole = RUN | {"out": "study/trial-0"}
    assert trial == TrainSettings.of(whole, epochs=2, architecture="cross", learning_rate=2e-4)
    assert trial.training.batch_size == 8, "that of a cross-encoder"


@pytest.mark.parametrize("search", ["5", "{learning_rate: 1}", "[5]"])
def test_a_file_whose_search_is_no_list_of_texts(tmp_path, search):
    file = tmp_path / "study.yaml"
    file.write_text(f"search: {search}\n")
    with pytest.raises(ConfigError, match="search"):
        TuneSettings.of(RUN, config=str(file))
