"""A flow as the page draws it: nodes, what they do, and where their functions lead."""

from typing import Any

from offhook.web.config.flows import Flow, FlowAction, FlowFunction


def drawing(flow: Flow) -> dict[str, Any]:
    """Returns a flow in JSON. Each node has the `edges` that lead on from it, with the function
    that the model calls, and the value of its argument where that decides."""
    return {
        "initial": flow.initial,
        "nodes": [
            {
                "name": name,
                "task": node.task,
                "context": node.context,
                "collect": list(node.collect),
                "before": [_action(action) for action in node.pre_actions],
                "after": [_action(action) for action in node.post_actions],
                "functions": [one.name for one in _functions(flow, name)],
                "edges": [edge for one in _functions(flow, name) for edge in _edges(one)],
            }
            for name, node in flow.nodes.items()
        ],
    }


def _functions(flow: Flow, node: str) -> list[FlowFunction]:
    """Returns what the model may call in a node; nothing where it is not asked."""
    return [] if flow.nodes[node].is_silent else list(flow.functions_of(node))


def _edges(function: FlowFunction) -> list[dict[str, str]]:
    about = {"function": function.name, "description": function.description}
    if isinstance(function.next, dict):
        return [
            {**about, "to": node, "when": f"{function.next_by} is {value}"}
            for value, node in function.next.items()
        ]
    return [{**about, "to": function.next, "when": ""}] if function.next else []


def _action(action: FlowAction) -> dict[str, str]:
    """Returns what an action does, and with what."""
    for does in ("say", "transfer", "hand_over"):
        if value := getattr(action, does):
            return {"does": does, "with": value}
    return {"does": "hang_up", "with": ""}
