"""Single-process actor in plain torch, for Hugging Face causal models with full attention, on the CPU or one GPU.

Weights and optimizer are float32; the forward pass runs under autocast in `compute_dtype`. The CUDA path is the same
code with another device; it has not been run yet.

Invariant: one `step` or `sft_step` is one optimizer step on exactly its tokens, however they are split into
microbatches, or it leaves the weights unchanged and reports that (`updated`).
"""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from client.errors import ConfigError
from trainer.actors.base import StepReport, TrainingSample
from trainer.actors.packing import Pack, ancestor_mask, pack
from trainer.algorithms.losses import clipped_policy_loss, sft_loss
from trainer.checkpoints import replace_directory
from trainer.records import Trace

LOG = logging.getLogger(__name__)
STATE_FILE = "actor.pt"


class TorchActor:
    """Trains the model in `model_dir` with AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).

    The betas are 0.9 and 0.95, the learning rate is constant. `max_microbatch_tokens` bounds the forward tokens of a
    microbatch; a longer sample is a microbatch by itself. Gradients are scaled down to `max_grad_norm`.
    Raises ConfigError for a folder without a model, or a model without full attention.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        max_grad_norm: float = 1.0,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        max_microbatch_tokens: int = 512,
        device: str = "cuda" if torch.cuda.is_available() else "cpu",
        compute_dtype: torch.dtype = torch.bfloat16,
    ):
        disable_progress_bar()  # it would overwrite the run's own display at every save
        self._device = torch.device(device)
        self._compute_dtype = compute_dtype
        self._max_grad_norm = max_grad_norm
        self._clip = (clip_low, clip_high)
        self._max_microbatch_tokens = max_microbatch_tokens
        self._model = _load_model(model_dir).to(self._device)
        self._tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay, fused=True
        )

    def step(self, groups: Sequence[Sequence[TrainingSample]]) -> StepReport:
        """One policy-gradient step. Groups whose advantages are all zero count neither as samples nor as tokens."""
        samples = [sample for group in groups if any(member.advantage for member in group) for sample in group]
        packs = pack(samples, self._max_microbatch_tokens)
        n_tokens = sum(len(p.target) for p in packs)
        loss = n_clipped = diff_sum = diff_max = entropy_sum = 0.0
        for part in packs:
            part = part.to(self._device)
            logprobs, entropy = self._forward(part)
            policy = clipped_policy_loss(logprobs, part.old_logprob, part.advantage, n_tokens, *self._clip)
            policy.loss.backward()
            loss += policy.loss.item()
            n_clipped += policy.n_clipped
            diff_sum += policy.logprob_diff_sum
            diff_max = max(diff_max, policy.logprob_diff_max)
            entropy_sum += entropy.sum().item()
        grad_norm, updated = self._update() if packs else (0.0, False)
        return StepReport(
            loss=loss,
            grad_norm=grad_norm,
            entropy=entropy_sum / max(n_tokens, 1),
            clip_fraction=n_clipped / max(n_tokens, 1),
            logprob_diff_mean=diff_sum / max(n_tokens, 1),
            logprob_diff_max=diff_max,
            n_tokens=n_tokens,
            n_forward_tokens=sum(len(p.input_ids) for p in packs),
            updated=updated,
        )

    def sft_step(self, traces: Sequence[Trace]) -> float:
        """One supervised step on the sampled tokens of `traces`. Returns their mean negative logprob before it."""
        packs = pack([TrainingSample(trace, 0.0) for trace in traces], self._max_microbatch_tokens)
        n_tokens = sum(len(p.target) for p in packs)
        total = 0.0
        for part in packs:
            loss = sft_loss(self._forward(part.to(self._device))[0], n_tokens)
            loss.backward()
            total += loss.item()
        self._update()
        return total

    def save_weights(self, directory: Path) -> None:
        """Write bfloat16 safetensors, config and tokenizer. `directory` is replaced whole or not at all."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self._model.config, dtype=torch.bfloat16)
        model.load_state_dict({name: t.to(torch.bfloat16) for name, t in self._model.state_dict().items()}, assign=True)
        model.tie_weights()
        with replace_directory(directory) as half_written:
            model.save_pretrained(half_written)
            self._tokenizer.save_pretrained(half_written)

    def save_state(self, directory: Path) -> None:
        """Write float32 master weights and optimizer state, as one file in `directory`."""
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        with replace_directory(directory) as half_written:
            torch.save(state, half_written / STATE_FILE)

    def load_state(self, directory: Path) -> None:
        """Continue from the state that `save_state` wrote, with the configured learning rate."""
        state = torch.load(directory / STATE_FILE, map_location=self._device, weights_only=True, mmap=True)
        learning_rates = [group["lr"] for group in self._optimizer.param_groups]
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group, learning_rate in zip(self._optimizer.param_groups, learning_rates, strict=True):
            group["lr"] = learning_rate

    def _forward(self, part: Pack) -> tuple[Tensor, Tensor]:
        """Logprob (differentiable) and entropy (without gradient) at the trained tokens: `[T]`, float32, in nats."""
        # The vocabulary is large: logits only at the M distinct nodes that predict a trained token.
        nodes, row = part.node.unique(return_inverse=True)
        with torch.autocast(self._device.type, self._compute_dtype, enabled=self._compute_dtype != torch.float32):
            logits = self._model(
                input_ids=part.input_ids[None],
                attention_mask=ancestor_mask(part.end),
                position_ids=part.positions[None],
                logits_to_keep=nodes,
                use_cache=False,
            ).logits[0]  # [M, V]
        logprobs = logits.float().log_softmax(dim=-1)  # [M, V]
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(dim=-1)  # [M]
        return logprobs[row, part.target], entropy[row]

    def _update(self) -> tuple[float, bool]:
        """Clip the gradients, step, reset them. Returns their norm before clipping, and whether the weights changed."""
        grad_norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._max_grad_norm).item()
        updated = math.isfinite(grad_norm)
        if updated:
            self._optimizer.step()
        else:
            LOG.warning(
                "the gradient norm is %s, not finite: the update is skipped and the weights stay unchanged", grad_norm
            )
        self._optimizer.zero_grad()
        return grad_norm, updated


def _load_model(model_dir: Path) -> torch.nn.Module:
    if not (Path(model_dir) / "config.json").is_file():
        raise ConfigError(
            f"the model must be a folder with config.json, weights and tokenizer; {model_dir} has no config.json: "
            "set model.path to another folder"
        )
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="sdpa")
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"packed samples need full attention in every layer; {model_dir} has layers of the kinds {sorted(kinds)}: "
            "use a model with full attention throughout"
        )
    return model.eval()  # no dropout: the logprobs must match the engine's
