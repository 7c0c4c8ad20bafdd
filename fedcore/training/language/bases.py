"""The models that adapters are put on, and their tokenizers; tiny ones for trying things out.

`base-bits` of a base: 32 (float32), 16 (bfloat16) or 4 (NF4 with bfloat16 arithmetic, by bitsandbytes). The base is
frozen in all of them, and the adapter is float32.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fedcore.errors import ConfigurationError
from fedcore.training.engines import World
from fedcore.training.huggingface import CAUSE, load_pretrained, load_tokenizer, tiny_llama
from fedcore.training.seeds import derive_seed, seeded

PLAIN_TEMPLATE: Final = (
    "{{ bos_token or '' }}{% for message in messages %}### {{ message['role'] | capitalize }}:\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}{{ eos_token or '' }}"
    "{% endgeneration %}{% else %}{{ message['content'] }}{% endif %}{{ '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}### Assistant:\n{% endif %}"
)
"""For a tokenizer without a chat template: the role as a heading, then what is said."""

_BYTES: Final = 256
_SPECIAL: Final = ("<bos>", "<eos>", "<pad>")
_ON_PROCESSORS: Final = (0, 46)
"""The version of bitsandbytes from which on it needs no GPU."""


def chat_tokenizer(folder: str) -> Any:
    """The tokenizer in a model's folder, "" for `byte_tokenizer`; with `PLAIN_TEMPLATE` if it has no chat template."""
    tokenizer = load_tokenizer(folder) if folder else byte_tokenizer()
    if tokenizer.chat_template is None:
        tokenizer.chat_template = PLAIN_TEMPLATE
    return tokenizer


def byte_tokenizer() -> Any:
    """One token for each byte, and three special ones: for the tiny model, which reads nothing else."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(alphabet)}, merges=[]))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    own.decoder = decoders.ByteLevel()
    bos, eos, pad = _SPECIAL
    return transformers.PreTrainedTokenizerFast(tokenizer_object=own, bos_token=bos, eos_token=eos, pad_token=pad)


def load_base(folder: str, *, bits: int = 32, checkpointing: bool = False, seed: int = 0) -> Any:
    """The causal language model in a folder made by `save_pretrained`.

    Where a base of 4 bits cannot be had, on the server say, it is loaded in 16, for its shapes: the model then refuses
    to compute, and says why. Raises ConfigurationError for other bits, and for a folder without a model.

    Args:
        folder: "" for a Llama of two layers with random weights that `seed` draws, for `byte_tokenizer`.
        checkpointing: keep only what enters each block, and compute the rest again in the backward pass.
    """
    if bits not in (32, 16, 4):
        raise ConfigurationError(f"a base has 32, 16 or 4 bits, not {bits}", check="base-bits")
    refusal = _why_not_4_bits(folder) if bits == 4 else ""
    more = _four_bits() if bits == 4 and not refusal else {}
    dtype = torch.float32 if bits == 32 else torch.bfloat16
    if folder:
        base = load_pretrained(folder, dtype=dtype, **more)
    else:
        with seeded(derive_seed("initial weights", seed)):
            base = tiny_llama(_BYTES + len(_SPECIAL)).to(dtype)
    setattr(base, CAUSE, refusal)
    if checkpointing and not hasattr(base, "activation_checkpointing_enable"):  # before transformers 5.23
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    elif checkpointing:
        base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    return base


def _why_not_4_bits(folder: str) -> str:
    if not folder:
        return "the tiny model has 32 or 16 bits: name a base-model, or set base-bits to 16"
    try:
        version = importlib.metadata.version("bitsandbytes")
    except importlib.metadata.PackageNotFoundError:
        return "a base of 4 bits needs bitsandbytes: pip install bitsandbytes, or set base-bits to 16"
    if not torch.cuda.is_available() and tuple(map(int, version.split(".")[:2])) < _ON_PROCESSORS:
        return (
            f"a base of 4 bits needs a CUDA device with bitsandbytes {version}: pip install -U bitsandbytes, or set "
            "base-bits to 16"
        )
    return ""


def _four_bits() -> dict[str, Any]:
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": config, "device_map": {"": World.current().device}}
