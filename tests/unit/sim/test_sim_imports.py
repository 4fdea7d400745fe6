"""Tests that modules of the simulator import each other without cycles; imports for types alone count as well."""

import grimp


def test_modules_of_the_simulator_have_no_import_cycle() -> None:
    graph = grimp.build_graph("penstock")
    left = {
        module: {each for each in graph.find_modules_directly_imported_by(module) if each.startswith("penstock.sim.")}
        for module in graph.modules
        if module.startswith("penstock.sim.")
    }
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    assert sorted(left) == []
