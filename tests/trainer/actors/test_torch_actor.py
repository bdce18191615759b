"""The torch actor: its step against a plain reference implementation, its files, the models it rejects."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma3TextConfig

from client.errors import ConfigError
from tests.trainer.actors.traces import contexts, sampled_after, trace
from trainer.actors.base import TrainingSample
from trainer.actors.torch_actor import TorchActor

LEARNING_RATE = 1e-3


def actor(directory: Path, **options) -> TorchActor:
    """An actor in float32 on the CPU, so that results can be compared closely."""
    return TorchActor(
        directory, **{"learning_rate": LEARNING_RATE, "device": "cpu", "compute_dtype": torch.float32} | options
    )


def group(seed: int, advantages: tuple[float, ...] = (1.0, 1.0, -2.0)) -> list[TrainingSample]:
    generator = torch.Generator().manual_seed(seed)

    def tokens(n: int) -> list[int]:
        return torch.randint(0, 300, (n,), generator=generator).tolist()

    prompt = tokens(12)

    def sample(advantage: float) -> TrainingSample:
        turns = ((-1, prompt), (0, tokens(5), [-5.7] * 5), (1, tokens(8)), (2, tokens(4), [-5.9] * 4))
        return TrainingSample(trace(*turns), advantage)

    return [sample(advantage) for advantage in advantages]


def weights_of(actor: TorchActor, folder: Path) -> dict[str, torch.Tensor]:
    """The master weights, as `save_state` writes them."""
    actor.save_state(folder)
    return torch.load(folder / "actor.pt", weights_only=True)["model"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 0.0) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[name], other[name], rtol=0, atol=atol) for name in one)


def reference_step(directory: Path, groups: list[list[TrainingSample]]) -> tuple[dict, dict[str, torch.Tensor]]:
    """One step without packing, microbatches and the loss module: (metrics, new weights)."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    terms, differences, entropies, n_clipped = [], [], [], 0
    for sample in (s for g in groups for s in g):
        rows = [[token for token, _ in context] for context in contexts(sample.trace)]
        logprobs = {}
        for row in rows:
            values = model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1)
            logprobs |= {tuple(row[: n + 1]): values[n] for n in range(len(row))}
        for context, old in sampled_after(sample.trace).items():
            here = logprobs[context[:-1]]
            ratio = (here[context[-1]] - old).exp()
            clipped = ratio.clamp(0.8, 1.28)
            terms.append(torch.minimum(ratio * sample.advantage, clipped * sample.advantage))
            n_clipped += int(clipped.item() * sample.advantage < ratio.item() * sample.advantage)
            differences.append(abs(here[context[-1]].item() - old))
            entropies.append(-(here.exp() * here).sum().item())
    loss = -torch.stack(terms).mean()
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    n = len(terms)
    metrics = {
        "loss": loss.item(),
        "grad_norm": grad_norm.item(),
        "entropy": sum(entropies) / n,
        "clip_fraction": n_clipped / n,
        "logprob_diff_mean": sum(differences) / n,
        "logprob_diff_max": max(differences),
        "n_tokens": n,
        "updated": True,
    }
    return metrics, model.state_dict()


@pytest.mark.parametrize("max_microbatch_tokens", [10_000, 60, 1])
def test_a_step_equals_the_reference(tiny_llama, tmp_path, max_microbatch_tokens):
    groups = [group(0), group(1, (0.0, 0.5, -0.5))]
    trained = actor(tiny_llama, max_microbatch_tokens=max_microbatch_tokens)
    report = trained.step(groups)
    metrics, weights = reference_step(tiny_llama, groups)
    assert {name: getattr(report, name) for name in metrics} == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    assert 0 < report.clip_fraction < 1
    # Adam scales the rounding of a vanishing gradient up to a part of the learning rate: compare the total distance.
    before = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).state_dict()
    after = weights_of(trained, tmp_path / "state")
    moved = sum((weights[name] - before[name]).norm() ** 2 for name in weights) ** 0.5
    apart = sum((weights[name] - after[name]).norm() ** 2 for name in weights) ** 0.5
    assert moved > 0 and apart < 0.01 * moved


def test_shared_tokens_are_forwarded_once(tiny_llama):
    report = actor(tiny_llama, max_microbatch_tokens=10_000).step([group(0)])
    assert report.n_tokens == 3 * 9
    assert report.n_forward_tokens == 12 + 3 * 17  # a leaf's last token included


def test_bfloat16_computes_nearly_the_same(tiny_llama):
    reports = [actor(tiny_llama, compute_dtype=dtype).step([group(0)]) for dtype in (torch.float32, torch.bfloat16)]
    assert reports[1].logprob_diff_mean == pytest.approx(reports[0].logprob_diff_mean, abs=0.1)
    assert reports[1].grad_norm == pytest.approx(reports[0].grad_norm, rel=0.1)


def mean_logprob(directory: Path, sample: TrainingSample) -> float:
    """Mean logprob of the sample's sampled tokens under the model in `directory`."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    whole = max(contexts(sample.trace), key=len)
    tokens = torch.tensor([token for token, _ in whole])
    with torch.no_grad():
        logprobs = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
    sampled = [n for n, (_, logprob) in enumerate(whole) if logprob is not None]
    return logprobs[[n - 1 for n in sampled], tokens[sampled]].mean().item()


def test_good_samples_become_likelier_and_bad_ones_less(tiny_llama, tmp_path):
    trained, samples = actor(tiny_llama, learning_rate=3e-4, clip_high=1e9), group(3, (1.0, -1.0))
    before = [mean_logprob(tiny_llama, sample) for sample in samples]
    for _ in range(3):
        trained.step([samples])
    trained.save_weights(tmp_path / "weights")
    good, bad = (mean_logprob(tmp_path / "weights", sample) - was for sample, was in zip(samples, before, strict=True))
    assert good > 0.01 and bad < good


def test_an_sft_step_makes_the_sampled_tokens_likelier(tiny_llama):
    trained = actor(tiny_llama)
    traces = [sample.trace for sample in group(4)]
    losses = [trained.sft_step(traces) for _ in range(5)]
    expected = -sum(mean_logprob(tiny_llama, TrainingSample(t, 0.0)) for t in traces) / len(traces)
    assert losses[0] == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < 0.9 * losses[0]


def test_nothing_to_train_is_a_step_without_an_update(tiny_llama, tmp_path):
    trained = actor(tiny_llama)
    before = weights_of(trained, tmp_path / "before")
    for groups in ([], [[]], [group(0, (0.0, 0.0))], [[TrainingSample(trace((-1, [1, 2])), 1.0)]]):
        report = trained.step(groups)
        assert (report.updated, report.loss, report.grad_norm, report.n_tokens) == (False, 0.0, 0.0, 0)
    assert same(before, weights_of(trained, tmp_path / "after"))


def test_groups_without_variance_do_not_dilute_the_others(tiny_llama):
    alone = actor(tiny_llama).step([group(0)])
    beside = actor(tiny_llama).step([group(1, (0.0, 0.0)), group(0)])
    assert beside == alone


def test_a_gradient_that_is_not_finite_skips_the_update_and_warns(tiny_llama, tmp_path, caplog):
    trained = actor(tiny_llama)
    before = weights_of(trained, tmp_path / "before")
    report = trained.step([group(0, (1.0, float("inf")))])
    assert not report.updated and "not finite" in caplog.text
    assert same(before, weights_of(trained, tmp_path / "after"))
    assert trained.step([group(0)]) == actor(tiny_llama).step([group(0)])  # the gradient was reset


def test_saved_weights_are_what_transformers_and_engines_load(tiny_llama, tmp_path):
    trained, directory = actor(tiny_llama), tmp_path / "weights"
    trained.save_weights(directory)
    trained.step([group(0)])
    trained.save_weights(directory)  # replaces the first
    loaded = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    masters = weights_of(trained, tmp_path / "state")
    assert loaded.dtype == torch.bfloat16 and loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert same({n: t.to(torch.bfloat16) for n, t in masters.items()}, loaded.state_dict())
    assert json.loads((directory / "config.json").read_text())["dtype"] == "bfloat16"
    tokenizers = [AutoTokenizer.from_pretrained(d) for d in (tiny_llama, directory)]
    assert len({t.get_chat_template() for t in tokenizers}) == 1
    assert len({tuple(t.encode("cat total.py<|im_end|>")) for t in tokenizers}) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state", "weights"]
    # The actor itself stays in float32.
    assert all(t.dtype == torch.float32 for t in masters.values())


def test_a_save_that_fails_leaves_the_weights_as_they_were(tiny_llama, tmp_path, monkeypatch):
    trained, directory = actor(tiny_llama), tmp_path / "weights"
    trained.save_weights(directory)
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    trained.step([group(0)])

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(type(trained._tokenizer), "save_pretrained", full)
    with pytest.raises(OSError, match="no space"):
        trained.save_weights(directory)
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["weights"]


def test_a_resumed_actor_continues_exactly(tiny_llama, tmp_path):
    original = actor(tiny_llama)
    original.step([group(0)])
    original.save_weights(tmp_path / "weights")
    original.save_state(tmp_path / "state")
    resumed = actor(tmp_path / "weights")  # rounded to bfloat16 until the state is loaded
    resumed.load_state(tmp_path / "state")
    assert resumed.step([group(1)]) == original.step([group(1)])
    assert same(weights_of(original, tmp_path / "one"), weights_of(resumed, tmp_path / "two"))


def test_the_configured_learning_rate_wins_over_the_saved_one(tiny_llama, tmp_path):
    first = actor(tiny_llama)
    first.step([group(0)])
    first.save_state(tmp_path / "state")
    frozen = actor(tiny_llama, learning_rate=0.0)
    frozen.load_state(tmp_path / "state")
    before = weights_of(frozen, tmp_path / "before")
    frozen.step([group(1)])
    assert same(before, weights_of(frozen, tmp_path / "after"))


def test_a_folder_without_a_model_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="no config.json"):
        actor(tmp_path)


def test_a_model_with_sliding_window_attention_is_rejected(tmp_path, thinking_tokenizer):
    sizes = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    config = Gemma3TextConfig(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    thinking_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="sliding_attention.*full attention throughout"):
        actor(tmp_path)
