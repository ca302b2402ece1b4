"""Methods can be told apart, also without colour."""

from itertools import combinations, pairwise

import pandas as pd
import pytest
from matplotlib.figure import Figure

from adareg.lab.experiments import COMPARED
from adareg.lab.report import style
from adareg.lab.report.figures import curves
from adareg.lab.train.methods import METHODS


def test_every_method_has_a_look_of_its_own():
    assert style.LOOKS.keys() == METHODS.keys()
    colours = [look.colour for look in style.LOOKS.values()]
    assert len(set(colours)) == len(colours)
    shapes = [(look.marker, look.dashes) for look in style.LOOKS.values()]
    assert len(set(shapes)) == len(shapes)


def rgb(colour):
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def seen(colour, matrix):
    """A colour as Machado et al. (2009) simulate complete colour blindness of one kind."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(colour)]
    return [sum(m * c for m, c in zip(row, linear, strict=True)) for row in matrix]


DEUTERANOPIA = [(0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)]
PROTANOPIA = [(0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)]


def test_colour_blind_readers_can_tell_the_papers_methods_apart():
    for matrix in (DEUTERANOPIA, PROTANOPIA):
        for one, other in combinations(COMPARED, 2):
            a, b = (seen(style.look(method).colour, matrix) for method in (one, other))
            distance = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
            assert distance > 0.1, (one, other)


def luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(colour)]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colours_show_on_white_and_on_a_dark_page():
    for method, look in style.LOOKS.items():
        if look.colour != style.INK:
            level = luminance(look.colour)
            assert 1.05 / (level + 0.05) > 2, method
            assert (level + 0.05) / (luminance("#14171a") + 0.05) > 3, method


def test_unknown_methods_are_grey_and_last():
    assert style.look("mystery").colour == "#808080"
    assert style.ordered(["zebra", "adareg", "none"]) == ["none", "adareg", "zebra"]
    assert style.label("zebra") == "zebra"


@pytest.mark.parametrize(
    "sizes",
    [
        [60 * 2**i for i in range(10)] + [60_000],
        [2**i for i in range(7, 16)] + [60_000],
        [100, 400, 1600, 3483],
        list(range(5_000, 50_001, 5_000)),
    ],
)
def test_training_sizes_along_an_axis_have_room(sizes):
    axes = Figure(figsize=(3.9, 2.9)).subplots()
    axes.set_xlim(sizes[0], sizes[-1])
    curves.sizes(axes, pd.Series(sizes))
    box = axes.get_window_extent()
    labels = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(labels) > 3
    assert max(label.x1 for label in labels) > box.x1  # the largest size is named
    for left, right in pairwise(labels):
        assert right.x0 - left.x1 > 0.02 * box.width
