import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from adareg.nn.layout import Layout, register_layout
from adareg.nn.select import select
from training import Tied


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3))
        self.embed = nn.Embedding(10, 6)
        self.attention = nn.MultiheadAttention(6, 2)
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 4)


def names(model, layers):
    return [layer.name for layer in select(model, layers)]


CONV = ["stem.0", "stem.2"]
FC = ["attention.in_proj_weight", "attention.out_proj", "hidden", "head"]
ALL = ["stem.0", "stem.2", "embed", *FC]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("last", ["head"]),
        ("fc", FC),
        ("conv", CONV),
        ("embedding", ["embed"]),
        ("all", ALL),
        ("hidden", ["hidden"]),
        ("stem", CONV),
        ("attention", FC[:2]),
        ("attention.in_proj_weight", FC[:1]),
        ("h*", ["hidden", "head"]),
        ("stem.*", CONV),
        ("*", ALL),
        (["head", "hidden"], ["hidden", "head"]),  # the model's order
        (["head", "last", "h*"], ["hidden", "head"]),  # once each
        (("conv", "last"), [*CONV, "head"]),
    ],
)
def test_keywords_names_and_patterns(layers, expected):
    assert names(Net(), layers) == expected


def test_modules():
    net = Net()
    assert names(net, net.head) == ["head"]
    assert names(net, [net.stem, net.embed]) == [*CONV, "embed"]
    assert names(nn.Linear(2, 3), "last") == ["weight"]


def test_compiled_model_stands_for_its_own():
    net = Net()
    assert names(torch.compile(net), "all") == ALL


def test_tied_weights_are_taken_once():
    assert names(Tied(), "all") == ["embed"]
    assert names(Tied(), "last") == ["head"]


@pytest.mark.parametrize("layers", ["nothing", "no.*", ["head", "nothing"]])
def test_no_match_lists_what_there_is(layers):
    with pytest.raises(
        ValueError, match=r"'no.*matches no layer.*stem\.0.*attention\.in_proj_weight"
    ):
        select(Net(), layers)


def test_empty_selections():
    with pytest.raises(ValueError, match="selects nothing"):
        select(Net(), [])
    with pytest.raises(ValueError, match="selects nothing; the layers there are: head"):
        select(nn.ModuleDict({"head": nn.Linear(2, 2)}), "conv")
    with pytest.raises(ValueError, match="no layer that can have a prior"):
        select(nn.Sequential(nn.ReLU()), "all")
    with pytest.raises(ValueError, match="this Linear holds no layer of the model"):
        select(Net(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="'0', a Flatten, holds no layer of the model; .*: 1"):
        select(nn.Sequential(nn.Flatten(), nn.Linear(2, 2)), "0")
    with pytest.raises(TypeError, match="strings or modules, got 3"):
        select(Net(), [3])


def _frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.requires_grad_(False)
    return model


def _old_weight_norm():
    with pytest.warns(FutureWarning):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)))


@pytest.mark.parametrize(
    ("make", "layers", "message"),
    [
        (_frozen, "last", r"1: the weight is frozen.*layers that can have one: 0"),
        (_frozen, "1", r"frozen .requires_grad=False.*; unfreeze it first, or name others"),
        (_frozen, "all", r"1: the weight is frozen.*to leave it out, use layers=\['0'\]"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "last", "lazy; run one forward pass"),
        (lambda: nn.Sequential(nn.LazyConv2d(3, 3)), "all", "lazy; run one forward pass"),
        (lambda: nn.Sequential(nn.Linear(0, 3)), "last", r"empty, \(3, 0\)"),
        (
            lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
            "1",
            "BatchNorm1d is one-dimensional",
        ),
        (
            lambda: nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 3)),
            "all",
            "type LSTM are not supported; adareg",
        ),
        (
            lambda: nn.Sequential(nn.Linear(2, 3), nn.Bilinear(3, 3, 3)),
            "last",
            "type Bilinear are not",
        ),
        (lambda: nn.Sequential(nn.Linear(2, 3, dtype=torch.complex64)), "last", "torch.complex64"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_weights_that_cannot_have_a_prior_are_refused(make, layers, message):
    with pytest.raises(ValueError, match="(?is)cannot put a prior on.*" + message):
        select(make(), layers)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(3, 4))


def test_a_matrix_of_any_name_is_not_passed_over():
    model = nn.Sequential(nn.Linear(4, 4), Head())
    for layers in ("last", "all"):
        with pytest.raises(ValueError, match="1: layers of type Head are not supported"):
            select(model, layers)
    model[0].position = nn.Parameter(torch.zeros(1, 5, 4))  # but this is no layer
    assert names(model, "0") == ["0"]


def test_wrong_models_and_meta_weights_are_named():
    with pytest.raises(TypeError, match="model: expected a torch.nn.Module, got None"):
        select(None, "last")
    for layers in (None, 5):
        with pytest.raises(TypeError, match=f"strings or modules, got {layers}"):
            select(Net(), layers)
    with pytest.raises(ValueError, match="'' matches no layer"):
        select(Net(), "")
    with pytest.raises(ValueError, match="meta device"):
        select(Net().to("meta"), "last")


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout("kernle"), "parameter 'kernle', which Mine lacks"),
        (Layout("table", lambda w: w.mT), "does not put each entry back"),
        (Layout("table", lambda w: w.flatten(), lambda m: m.reshape(3, 4)), "is no matrix"),
    ],
)
def test_a_wrong_layout_is_named(layout, message):
    class Mine(Head):
        pass

    register_layout(Mine, kind="fc")(lambda module: [layout])
    with pytest.raises(ValueError, match=message):
        select(nn.Sequential(Mine()), "last")


@pytest.mark.parametrize(
    "layout",
    [
        Layout("table", lambda w: w.mT),
        Layout("table", lambda w: w, lambda m: m.mT),
        Layout("table", lambda w: w.view(2, 2, 4), lambda m: m.mT.reshape(4, 4)),
        Layout("table", lambda w: 2 * w),
    ],
)
def test_a_layout_that_moves_entries_of_a_square_weight_is_named(layout):
    class Square(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(4, 4))  # its values alone would not tell

    register_layout(Square, kind="fc")(lambda module: [layout])
    with pytest.raises(ValueError, match="does not put each entry back"):
        select(nn.Sequential(Square()), "last")


def test_a_shared_module_answers_to_both_names():
    model = nn.ModuleDict({"first": nn.Linear(2, 2)})
    model["second"] = model["first"]
    assert names(model, "second") == ["first"]


def test_deprecated_weight_norm_is_refused():
    with pytest.raises(ValueError, match="not a parameter.*parametrizations"):
        select(_old_weight_norm(), "last")


def test_parametrized_weights_are_found():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)))
    (layer,) = select(model, "all")
    assert layer.name == "0"
    assert layer.parametrized
    assert len(layer.parameters) == 2
    assert layer.matrix.shape == (3, 4)
    with torch.no_grad():
        assert select(model, "all")[0].name == "0"
