from __future__ import annotations

from dataclasses import replace

from polyencoder.intents import TABLE_8, FitSettings, Fitted, HeadConfig, grid_search
from polyencoder.intents.head import Head


def test_the_table_of_the_paper():
    """Sizes and dropout of a head without hidden layers are the same head."""
    assert len(set(TABLE_8)) == len(TABLE_8) == 2 * (1 + 2 * 4 * 3)
    assert {config.hidden_size for config, _ in TABLE_8 if config.hidden_layers} == {128, 256, 512, 1024}
    assert {config.dropout for config, _ in TABLE_8 if config.hidden_layers} == {0.75, 0.5, 0.25}
    assert {config.hidden_layers for config, _ in TABLE_8} == {0, 1, 2}


def test_the_best_comes_first_and_each_optimizer_has_its_rate():
    grid = [(HeadConfig(1, size, 0.0), name) for size in (2, 3) for name in ("sgd", "adam")]
    worth = {(2, "sgd"): (0.5, 1.0), (2, "adam"): (0.7, 2.0), (3, "sgd"): (0.7, 1.0), (3, "adam"): (0.1, 0.1)}

    def fit(config, settings):
        assert settings == replace(FitSettings(settings.optimizer), max_epochs=3)
        return Fitted(Head(config, inputs=1, labels=2), *worth[config.hidden_size, settings.optimizer], 1, 1.0)

    said: list[str] = []
    tried = grid_search(fit, FitSettings(max_epochs=3, learning_rate=9.0), grid=grid, said=said.append)
    order = [(one.config.hidden_size, one.settings.optimizer) for one in tried]
    assert order == [(3, "sgd"), (2, "adam"), (2, "sgd"), (3, "adam")]
    assert said[0] == "1 of 4: 1 hidden layer of 2, dropout 0.0, sgd: held out 50.0%"
