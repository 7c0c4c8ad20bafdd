"""A contract for import-linter that lists what a package may import, instead of what it may not."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowedImports(Contract):
    """The source modules and all below them import nothing but each other and the allowed modules.

    An allow-list, because a list of forbidden modules is never complete: it covers the standard
    library too. Only direct imports count; what an allowed module imports is its own affair.
    """

    source_modules = fields.SetField(subfield=fields.ModuleField())
    allowed_modules = fields.SetField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare every import that leaves a source module with the list."""
        del verbose
        offences = []
        for source in sorted(module.name for module in self.source_modules):
            allowed = {source, *self.allowed_modules}
            for importer in sorted({source} | graph.find_descendants(source)):
                offences += [
                    (importer, imported)
                    for imported in sorted(graph.find_modules_directly_imported_by(importer))
                    if not any(_is_within(imported, package) for package in allowed)
                ]
        return ContractCheck(kept=not offences, metadata={"offences": offences})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each offence on a line."""
        for importer, imported in check.metadata["offences"]:
            output.print_error(f"{importer} imports {imported}, which is not on its list")


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
