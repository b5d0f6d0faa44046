"""A training run of a second, on text that is always there: the base that tests change with `dataclasses.replace`."""

from normgrowth.lab.settings import TrainSettings

TINY = TrainSettings(corpus="pydoc", layers=2, width=16, heads=2, feedforward=24, steps=12, dev_sentences=20)
