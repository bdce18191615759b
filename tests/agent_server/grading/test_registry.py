"""Dataset classes of the user's own, by MODULE:CLASS."""

import pytest

from agent_server.grading.datasets.registry import RENAMED, load_dataset
from client.errors import ConfigError


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a class with this body."""
    monkeypatch.syspath_prepend(tmp_path)

    def load(body: str):
        module = f"own_{abs(hash(body))}"
        lines = ["from agent_server.grading.datasets.base import Dataset", "class Own(Dataset):", f"    {body}"]
        (tmp_path / f"{module}.py").write_text("\n".join(lines))
        return load_dataset(f"{module}:Own")

    return load


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_class_with_a_name_of_the_first_release_is_refused(load, old, new):
    """It would be used without its override."""
    with pytest.raises(ConfigError, match=f"rename {old} to {new}"):
        load(f"{old} = lambda self, *_: ()")


def test_a_class_may_use_these_names_beside_the_new_ones(load):
    assert load("hidden = hidden_paths = lambda self, task: ('tests',)").hidden_paths(None) == ("tests",)
    assert load("identifying_columns = frozenset({'mine'})").recognises({"mine": 1})
