"""`traced_predictions`: described runs with the figures of a module built from them and traced.

What a user's module goes through (figures/described_model.py), on published rows: the row's
architecture is built by transformers on torch's meta device, traced, and its figures are read from
the trace. Layers repeat, so two of them are built and the row's number of layers is put back;
windows too, which a trace of few tokens does not reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evidence.config_from_figures import config_of_figures
from profiles.errors import ShardwrightError
from profiles.model.figures.described_model import traced_figures
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import ModelSpec
from shardwright.commands.tables.predict_runs import PredictedRun, predicted_runs
from shardwright.requests.local_paths import trace_cache
from shardwright.runs.run import PublishedRun
from simulator.training_run.run.training_run import TrainingRun, UnsupportedRunError

_LAYERS = 2


def traced_predictions(runs: Sequence[PublishedRun]) -> tuple[PredictedRun, ...]:
    """The predictions of runs from the figures of traced modules, as the rows of a table."""
    return predicted_runs(runs, altered=TracedRuns(cache=trace_cache()))


class TracedRuns:
    """Runs with traced figures; each architecture is traced once.

    cache  folder of earlier traces' figures
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache
        self._found: dict[Transformer, tuple[Transformer, str]] = {}
        self._failed: dict[Transformer, str] = {}

    def __call__(self, run: TrainingRun) -> TrainingRun:
        """The run with traced figures; raises UnsupportedRunError where there are none."""
        model = run.model
        if model.state is not None:
            raise UnsupportedRunError(run.id, "not traced: layers with a state")
        layers = min(model.num_layers, model.first_dense_layers + _LAYERS)
        asked = replace(model, num_layers=layers, window=0, window_layers=0, predicted_ahead=0)
        if asked not in self._found and asked not in self._failed:
            try:
                self._found[asked] = self._trace(asked)
            except ShardwrightError as error:
                self._failed[asked] = str(error)
        if asked in self._failed:
            raise UnsupportedRunError(run.id, f"not traced: {self._failed[asked]}")
        figures, built = self._found[asked]
        figures = replace(
            figures,
            num_layers=model.num_layers,
            window=model.window,
            window_layers=model.window_layers,
            predicted_ahead=model.predicted_ahead,
            predicting_layers=model.predicting_layers,
        )
        said = f"figures traced from {layers} of {model.num_layers} layers of {built}"
        return replace(run, model=figures, defaults=(*run.defaults, said))

    def _trace(self, asked: Transformer) -> tuple[Transformer, str]:
        config = config_of_figures(asked, asked.num_layers)
        built = str(config["architectures"][0])
        spec = ModelSpec(name=str(config["model_type"]), source=built, config=config)
        return traced_figures(spec, cache=self._cache).figures, built
