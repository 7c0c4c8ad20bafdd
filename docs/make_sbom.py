"""Print a bill of materials, CycloneDX 1.6 in JSON: what an image holds beside Python: both locks and torch.

    make sbom

Licences come from the packages as they are installed. The same lock gives the same file.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def main() -> None:
    """Print it."""
    locks = "".join((ROOT / name).read_text() for name in ("requirements.lock", "requirements-extras.lock"))
    pinned = [*_PINNED.findall(locks), ("torch", metadata.version("torch").partition("+")[0])]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, repr(pinned))}",
        "version": 1,
        "metadata": {"component": _component("fedcore", metadata.version("fedcore"), "application")},
        "components": [_component(name, version) for name, version in sorted(pinned)],
    }
    json.dump(bill, sys.stdout, indent=1)
    sys.stdout.write("\n")


def _component(name: str, version: str, kind: str = "library") -> dict[str, Any]:
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    component: dict[str, Any] = {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence := _licence(name):
        component["licenses"] = [licence]
    return component


def _licence(name: str) -> dict[str, Any] | None:
    """The licence as the package states it: an SPDX expression, or else the name in its classifiers."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    if expression := about.get("License-Expression"):
        return {"expression": expression}
    named = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier", []) if text.startswith("License :: ")]
    return {"license": {"name": named[0]}} if named else None


if __name__ == "__main__":
    main()
