"""Extension of vLLM's workers (`--worker-extension-cls`) that loads new weights into every layer.

Invariant: after `load_policy` the output layer has the new weights, too. On CPUs vLLM computes with packed copies of
the weights and, on a reload, repacks only the layers that the checkpoint names. An output layer that shares the
embedding's weights is not among them and would keep the old ones.
"""

from collections.abc import Callable
from typing import Any


class PolicyLoader:
    """Mixin of vLLM's worker, which provides `reload_weights` and `model_runner`."""

    reload_weights: Callable[..., None]
    model_runner: Any

    def load_policy(self, weights_path: str) -> None:
        """Load the Hugging Face-format weights in the directory `weights_path` in place."""
        self.reload_weights(weights_path=weights_path)
        output_layer = getattr(self.model_runner.get_model(), "lm_head", None)
        if output_layer is not None and hasattr(output_layer, "cpu_linear"):
            output_layer.quant_method.process_weights_after_loading(output_layer)
