"""The order of rows: a pure function of ids, seed and position."""

import pytest

from agent_server.tasks.order import TaskOrder
from client.errors import NotFound

IDS = [f"t{n}" for n in range(5)]


def epoch(order: TaskOrder, mode: str, number: int) -> list[str]:
    return [order.task_at(mode, position) for position in range(5 * number, 5 * number + 5)]


def test_each_training_epoch_has_every_row_once_in_an_order_of_its_own():
    order = TaskOrder({"train": IDS, "eval": IDS}, seed=7)
    epochs = [epoch(order, "train", number) for number in range(3)]
    assert all(sorted(rows) == IDS for rows in epochs) and len(set(map(tuple, epochs))) == 3
    assert epochs == [epoch(TaskOrder({"train": IDS}, seed=7), "train", number) for number in range(3)]
    assert epochs[0] != epoch(TaskOrder({"train": IDS}, seed=8), "train", 0)


def test_without_a_shuffle_training_goes_in_file_order_too():
    order = TaskOrder({"train": IDS, "eval": IDS}, seed=7, shuffle=False)
    assert epoch(order, "train", 0) == epoch(order, "train", 4) == epoch(order, "eval", 1) == IDS


def test_evaluation_goes_in_file_order():
    order = TaskOrder({"train": IDS, "eval": IDS}, seed=7)
    assert epoch(order, "eval", 0) == epoch(order, "eval", 4) == IDS


def test_an_unknown_id_is_refused_with_the_nearest():
    with pytest.raises(NotFound, match="no train task 'tt0'; did you mean 't0'"):
        TaskOrder({"train": IDS}, seed=7).check("train", "tt0")
