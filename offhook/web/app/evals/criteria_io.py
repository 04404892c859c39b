"""The criteria of an agent's `analysis` in scenarios: what makes its calls a success in production
makes a conversation pass that is tried.

criteria: [booked, polite]      # of [agents.NAME.analysis]; all: each of them
"""

from typing import Any

from offhook.web.app.evals.criteria import ALL
from offhook.web.app.evals.visit_io import Visit
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.language_models.analysis import Analysis
from offhook.web.tools.analysis.analyse_io import NoAnalysis, analyse


def check_criteria(name: str, criteria: tuple[str, ...], config: Config) -> None:
    """Raises ConfigError for a criterion that no agent has. `name` is the scenario's."""
    found = (agent.analysis for agent in config.named_agents().values())
    there = {criterion for one in found if one is not None for criterion in one.success}
    unknown = [one for one in criteria if one not in there and not (one == ALL and there)]
    if unknown:
        words = f"criteria: no agent's analysis has {unknown[0]}"
        raise ConfigError(f"{name}: {words} (there: {', '.join(sorted(there)) or 'none'})")


async def unmet_criteria(config: Config, visit: Visit) -> list[str]:
    """Returns the criteria of a scenario that its conversation does not meet, as the model of its
    agent's analysis finds."""
    wanted = visit.scenario.criteria
    name = config.analysed_by(visit.agents)
    agent = config.agent_called(name) if name else None
    if agent is None or agent.analysis is None:
        return ["criteria: no agent of the conversation has an analysis"]
    criteria = agent.analysis.success
    if ALL not in wanted:
        if missing := [one for one in wanted if one not in criteria]:
            return [f"criteria: the analysis of {name} has no {missing[0]}"]
        criteria = {one: criteria[one] for one in wanted}
    asked: dict[str, Any] = {"success": criteria, "summary": False, "extract": {}}
    analysis: Analysis = agent.analysis.model_copy(update=asked)
    model = agent.analysis.model_beside(agent)
    try:
        found = await analyse(analysis, model, visit.timeline, f"agents.{name}.analysis")
    except NoAnalysis as error:
        return [f"criteria: {error}"]
    bad = (one for one in found.analysed.criteria if one.verdict != "success")
    return [f"{one.name}: {one.verdict}: {one.reason}" for one in bad]
