"""Transformers from Hugging Face with a LoRA adapter from PEFT, as models that the local loop can train.

An optional extra: pip install 'fedcore[huggingface]'. Nothing is downloaded and nothing is reported: models come from
a folder on this machine, as safetensors, and no code that lies next to them is run.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

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


class CausalLM(nn.Module):
    """Next-token logits of a causal transformer: tokens int64 [n, length] -> float [n, length, vocabulary].

    transformer: the Hugging Face or PEFT model inside; its `save_pretrained` saves a trained adapter for other tools.
    """

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits at every position, of the token that follows it."""
        logits: Tensor = self.transformer(input_ids=tokens, use_cache=False).logits
        return logits


def load_pretrained(folder: str) -> Any:
    """The causal language model in a folder made by `save_pretrained`, in float32.

    Raises ConfigurationError if there is none.
    """
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{folder!r} is not a folder with a causal language model: {error}", check="no-language-model"
        ) from error


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
        return CausalLM(peft.get_peft_model(transformer, config))
