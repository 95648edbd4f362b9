"""Intent classification on frozen encoder embeddings.

report = train_intents(ranker, train, test)
report.classifier.save("head")
IntentClassifier.from_pretrained("head", ranker).predict(["where is my card ?"], min_probability=0.5)
"""

from __future__ import annotations

from polyencoder.intents.baseline import TfidfBaseline
from polyencoder.intents.classifier import IntentClassifier, Prediction
from polyencoder.intents.examples import Labelled, few_of_each, held_out, read_labelled
from polyencoder.intents.fitting import FitSettings, Fitted, fit_head, fit_logistic
from polyencoder.intents.grid import TABLE_8, grid_search
from polyencoder.intents.head import Head, HeadConfig
from polyencoder.intents.measures import Confusion, Measures
from polyencoder.intents.run import IntentReport, train_intents

__all__ = [
    "TABLE_8",
    "Confusion",
    "FitSettings",
    "Fitted",
    "Head",
    "HeadConfig",
    "IntentClassifier",
    "IntentReport",
    "Labelled",
    "Measures",
    "Prediction",
    "TfidfBaseline",
    "few_of_each",
    "fit_head",
    "fit_logistic",
    "grid_search",
    "held_out",
    "read_labelled",
    "train_intents",
]
