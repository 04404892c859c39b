"""The findings of `offhook doctor` on the documents of agents."""

import asyncio
from collections.abc import Iterator

from offhook.web.app.doctor.finding import Finding
from offhook.web.config.config import Config
from offhook.web.config.knowledge import Knowledge
from offhook.web.tools.knowledge.embeddings_io import Embeddings, EmbeddingsError
from offhook.web.tools.knowledge.knowledge_io import examine
from offhook.web.tools.knowledge.reading_io import fault_of

SHOWN = 20
"""Files of an agent that are named because they are not read."""


def examine_knowledge(config: Config) -> Iterator[Finding]:
    """Reads the documents of each agent, and asks the server of embeddings for one."""
    agents = {n: agent for n, agent in config.named_agents().items() if agent.knowledge}
    for name, agent in agents.items():
        subject = f"knowledge of {name}"
        if fault := fault_of(agent.knowledge):
            yield Finding(subject, "fails", fault)
            continue
        found = examine(agent.knowledge)
        words = f"documents: {found.files}, passages: {found.passages}"
        yield Finding(subject, "ok" if found.passages else "fails", words)
        faults = found.faults()
        for fault in faults[:SHOWN]:
            yield Finding(subject, "note", fault)
        if len(faults) > SHOWN:
            yield Finding(subject, "note", f"{len(faults) - SHOWN} more files are not read")
    if agents and config.knowledge.embeddings_url:
        yield asyncio.run(_embeddings(config.knowledge))


async def _embeddings(settings: Knowledge) -> Finding:
    subject = f"embeddings of {settings.embeddings_model}"
    embeddings = Embeddings(settings)
    try:
        (vector,) = await embeddings.of(["Hello."])
    except EmbeddingsError as error:
        return Finding(subject, "fails", str(error))
    finally:
        await embeddings.close()
    return Finding(subject, "ok", f"vectors of {len(vector)} numbers")
