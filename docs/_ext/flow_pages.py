"""Sphinx directives ``flow-params FLOW`` and ``error-table``: tables that cannot differ from the code."""

from typing import Any

from docutils import nodes
from flow_tables import error_table, params_table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class FlowParams(SphinxDirective):
    """The parameters of a flow, from its model."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        return self.parse_text_to_nodes(params_table(self.arguments[0]))


class ErrorTable(SphinxDirective):
    """All errors with their exit statuses, from the error tree."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        return self.parse_text_to_nodes(error_table())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("flow-params", FlowParams)
    app.add_directive("error-table", ErrorTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
