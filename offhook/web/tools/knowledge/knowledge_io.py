"""The documents by which agents answer: read, searched, and read again when they change.

new, changed or gone files → a thread → a process that reads them → a new index
                                         the old index answers meanwhile
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.pipeline.conversation.passages import FindPassages, Passage
from offhook.web.config.agents import SEARCH, Agent
from offhook.web.config.config import Config
from offhook.web.config.knowledge import Knowledge
from offhook.web.config.tools import ToolOptions
from offhook.web.tools.function_io import Fill, FunctionDefinition, function_of
from offhook.web.tools.knowledge.embeddings_io import BATCH, QUERY_S, Embeddings, EmbeddingsError
from offhook.web.tools.knowledge.index_io import Index, Vector
from offhook.web.tools.knowledge.reading_io import Listing, Reader, ReadFile, listing
from offhook.web.tools.tool_result import ToolFailed

POLL_S = 5.0
"""Time in s between two looks for changed files."""
START_S = 5.0
"""Time in s that the start waits for documents to be read; what is not read then is read while
calls begin."""
SEARCH_S = 2.0
"""Time limit in s of a search while a caller waits; after which nothing is found."""
AGAIN_S = 60.0
"""Time in s without requests for vectors after one has failed; words alone are searched for."""
MAX_PASSAGES = 20_000
"""Maximum passages of an agent, some 5000 pages; documents that have further ones are skipped, with
a warning."""
TOO_MANY = f"the documents have over {MAX_PASSAGES} passages"
TOOL_PASSAGES = 5
"""Passages that a model gets of a search."""
PROMPT_PASSAGES = 3
"""Passages that a model gets with the caller's words."""

_DESCRIPTION = (
    "Searches our documents and returns the passages that fit best, with their sources. Use it "
    "before you answer a question about facts, and answer by what it finds; if it finds nothing "
    "that fits, say that you do not know."
)
_PARAMETERS = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "what to look for, in the words that the documents may use",
        }
    },
    "required": ["query"],
}


@dataclass(frozen=True)
class Documents:
    """What is known of an agent's documents."""

    files: int = 0
    passages: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Why files are not read, by their names."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What was left out of files, by their names."""

    def faults(self) -> list[str]:
        """Returns a sentence for each file that is not read, or not all of it."""
        faults = {**{n: f"skipped: {why}" for n, why in self.skipped.items()}, **self.notes}
        return [f"{name}: {why}" for name, why in faults.items()]


@dataclass
class _State:
    """What was read last."""

    listing: Listing = field(default_factory=Listing)
    read: dict[str, ReadFile] = field(default_factory=dict)
    """Files without their passages, which the index has."""
    index: Index = field(default_factory=Index)

    def documents(self) -> Documents:
        skipped = {name: one.skipped for name, one in self.read.items() if one.skipped}
        notes = {name: one.note for name, one in self.read.items() if one.note}
        files = len(self.read) - len(skipped)
        return Documents(files, self.index.count, {**self.listing.skipped, **skipped}, notes)


def updated(paths: tuple[str, ...], old: _State, reader: Reader) -> _State:
    """Returns the documents as they are now: `old` itself if nothing has changed. What has not
    changed is not read again. Blocks. Raises OSError where a folder is not there."""
    found = listing(paths)
    if found == old.listing:
        return old
    new = _State(found)
    same = {
        name
        for name, about in found.files.items()
        if old.listing.files.get(name) == about and old.read[name].skipped != TOO_MANY
    }
    changed = iter(reader.read((n, f) for n, (f, _) in found.files.items() if n not in same))
    for name in found.files:
        one = old.read[name] if name in same else next(changed, None)
        if one is None:  # the reading was stopped
            return old
        passages = old.index.of(name) if name in same else one.passages
        if new.index.count + len(passages) > MAX_PASSAGES:
            one, passages = ReadFile(name, [], skipped=TOO_MANY), []
        new.index.add(name, passages)
        new.read[name] = ReadFile(name, [], one.skipped, one.note)
    return new


def examine(paths: tuple[str, ...]) -> Documents:
    """Reads documents, and returns what is known of them. Blocks. Raises OSError."""
    return updated(paths, _State(), Reader()).documents()


class KnowledgeBase:
    """The documents of one or several agents."""

    def __init__(self, paths: tuple[str, ...], settings: Knowledge) -> None:
        self.tried = asyncio.Event()
        """Set once the documents have been read."""
        self.documents = Documents()
        self.name = ", ".join(paths)
        self._paths = paths
        self._state = _State()
        self._embeddings = Embeddings(settings) if settings.embeddings_url else None
        self._vectors: dict[bytes, Vector] = {}
        """By the digests of their passages."""
        self._no_vectors_until = 0.0
        self._vectors_failed = False
        self._reader = Reader()
        self._reading = ThreadPoolExecutor(1, "knowledge")
        self._searching = ThreadPoolExecutor(1, "search")
        self._missing = ""
        """Why the documents could not be looked at the last time."""

    async def run(self) -> None:
        """Reads the documents, and again what changes, until it is cancelled."""
        try:
            while True:
                await self.refresh()
                await asyncio.sleep(POLL_S)
        finally:
            await self.close()

    async def close(self) -> None:
        self._reader.stop()
        for threads in (self._reading, self._searching):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._embeddings is not None:
            await self._embeddings.close()

    async def refresh(self) -> None:
        """Reads what has changed since the last time, and makes its vectors."""
        loop = asyncio.get_running_loop()
        try:
            args = self._paths, self._state, self._reader
            new = await loop.run_in_executor(self._reading, updated, *args)
            self._missing = ""
        except OSError as error:
            if (missing := f"{error.filename}: {error.strerror}") != self._missing:
                logger.warning("knowledge {}; what was read before is used", missing)
            self._missing = missing
            new = self._state
        if new is not self._state:
            self._state = new
            before, self.documents = self.documents, new.documents()
            words = "knowledge {}: {} documents, {} passages"
            logger.info(words, self.name, self.documents.files, self.documents.passages)
            for fault in self.documents.faults():
                if fault not in before.faults():
                    logger.warning("knowledge {}: {}", self.name, fault)
        self.tried.set()
        if self._embeddings is not None and not self._state.index.dimensions:
            await self._make_vectors(self._embeddings)

    async def _make_vectors(self, embeddings: Embeddings) -> None:
        loop, index = asyncio.get_running_loop(), self._state.index
        if loop.time() < self._no_vectors_until:
            return
        missing = await loop.run_in_executor(self._reading, index.without_vectors, self._vectors)
        try:
            for at in range(0, len(missing), BATCH):
                batch = missing[at : at + BATCH]
                made = await embeddings.of([text for _, text in batch])
                self._vectors.update(zip((digest for digest, _ in batch), made, strict=True))
            work = loop.run_in_executor(self._reading, index.use_vectors, self._vectors)
            self._vectors = await work
        except EmbeddingsError as error:
            self._no_vectors(error)
        except ValueError:  # the server has another model now
            self._vectors = {}
            self._no_vectors(EmbeddingsError("its embeddings have several lengths"))
        else:
            self._vectors_failed = False

    def _no_vectors(self, error: EmbeddingsError) -> None:
        self._no_vectors_until = asyncio.get_running_loop().time() + AGAIN_S
        if not self._vectors_failed:
            words = "knowledge {}: searched by words alone, as the embeddings server fails: {}"
            logger.warning(words, self.name, error)
        self._vectors_failed = True

    async def find(self, query: str, most: int) -> list[Passage]:
        """Returns the best passages for a query, the best first. Raises TimeoutError."""
        index, vector = self._state.index, await self._vector_of(query)
        async with asyncio.timeout(SEARCH_S):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._searching, index.search, query, vector, most)

    async def _vector_of(self, query: str) -> Vector | None:
        """Returns the vector of a query; None where words alone are searched for."""
        ready = bool(self._state.index.dimensions)
        now = asyncio.get_running_loop().time()
        if self._embeddings is None or not ready or now < self._no_vectors_until:
            return None
        try:
            (vector,) = await self._embeddings.of([query], QUERY_S)
        except EmbeddingsError as error:
            self._no_vectors(error)
            return None
        self._vectors_failed = False
        return vector


class KnowledgeBases:
    """The documents of all agents of a process; those with the same ones share them."""

    def __init__(self) -> None:
        self._settings = Knowledge()
        self._bases: dict[tuple[str, ...], tuple[KnowledgeBase, asyncio.Task[Any]]] = {}
        self._tasks = TaskSet()

    def use(self, config: Config) -> None:
        """Reads the documents of a configuration that are new, and drops those that it has no
        more."""
        wanted = {agent.knowledge for agent in config.named_agents().values() if agent.knowledge}
        others = config.knowledge != self._settings
        self._settings = config.knowledge
        for paths, (_, task) in tuple(self._bases.items()):
            if others or paths not in wanted:
                task.cancel()
                del self._bases[paths]
        for paths in wanted - self._bases.keys():
            base = KnowledgeBase(paths, config.knowledge)
            self._bases[paths] = base, self._tasks.spawn(base.run(), f"knowledge {base.name}")

    async def started(self) -> None:
        """Waits until all documents have been read, START_S at most."""
        bases = [base for base, _ in self._bases.values()]
        waits = [asyncio.create_task(base.tried.wait()) for base in bases]
        if waits:
            _, late = await asyncio.wait(waits, timeout=START_S)
            for wait in late:
                wait.cancel()
        for base in bases:
            if not base.tried.is_set():
                logger.warning("knowledge {}: is still being read; calls begin", base.name)

    async def close(self) -> None:
        await self._tasks.close()

    def finder(self, agent: Agent) -> FindPassages | None:
        """Returns what finds the passages that are in an agent's requests; None if none are."""
        if not agent.knowledge_in_prompt:
            return None

        async def find(words: str) -> list[Passage]:
            base = self._base(agent)
            try:
                return await base.find(words, PROMPT_PASSAGES) if base is not None else []
            except TimeoutError:
                return []

        return find

    def function(self, agent: Agent, call: Call, fill: Fill) -> FunctionTool:
        """Returns the tool that searches an agent's documents, for the model of a call."""

        async def run(arguments: Mapping[str, Any]) -> Any:
            query = arguments.get("query")
            if not isinstance(query, str) or not query.strip():
                raise ToolFailed("query is missing: what to look for")
            base = self._base(agent)
            if base is None or not base.tried.is_set():
                raise ToolFailed("the documents are still being read")
            try:
                found = await base.find(query, TOOL_PASSAGES)
            except TimeoutError as error:
                raise ToolFailed(f"nothing found within {SEARCH_S:g} s") from error
            call.passages_found(query, found, "tool")
            if not found:
                return {"passages": [], "note": "nothing in the documents has these words"}
            return {"passages": [{"source": one.title, "text": one.text} for one in found]}

        where = f"{SEARCH} in {', '.join(agent.knowledge)}"
        defined = FunctionDefinition(SEARCH, _DESCRIPTION, _PARAMETERS, where)
        return function_of(defined, ToolOptions(), call, fill, run)

    def _base(self, agent: Agent) -> KnowledgeBase | None:
        """Returns the documents of an agent; None if the configuration has them no more."""
        found = self._bases.get(agent.knowledge)
        return found[0] if found is not None else None
