"""Models as named tensors over one safetensors file, without torch.

A state is what a federation moves between machines: the parameters and buffers of a model in their storage dtype, in
the order of the model. Its layout (names, dtypes, shapes) is agreed on by all parties and hashed into the protocol's
ctx; two states add up only if their layouts are the same.

A state is read through a memory map and written through a sink, both in blocks, so that neither opening a model nor
averaging one takes memory for all of it, and conversions to float32 go block by block. Files are written under another
name, synced and then renamed: a reader finds either a complete file or none. safetensors is a header and plain bytes;
nothing is ever unpickled.

`facts` is what a file says of its model in addition to its tensors; `own_model` stores a client's own model, from
round to round; `difference` makes of a model the 16-bit difference to one that its receiver has, `exact_difference`
the one that keeps each bit; `sketch` keeps of a model only as much as it takes to tell how far it is from another.
"""

from fedcore.state.difference import add_difference, can_differ, difference_bytes, rounded, write_difference
from fedcore.state.exact_difference import (
    MOST_OF_MODEL,
    apply_exact_difference,
    is_exact_difference,
    write_exact_difference,
)
from fedcore.state.facts import ModelFacts, open_initial, read_facts, write_model, written_as
from fedcore.state.files import FileSink, sha256_file
from fedcore.state.layout import Layout, TensorSpec, from_float
from fedcore.state.model import MemorySink, ModelState, StateSink
from fedcore.state.own_model import OWN_MODEL_FOLDER, OwnModel, OwnModelFolder, OwnModelRecord
from fedcore.state.sketch import Sketch, Sketcher

__all__ = [
    "MOST_OF_MODEL",
    "OWN_MODEL_FOLDER",
    "FileSink",
    "Layout",
    "MemorySink",
    "ModelFacts",
    "ModelState",
    "OwnModel",
    "OwnModelFolder",
    "OwnModelRecord",
    "Sketch",
    "Sketcher",
    "StateSink",
    "TensorSpec",
    "add_difference",
    "apply_exact_difference",
    "can_differ",
    "difference_bytes",
    "from_float",
    "is_exact_difference",
    "open_initial",
    "read_facts",
    "rounded",
    "sha256_file",
    "write_difference",
    "write_exact_difference",
    "write_model",
    "written_as",
]
