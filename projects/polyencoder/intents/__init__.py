"""Intent classification on frozen encoder embeddings.

report = train_intents(ranker, train, test)
report.classifier.save("head")
IntentClassifier.from_pretrained("head", ranker).predict(["where is my card ?"], min_probability=0.5)
"""

from __future__ import annotations

from polyencoder.intents.classifier import IntentClassifier, Prediction
from polyencoder.intents.examples import Labelled, read_labelled
from polyencoder.intents.training import IntentReport, train_intents
from polyencoder.settings.intents import FitSettings, HeadConfig

__all__ = [
    "FitSettings",
    "HeadConfig",
    "IntentClassifier",
    "IntentReport",
    "Labelled",
    "Prediction",
    "read_labelled",
    "train_intents",
]
