"""ElmoVectorizer follows the conventions of scikit-learn."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from facts import mentions
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from torchelmo import SentenceEncoder
from torchelmo.errors import ConfigError, InputError
from torchelmo.integrations.sklearn import ElmoVectorizer, _load

TEXTS = ["It rained all day.", "Snow fell.", "A storm came.", "Fry the onions.", "Boil two eggs.", "Add some salt."]
LABELS = ["weather"] * 3 + ["food"] * 3

# These checks of scikit-learn pass.
PASSED = {
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_estimator_repr",
    "check_valid_tag_types",
    "check_no_attributes_set_in_init",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_transformer_n_iter",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
}
# These fit arrays of numbers, which this transformer of texts refuses.
FIT_NUMBERS = """fit_score_takes_y dont_overwrite_parameters estimators_overwrite_params estimators_fit_returns_self
    readonly_memmap_input n_features_in_after_fitting positive_only_tag_during_fit estimators_dtypes complex_data
    dtype_object estimators_empty_data_messages pipeline_consistency estimators_nan_inf estimator_sparse_tag
    estimator_sparse_array estimator_sparse_matrix estimators_pickle f_contiguous_array_estimator
    transformer_data_not_an_array transformer_general transformers_unfitted_stateless methods_sample_order_invariance
    methods_subset_invariance fit2d_1sample fit2d_1feature dict_unchanged fit_idempotent fit_check_is_fitted
    n_features_in fit1d fit2d_predict1d array_api_input"""
EXPECTED_FAILURES = {f"check_{name}": "fits numbers instead of texts" for name in FIT_NUMBERS.split()}


@pytest.fixture
def vectorizer(bilm_folder):
    return ElmoVectorizer(str(bilm_folder))


def test_check_estimator(vectorizer):
    with pytest.warns(SkipTestWarning):  # scikit-learn has no data for estimators of texts
        check_estimator(vectorizer)


class _TakesTables(ElmoVectorizer):
    """Claims to take tables of numbers, so that scikit-learn runs its checks."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


def test_every_check_passes_that_does_not_fit_numbers(bilm_folder):
    tables = _TakesTables(str(bilm_folder))
    results = check_estimator(tables, expected_failed_checks=EXPECTED_FAILURES, on_skip=None)
    assert {result["check_name"] for result in results if result["status"] == "passed"} >= PASSED


def test_the_vectors_are_those_of_the_sentence_encoder(vectorizer, bilm_folder):
    expected = SentenceEncoder(bilm_folder).encode(TEXTS)
    assert vectorizer.fit_transform(TEXTS).dtype == np.float32
    np.testing.assert_allclose(vectorizer.transform(TEXTS), expected, atol=1e-6)
    for column in (
        np.array(TEXTS),
        np.array(TEXTS, dtype=object)[:, None],
        pd.Series(TEXTS),
        pd.DataFrame({"t": TEXTS}),
    ):
        np.testing.assert_allclose(vectorizer.transform(column), expected, atol=1e-6)


def test_it_needs_no_fit_unless_it_removes_components(vectorizer, bilm_folder):
    assert vectorizer.transform(TEXTS).shape == (6, 16)
    vectorizer.set_params(remove_components=1)
    with pytest.raises(NotFittedError):
        vectorizer.transform(TEXTS)
    expected = SentenceEncoder(bilm_folder).fit(TEXTS).encode(TEXTS)
    np.testing.assert_allclose(vectorizer.fit_transform(TEXTS), expected, atol=1e-6)


def test_clones_and_pickles_share_the_model_and_do_not_contain_it(vectorizer):
    vectorizer.set_params(remove_components=0, pooling="ends")
    expected = vectorizer.fit_transform(TEXTS)
    copy = clone(vectorizer)
    assert copy.get_params() == vectorizer.get_params()
    np.testing.assert_allclose(copy.fit_transform(TEXTS), expected, atol=1e-6)
    assert copy._encoder().elmo is vectorizer._encoder().elmo
    data = pickle.dumps(vectorizer)
    assert len(data) < 5000
    np.testing.assert_allclose(pickle.loads(data).transform(TEXTS), expected, atol=1e-6)  # noqa: S301


def test_a_model_that_changed_on_disk_is_loaded_again(tiny_bilm, tmp_path):
    tiny_bilm.save(tmp_path / "m")
    first = ElmoVectorizer(tmp_path / "m")._encoder().elmo
    tiny_bilm.save(tmp_path / "m")
    assert ElmoVectorizer(tmp_path / "m")._encoder().elmo is not first
    assert _load.cache_info().maxsize == 2


def test_a_bilm_as_an_object(tiny_bilm, vectorizer):
    np.testing.assert_allclose(ElmoVectorizer(tiny_bilm).transform(TEXTS), vectorizer.transform(TEXTS), atol=1e-6)
    np.testing.assert_allclose(
        clone(ElmoVectorizer(tiny_bilm)).transform(TEXTS), vectorizer.transform(TEXTS), atol=1e-6
    )


def test_columns_have_names(vectorizer):
    frame = vectorizer.set_output(transform="pandas").fit_transform(pd.Series(TEXTS, index=list("abcdef")))
    assert list(frame.columns) == [f"elmo{i}" for i in range(16)] == list(vectorizer.get_feature_names_out())
    assert list(frame.index) == list("abcdef")


def test_a_column_of_a_table(vectorizer):
    table = pd.DataFrame({"text": TEXTS, "n": range(6)})
    both = ColumnTransformer([("text", vectorizer, "text"), ("n", "passthrough", ["n"])])
    assert both.fit_transform(table).shape == (6, 17)


def test_grid_search(vectorizer):
    model = make_pipeline(vectorizer, LogisticRegression())
    grid = {"elmovectorizer__pooling": ["mean", "max"], "elmovectorizer__remove_components": [None, 1]}
    search = GridSearchCV(model, grid, cv=2).fit(TEXTS, LABELS)
    assert search.predict(TEXTS).shape == (6,)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.slow
def test_joblib_in_two_processes(vectorizer):
    halves = joblib.Parallel(n_jobs=2)(joblib.delayed(vectorizer.transform)(part) for part in (TEXTS[:3], TEXTS[3:]))
    np.testing.assert_allclose(np.concatenate(halves), vectorizer.transform(TEXTS), atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        ("one text", "'one text'"),
        (5, 5),
        ({"a": 1}, "'a'"),
        (np.zeros((2, 3)), "(2, 3)"),
        (pd.DataFrame({"a": TEXTS, "b": TEXTS}), "(6, 2)"),
        (pd.Series(["text", None]), "Sentence 1"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(vectorizer, wrong, fact):
    with pytest.raises(InputError, match=mentions(fact)):
        vectorizer.fit(wrong)


def test_wrong_settings_are_found_by_fit(vectorizer):
    vectorizer.set_params(pooling="cls")
    with pytest.raises(ConfigError, match=mentions("pooling", "'cls'")):
        vectorizer.fit(TEXTS)
