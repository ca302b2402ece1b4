"""Bad inputs to the Evidence estimators: an error that says what to do, or the right answer."""

import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from adareg.sklearn import EvidenceClassifier, EvidenceRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N = 24
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 3))
Y = X @ [1, 2, 0] + 0.1 * RANDOM.normal(size=N)
CLASS = np.array(list("abc"))[X.argmax(1)]
YES = CLASS == "a"
LABELS = (X > 0).astype(int)
ONES = np.ones(N)


def regressor(**settings):
    return EvidenceRegressor(3, **{"n_networks": 1, "max_iter": 15, "random_state": 0} | settings)


def classifier(**settings):
    return EvidenceClassifier(3, **{"n_networks": 1, "max_iter": 15, "random_state": 0} | settings)


def put(values, one, at=2):
    """Return a copy, with one entry changed."""
    plain = isinstance(one, float | int) and values.dtype == float
    made = np.array(values, dtype=None if plain else object)
    made.flat[at] = one
    return made


def frame(**columns):
    return pd.DataFrame(columns)


@pytest.fixture(scope="module")
def fitted():
    return regressor().fit(X, Y)


# What is wrong with X or with weights, for both ------------------------------------------------

DAYS = pd.date_range("2020", periods=N)
BAD_X = {
    "nan": (put(X, np.nan), ValueError, "NaN"),
    "infinite": (put(X, np.inf), ValueError, "infinity"),
    "negative infinite": (put(X, -np.inf), ValueError, "infinity"),
    "None": (put(X, None), ValueError, "NaN"),
    "word": (put(X, "a"), ValueError, "string to float: 'a'.*encode words"),
    "dict": (put(X, {}), TypeError, "not 'dict'.*Expected numbers"),
    "categories": (frame(a=pd.Categorical(["u", "v"] * 12)), ValueError, "'u'.*OneHotEncoder"),
    "missing in a frame": (pd.DataFrame(put(X, np.nan)).astype("Float64"), ValueError, "NaN"),
    "complex": (X + 1j, ValueError, "Complex data not supported"),
    "one dimension": (X[:, 0], ValueError, "Expected 2D array"),
    "three dimensions": (X[:, :, None], ValueError, "dim 3"),
    "scalar": (3.0, ValueError, "Expected 2D array"),
    "nothing": (None, ValueError, "Expected 2D array"),
    "no rows": (X[:0], ValueError, "0 sample"),
    "no columns": (X[:, :0], ValueError, "0 feature"),
    "ragged": ([[1, 2], [3]], ValueError, "inhomogeneous"),
    "days in a frame": (frame(a=DAYS), TypeError, r"X has times \(datetime64.*convert them"),
    "days": (np.asarray(DAYS)[:, None], TypeError, "X has times"),
    "durations": (np.asarray(DAYS - DAYS[0])[:, None], TypeError, r"times \(timedelta64"),
    "zoned days": (frame(a=DAYS.tz_localize("UTC")), TypeError, "X has times"),
    "masked": (np.ma.masked_greater(X, 1), ValueError, "X has 13 masked entries.*fill them"),
    "too large": (1e305 * X, ValueError, "X has values up to .*use other units"),
    "sparse with nan": (scipy.sparse.csr_array(put(X, np.nan)), ValueError, "NaN"),
    "names of two kinds": (pd.DataFrame(X, columns=["a", 1, "c"]), TypeError, "string names"),
    "text": ("abc", ValueError, "could not convert string to float: 'abc'"),
    "generator": ((row for row in X), TypeError, "generator"),
    "mapping": ({"a": [1, 2]}, TypeError, "dict"),
    "needs a gradient": (torch.tensor(X, requires_grad=True), RuntimeError, "detach"),
}


@pytest.mark.parametrize(("make", "y"), [(regressor, Y), (classifier, CLASS)])
@pytest.mark.parametrize("case", BAD_X)
def test_inputs_that_are_no_table_of_numbers_are_refused(case, make, y):
    bad, error, message = BAD_X[case]
    with pytest.raises(error, match=f"(?s){message}"):
        make().fit(bad, y[:0] if case == "no rows" else y)


BAD_WEIGHTS = {
    "zero": (0 * ONES, "zero everywhere"),
    "negative": (put(ONES, -1.0), "negative values, -1.0"),
    "nan": (put(ONES, np.nan), "NaN"),
    "infinite": (put(ONES, np.inf), "infinity"),
    "too few": (ONES[1:], r"inconsistent numbers of samples: \[24, 23\]"),
    "a column": (ONES[:, None], r"shape \(24, 1\): expected one for each sample"),
    "words": (["a"] * N, "could not convert string"),
    "None": ([None] * N, "NaN"),
    "complex": (ONES + 1j, "Complex"),
    "no number": (float("nan"), "NaN"),
    "zero for all": (0, "zero everywhere"),
    "negative for all": (-2, "negative values, -2.0"),
    "more than there can be": (1e300 * ONES, r"sums to 2.4e\+301.*divide by a common factor"),
    "one sample": (np.eye(N)[0], "one sample|one class"),
}


@pytest.mark.parametrize(("make", "y"), [(regressor, Y), (classifier, CLASS)])
@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_weights_that_count_nothing_are_refused(case, make, y):
    bad, message = BAD_WEIGHTS[case]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make().fit(X, y, bad)


BAD_SETTINGS = {
    "hidden_layer_sizes": [0, -1, (), (0,), (3, -1), 2.5, "a", (2.5,), [[3]], np.nan, (3, "a")],
    "n_networks": [0, -1, 1.5, "2", None],
    "max_iter": [0, -1, 2.5, None, "a"],
    "tol": [-1, np.nan, np.inf, "a", None, 1j],
    "warm_start": [2, "yes", None],
    "verbose": ["a", None, -1],
    "random_state": ["a", -1, 2.5, np.random.default_rng(0)],
    "device": ["nowhere", 3, "meta"],
}


@pytest.mark.parametrize(("make", "y"), [(EvidenceRegressor, Y), (EvidenceClassifier, CLASS)])
@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_SETTINGS.items() for value in values]
)
def test_settings_are_checked(name, value, make, y):
    with pytest.raises(ValueError, match=f"{name}"):
        make(**{name: value}).fit(X, y)


# What is wrong with targets --------------------------------------------------------------------

BAD_Y = {
    "nan": (put(Y, np.nan), ValueError, "y contains NaN"),
    "infinite": (put(Y, np.inf), ValueError, "y contains infinity"),
    "nothing": (None, ValueError, "requires y"),
    "None": (put(Y, None), ValueError, "y contains NaN"),
    "words": (CLASS, ValueError, "could not convert string.*encode words"),
    "words in a frame": (frame(a=CLASS), ValueError, "could not convert string"),
    "missing": (pd.Series(put(Y, np.nan)).astype("Float64"), ValueError, "NaN"),
    "complex": (Y + 1j, ValueError, "Complex"),
    "days": (DAYS, TypeError, r"y has times \(datetime64.*convert them"),
    "durations": (DAYS - DAYS[0], TypeError, "y has times"),
    "too few": (Y[1:], ValueError, "inconsistent"),
    "a row": (Y[None], ValueError, "inconsistent"),
    "three dimensions": (np.zeros((N, 2, 2)), ValueError, "dim 3"),
    "no targets": (np.zeros((N, 0)), ValueError, "0 feature"),
    "scalar": (1.0, TypeError, "dimension"),
    "sparse": (scipy.sparse.csr_array(Y[:, None]), TypeError, r"y is sparse.*toarray\(\)"),
    "masked": (np.ma.masked_greater(Y, 1), ValueError, "y has 7 masked entries"),
    "huge": (1e200 * Y, ValueError, r"target 0 has a deviation of 2.*e\+200.*other units"),
    "tiny": (1e-200 * Y, ValueError, "target 0 has a deviation of 2.*e-200.*other units"),
    "one of two huge": (np.c_[Y, 1e200 * Y], ValueError, "target 1 has a deviation"),
}
BAD_CLASSES = {
    "nan": (np.where(YES, np.nan, 1.0), ValueError, "NaN"),
    "nan among words": (put(CLASS, np.nan), ValueError, "1 missing labels, nan.*leave these"),
    "None among words": (put(CLASS, None), ValueError, "1 missing labels, None"),
    "NA": (pd.Series(CLASS, dtype="string").mask(YES), ValueError, "missing labels, (<NA>|nan)"),
    "NA among integers": (pd.Series(YES + 0, dtype="Int64").mask(YES), ValueError, "NaN|missing"),
    "nothing": (None, ValueError, "requires y"),
    "infinite": (np.where(YES, np.inf, 1.0), ValueError, "infinity"),
    "numbers": (Y, ValueError, "continuous"),
    "one class": (["a"] * N, ValueError, "only one class, 'a'"),
    "two types": (put(CLASS, 1), ValueError, "y has text and other labels, 1 for"),
    "dicts": (np.array([{}, {}] * 12, object), ValueError, "Unknown label type"),
    "complex": (np.where(YES, 1j, 0), ValueError, "Complex|complex"),
    "bytes": (np.array([b"a", b"b"] * 12), TypeError, "bytes"),
    "too few": (CLASS[1:], ValueError, "inconsistent"),
    "three dimensions": (np.zeros((N, 2, 2)), ValueError, "dim 3"),
    "no labels": (np.zeros((N, 0)), ValueError, "0 feature"),
    "two columns of classes": (
        np.c_[YES, np.arange(N) % 3],
        ValueError,
        "2 columns of classes.*MultiOutputClassifier",
    ),
    "labels of two": (2 * LABELS, ValueError, "with 2 for example: expected zeros and ones"),
    "negative labels": (LABELS - 1, ValueError, "with -1 for example"),
    "labels with nan": (np.where(LABELS > 0, np.nan, 0), ValueError, "NaN"),
    "sparse labels": (scipy.sparse.csr_array(LABELS), TypeError, r"y is sparse.*toarray\(\)"),
    "lists of labels": ([[1], [1, 2]] * 12, ValueError, "inhomogeneous"),
    "masked": (np.ma.masked_equal(YES + 0, 1), ValueError, "y has 8 masked"),
}


@pytest.mark.parametrize("case", BAD_Y)
def test_targets_that_are_no_numbers_are_refused(case):
    bad, error, message = BAD_Y[case]
    with pytest.raises(error, match=f"(?s){message}"):
        regressor().fit(X, bad)


@pytest.mark.parametrize("case", BAD_CLASSES)
def test_targets_that_are_no_classes_are_refused(case):
    bad, error, message = BAD_CLASSES[case]
    with pytest.raises(error, match=f"(?s){message}"):
        classifier().fit(X, bad)


@pytest.mark.parametrize("likelihood", ["x", 1])
def test_the_likelihood_is_checked(likelihood):
    with pytest.raises(ValueError, match="likelihood"):
        regressor(likelihood=likelihood).fit(X, Y)


# What is wrong when predicting -----------------------------------------------------------------

BAD_CALLS = {
    "fewer columns": (lambda f: f.predict(X[:, :2]), ValueError, "expecting 3 features"),
    "more columns": (lambda f: f.predict(np.c_[X, X]), ValueError, "expecting 3 features"),
    "one row as a vector": (lambda f: f.predict(X[0]), ValueError, "Expected 2D array"),
    "no rows": (lambda f: f.predict(X[:0]), ValueError, "0 sample"),
    "nan": (lambda f: f.predict(put(X, np.nan)), ValueError, "NaN"),
    "words": (lambda f: f.predict(put(X, "a")), ValueError, "encode words"),
    "days": (lambda f: f.predict(np.tile(np.asarray(DAYS)[:, None], 3)), TypeError, "has times"),
    "masked": (lambda f: f.predict(np.ma.masked_greater(X, 1)), ValueError, "13 masked"),
    "both": (lambda f: f.predict(X, True, True), ValueError, "return_std and return_cov"),
    "level 0": (lambda f: f.predict_interval(X, 0), ValueError, "level=0: expected a prob"),
    "level 95": (lambda f: f.predict_interval(X, 95), ValueError, "level=95"),
    "level nan": (lambda f: f.predict_interval(X, np.nan), ValueError, "level=nan"),
    "a word as level": (lambda f: f.predict_interval(X, "a"), ValueError, "level='a'"),
    "no draws": (lambda f: f.sample_y(X, 0), ValueError, "n_samples=0: expected"),
    "half a draw": (lambda f: f.sample_y(X, 2.5), ValueError, "n_samples=2.5"),
    "a word as draws": (lambda f: f.sample_y(X, "a"), ValueError, "n_samples='a'"),
    "a word as seed": (lambda f: f.sample_y(X, 2, "a"), ValueError, "'a' cannot be used to seed"),
    "fewer true values": (lambda f: f.score(X, Y[1:]), ValueError, "inconsistent"),
    "fewer to plot": (lambda f: f.plot_predictions(X, Y[1:]), ValueError, r"y of shape \(23,\)"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_predictions_of_nothing_are_refused(case, fitted):
    call, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=f"(?s){message}"):
        call(fitted)


@pytest.mark.parametrize(
    "call",
    [
        lambda: regressor().predict(X),
        lambda: regressor().sample_y(X),
        lambda: regressor().predict_interval(X),
        lambda: regressor().plot_relevance(),
        lambda: classifier().predict(X),
        lambda: classifier().predict_proba(X),
        lambda: classifier().plot_correlation(),
    ],
)
def test_what_is_not_fitted_says_so(call):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        call()


def test_columns_of_other_names_are_refused():
    known = regressor().fit(pd.DataFrame(X, columns=list("abc")), Y)
    for names in ("abd", "cba"):
        with pytest.raises(ValueError, match="feature names"):
            known.predict(pd.DataFrame(X, columns=list(names)))


# What is odd, and right ------------------------------------------------------------------------

SAME = {
    "lists": lambda: (X.tolist(), Y.tolist()),
    "Fortran's order": lambda: (np.asfortranarray(X), Y),
    "every other of a larger table": lambda: (np.repeat(X, 2, 0)[::2], np.repeat(Y, 2)[::2]),
    "read-only": lambda: (np.frombuffer(X.tobytes()).reshape(N, 3), np.frombuffer(Y.tobytes())),
    "long doubles": lambda: (X.astype(np.longdouble), Y.astype(np.longdouble)),
    "numbers as text": lambda: (X.astype(str), Y.astype(str)),
    "objects": lambda: (X.astype(object), Y.astype(object)),
    "decimals": lambda: ([[Decimal(x) for x in row] for row in X.tolist()], Y),
    "tensors": lambda: (torch.tensor(X), torch.tensor(Y)),
    "a frame": lambda: (pd.DataFrame(X, index=range(N, 0, -1)), pd.Series(Y, index=range(5, 29))),
    "nullable": lambda: (pd.DataFrame(X).astype("Float64"), pd.Series(Y).astype("Float64")),
    "nothing masked": lambda: (np.ma.array(X), np.ma.array(Y)),
    "csr": lambda: (scipy.sparse.csr_array(X), Y),
    "csc": lambda: (scipy.sparse.csc_matrix(X), Y),
    "coo": lambda: (scipy.sparse.coo_array(X), Y),
    "huge units": lambda: (2.0**660 * X, Y),
    "tiny units": lambda: (2.0**-660 * X, Y),
    "units of columns": lambda: (X * 2.0 ** np.array([-500, 0, 500]), Y),
}


def predictions(estimator, table):
    """Return what is predicted for the training data, without the warnings about names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        return estimator.predict(table)


@pytest.mark.parametrize("case", SAME)
def test_the_same_table_in_another_form_has_the_same_answer(case, fitted):
    table, y = SAME[case]()
    found = predictions(regressor().fit(table, y), table)
    np.testing.assert_allclose(found, fitted.predict(X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "y"),
    {
        "booleans": YES,
        "bytes of numbers": YES.astype(np.uint8),
        "floats": np.where(YES, 2.0, 1.0),
        "negative": np.where(YES, 3, -5),
        "large": np.where(YES, 10**18 + 1, 10**18),
        "long words": np.where(YES, "y" * 999, "x" * 999),
        "an empty word": np.where(YES, "b", ""),
        "categories": pd.Series(np.where(YES, "b", "a"), dtype="category"),
        "days": np.where(YES, np.datetime64("2021-01-01"), np.datetime64("2020-01-01")),
        "a tensor": torch.tensor(YES),
    }.items(),
    ids=str,
)
def test_classes_by_any_name_are_told_apart_alike(name, y):
    told = classifier().fit(X, y)
    usual = classifier().fit(X, np.where(YES, "b", "a"))
    order = slice(None) if np.unique(np.asarray(y))[1] == np.asarray(y)[YES][0] else slice(1, None)
    np.testing.assert_allclose(told.predict_proba(X)[:, order], usual.predict_proba(X)[:, order])
    assert set(told.predict(X)) <= set(np.unique(np.asarray(y)))


def test_constant_columns_say_nothing():
    more = np.c_[X, np.full(N, 7.0), np.full(N, 1e299), np.zeros(N), np.full(N, 0.1)]
    found = regressor().fit(more, Y)
    assert found.score(more, Y) > 0.99
    assert np.asarray(found.relevance_)[3:].sum() < 1e-6


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-9, 1e14, 1e290])
def test_a_constant_target_is_predicted_exactly_whatever_its_size(value):
    mean, std = regressor().fit(X, np.full(N, value)).predict(X, return_std=True)
    assert mean == pytest.approx(value, rel=1e-12, abs=1e-3)
    assert (std < 1e-2).all()


def test_inputs_that_say_nothing_leave_the_mean_and_its_spread():
    for table in (np.zeros((N, 3)), np.ones((N, 1)), scipy.sparse.csr_array((N, 2))):
        mean, std = regressor().fit(table, Y).predict(table, return_std=True)
        assert mean == pytest.approx(Y.mean(), abs=1e-6)
        assert std == pytest.approx(Y.std(ddof=1) * np.ones(N), rel=0.1)
        shares = classifier().fit(table, CLASS).predict_proba(table)
        frequencies = [(c == CLASS).mean() for c in "abc"]
        np.testing.assert_allclose(shares, np.tile(frequencies, (N, 1)), atol=0.1)


@pytest.mark.filterwarnings("ignore:X. . of 3 columns")
@pytest.mark.parametrize("n", [2, 3])
def test_very_few_rows_are_told_with_little_certainty(n):
    mean, std = regressor().fit(X[:n], Y[:n]).predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert std[n:].mean() > 0.3 * Y[:n].std()


def test_labels_that_all_or_none_have():
    told = classifier().fit(X, np.c_[LABELS, np.ones(N, int), np.zeros(N, int)])
    assert (told.predict(X)[:, 3:] == [1, 0]).all()
    assert (told.predict_proba(X)[:, 3] > 0.9).all()


def test_a_class_of_one_sample_and_classes_of_one_sample_each():
    assert classifier().fit(X, put(CLASS, "z").astype(str)).classes_.tolist() == list("abcz")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes")
        shares = classifier().fit(X, np.arange(N)).predict_proba(X)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert np.median(shares.max(1)) < 0.9  # nobody can be sure


def test_samples_without_weight_are_as_if_they_were_not_there():
    keep = np.arange(N) % 3 > 0
    for make, y in ((regressor, Y), (classifier, CLASS)):
        kept = make().fit(X[keep], y[keep])
        weighted = make().fit(X, y, keep.astype(float))
        np.testing.assert_array_equal(kept.predict(X[keep]), weighted.predict(X[keep]))
    assert classifier().fit(X, CLASS, CLASS != "c").classes_.tolist() == ["a", "b"]


def test_far_from_the_training_data_it_warns_and_stays_finite(fitted):
    for factor in (1e10, 1e300):
        with pytest.warns(UserWarning, match="3 of 3 columns.*leave their training range"):
            mean, std = fitted.predict(factor * X, return_std=True)
        assert np.isfinite(mean).all()
        assert (std > fitted.predict(X, return_std=True)[1]).all()


def test_what_has_not_converged_says_so():
    with pytest.warns(ConvergenceWarning, match="max_iter=1 steps; raise max_iter"):
        regressor(max_iter=1).fit(X, Y)
