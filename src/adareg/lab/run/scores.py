"""Scores beside accuracy: likelihood and calibration on the test samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adareg.lab.run import calibration, tuning
from adareg.lab.train.stacked import Trainer


@torch.no_grad()
def scores(trainer: Trainer, choices: tuning.Choices) -> list[dict[str, Any]]:
    """Negative log-likelihood and calibration error of each replica, and what it was tuned to."""
    data = trainer.data
    output = torch.cat([part for _, part in trainer.predict(data.x_test)], 1)
    noise = None
    if data.task == "classification":
        y = data.y_test.expand(len(output), -1)
        loss = data.loss(output.double(), y).mean(1)
        error = calibration.classification(output, y)
    else:
        errors, noise = output - data.y_test, _noise(trainer, choices)
        loss = calibration.gaussian_loss(errors, noise)
        error = calibration.regression(errors, noise)
    return [
        {
            "tuned": replica.value,
            "test_nll": loss[i].item(),
            "test_calibration": error[i].item(),
            "noise": None if noise is None else noise[i].item(),
        }
        for i, replica in enumerate(trainer.replicas)
    ]


def _noise(trainer: Trainer, choices: tuning.Choices) -> Tensor:  # (R,)
    """Return the variance of a regression's errors as each method knows it.

    That which an ingredient knows; else the validation loss of the trials; else the training loss.
    """
    data, known = trainer.data, trainer.noises()
    squares = torch.zeros(len(trainer.replicas), dtype=torch.float64, device=data.x.device)
    for part, output in trainer.predict(data.x, trainer.subset):
        squares += data.loss(output, data.y[trainer.subset[:, part]]).double().sum(1)
    training = (squares / trainer.subset.shape[1]).tolist()
    noise = []
    for i, replica in enumerate(trainer.replicas):
        choice = tuning.find(replica, choices) if replica.value is not None else None
        otherwise = training[i] if choice is None else choice.loss
        noise.append(known.get(i, otherwise))
    return squares.new_tensor(noise)
