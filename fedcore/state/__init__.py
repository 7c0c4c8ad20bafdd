"""Model states: named tensors over one safetensors file, without torch.

A state is what a federation moves between machines: the parameters and buffers of a model, in
their storage dtype. It is read through a memory map, so that opening a model costs no memory and
every conversion to float32 can go block by block.
"""

from fedcore.state.files import FileSink, sha256_file
from fedcore.state.layout import Layout, TensorSpec, from_float
from fedcore.state.model import MemorySink, ModelState, StateSink
from fedcore.state.own_model import OWN_MODEL_FOLDER, OwnModel, OwnModelFolder, OwnModelRecord

__all__ = [
    "OWN_MODEL_FOLDER",
    "FileSink",
    "Layout",
    "MemorySink",
    "ModelState",
    "OwnModel",
    "OwnModelFolder",
    "OwnModelRecord",
    "StateSink",
    "TensorSpec",
    "from_float",
    "sha256_file",
]
