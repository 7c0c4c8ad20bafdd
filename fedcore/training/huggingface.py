"""Transformers from Hugging Face with a LoRA adapter from PEFT, as models that the local loop can train.

An optional extra: pip install 'fedcore[huggingface]'. Nothing is downloaded and nothing is reported: models come from
a folder on this machine, as safetensors, and no code that lies next to them is run.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedcore.errors import ConfigurationError

# For processes that this one starts; huggingface_hub reads it when it is imported.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

try:
    import huggingface_hub.constants
    import peft
    import transformers
except ImportError as missing:
    raise ConfigurationError(
        f"{missing.name} is not installed: pip install 'fedcore[huggingface]' on the server and on every client"
    ) from missing

# For this process, in which an app may have imported it before this module.
huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True


CAUSE: Final = "fedcore_cannot_compute"
"""Attribute of a base that is there for its shapes alone: why it cannot compute, "" if it can."""

_PIECE: Final = 4


class CausalLM(nn.Module):
    """Next-token logits of a causal transformer: tokens int64 [n, length] -> float [n, length, vocabulary].

    transformer: the Hugging Face or PEFT model inside; its `save_pretrained` saves a trained adapter for other tools.
    """

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer
        base: Any = transformer.get_base_model() if isinstance(transformer, peft.PeftModel) else transformer
        self._cause = str(getattr(base, CAUSE, ""))
        self._takes_positions = "position_ids" in inspect.signature(base.forward).parameters
        self._keeps_apart: bool | None = None

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits at every position, of the token that follows it.

        Raises ConfigurationError, check "packing", if rows hold several texts and the model does not keep them apart.

        Args:
            positions: int64 [n, length], for rows of several texts, each of which begins at 0.
        """
        if self._cause:
            raise ConfigurationError(self._cause, check="base-bits")
        if positions is not None and bool((positions[:, 1:] == 0).any()):
            self._check_packing(tokens)
        return self._logits(tokens, positions)

    def _logits(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        more = {"position_ids": positions} if self._takes_positions and positions is not None else {}
        logits: Tensor = self.transformer(input_ids=tokens, use_cache=False, **more).logits
        return logits

    @torch.no_grad()
    def _check_packing(self, tokens: Tensor) -> None:
        """Change the first of two texts in a row, once: what is said of the second must not change."""
        if self._keeps_apart is None:
            training = self.training
            self.eval()
            first = tokens.flatten()[:_PIECE]
            pieces = torch.stack([torch.cat([first, first]), torch.cat([first.flip(0) + 1, first])]) % self._vocabulary
            positions = torch.arange(len(first), device=tokens.device).repeat(2).expand(2, -1)
            one, other = self._logits(pieces, positions)[:, len(first) :].float()
            self._keeps_apart = self._takes_positions and torch.allclose(one, other, rtol=1e-3, atol=1e-3)
            self.train(training)
        if not self._keeps_apart:
            raise ConfigurationError(
                "this model lets texts that share a row see each other, or has no positions to begin again: set "
                "packing to false",
                check="packing",
            )

    @property
    def _vocabulary(self) -> int:
        transformer: Any = self.transformer
        return int(transformer.get_input_embeddings().weight.shape[0])


def load_pretrained(folder: str, *, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """The causal language model in a folder made by `save_pretrained`, in float32.

    Raises ConfigurationError if there is none.

    Args:
        dtype: of its weights.
        more: what else `from_pretrained` of transformers takes.
    """
    logging, silent = transformers.utils.logging, False
    try:
        if silent := logging.is_progress_bar_enabled():
            logging.disable_progress_bar()  # it would stand between the lines of a round
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False, **more
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{folder!r} is not a folder with a causal language model: {error}", check="no-language-model"
        ) from error
    finally:
        if silent:
            logging.enable_progress_bar()


def tiny_llama(vocabulary: int = 256) -> Any:
    """A Llama of two layers of width 64 with random weights, for trying things out: 106,816 parameters over bytes."""
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


def load_tokenizer(folder: str) -> Any:
    """The tokenizer in the same folder. Raises ConfigurationError if there is none."""
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{folder!r} is not a folder with a tokenizer: {error}", check="no-tokenizer"
        ) from error


def with_lora(transformer: Any, *, rank: int, alpha: float, targets: str | Sequence[str] = "all-linear") -> CausalLM:
    """The transformer frozen, with trainable matrices of the given rank added to its linear layers.

    The update of a weight is alpha / rank times B A, with B zero at the start (Hu et al. 2021, arXiv 2106.09685,
    section 4.1), so the model starts as it was. They are drawn from torch's global generator. Raises ConfigurationError
    for a rank below 1.

    Args:
        targets: names of layers; by default every linear layer but the last.
    """
    if rank < 1:
        raise ConfigurationError(f"LoRA needs a rank of at least 1, not {rank}")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type=peft.TaskType.CAUSAL_LM,
    )
    with warnings.catch_warnings():
        # peft 0.21 reads a property of the model that transformers 5.23 has renamed.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        state = torch.get_rng_state()
        model = peft.get_peft_model(transformer, config)
    if transformer.dtype != torch.float32:
        _draw_again(model, state)
    return CausalLM(model)


def _draw_again(model: nn.Module, state: Tensor) -> None:
    """PEFT rounds what it draws to the base's dtype: the adapter of a float32 base, from the same generator."""
    torch.set_rng_state(state)
    for layer in model.modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            for name, down in layer.lora_A.items():
                if not isinstance(down, nn.Linear):  # of a convolution: as PEFT rounded it
                    continue
                fresh = nn.Linear(down.in_features, down.out_features, bias=False)
                nn.Linear(down.out_features, layer.lora_B[name].out_features, bias=False)
                fresh.reset_parameters()  # as PEFT does, after it has made both
                down.weight.data.copy_(fresh.weight.data)
