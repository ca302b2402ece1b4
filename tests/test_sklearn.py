import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from adareg.sklearn import AdaRegClassifier, AdaRegRegressor

@parametrize_with_checks([AdaRegClassifier(max_iter=100), AdaRegRegressor(max_iter=100)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_contract(estimator, check):
    check(estimator)
