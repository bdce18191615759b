"""What runs inside vLLM's workers (`--worker-extension-cls`): loading weights so that every layer really has them.

Invariant: after `load_policy` the output layer is the new one too. On CPUs vLLM multiplies with packed copies of the
weights and, on a reload, packs anew only the layers that the checkpoint names: an output layer that shares the
embedding's weights is not among them and would keep the old ones.
"""


class PolicyLoader:
    """Becomes a base class of vLLM's worker, whose `reload_weights` and `model_runner` it uses."""

    def load_policy(self, weights_path: str) -> None:
        """Load the Hugging Face-format weights in the directory `weights_path` in place."""
        self.reload_weights(weights_path=weights_path)
        output_layer = getattr(self.model_runner.get_model(), "lm_head", None)
        if hasattr(output_layer, "cpu_linear"):
            output_layer.quant_method.process_weights_after_loading(output_layer)
