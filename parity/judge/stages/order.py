"""The stages in causal order; the first that differs, given equal inputs, is the cause."""

from parity.judge.stages import (
    answer,
    batch,
    images,
    model,
    prompt,
    sampling,
    stop,
)
from parity.judge.stages.stage import Stage

ALL: tuple[Stage, ...] = (
    prompt.STAGE,
    images.STAGE,
    batch.STAGE,
    model.STAGE,
    sampling.STAGE,
    stop.STAGE,
    answer.STAGE,
)
OF_FIELD: dict[str, Stage] = {}
for _stage in ALL:
    OF_FIELD.update(dict.fromkeys(_stage.fields, _stage))
