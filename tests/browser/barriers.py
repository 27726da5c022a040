"""What keeps somebody out of a page: axe-core's verdict, which comes with a package, so that no network is needed."""

from axe_playwright_python.sync_playwright import Axe

OUTPUTS = ".jp-OutputArea-output"
"""What a notebook shows: JupyterLab around it is its authors' to mend."""


def serious(page, within=OUTPUTS):
    """What axe finds there that is serious or critical, a line each."""
    found = Axe().run(page, {"include": [[within]]}, {"resultTypes": ["violations"], "preload": False})
    return [
        f"{rule['id']} ({rule['impact']}): {node['target']} {node['html'][:300]} {node['failureSummary']}"
        for rule in found.response["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
