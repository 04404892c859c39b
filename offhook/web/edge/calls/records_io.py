"""Records of phone calls that have ended, recordings of all, and the store of all."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from offhook.media.end_reason import End, EndReason
from offhook.media.leg import Leg
from offhook.media.line_recording import NotRecorded
from offhook.media.recording_io import FinishedRecording, RecordingWriter, check_writable
from offhook.telephony.call_record import CallRecord
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.trunks.trunk_watch import TrunkState
from offhook.web.campaigns.outcomes import OUTCOMES
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.people.tenants import owner
from offhook.web.config.server import Recording as RecordingSettings
from offhook.web.edge.placing.requests import EndedCall
from offhook.web.http.metrics import Metrics
from offhook.web.records.entries import Recorded, RecordingReady, TrunkTurned
from offhook.web.records.writing.kept_call import KeptCall, KeptSound

if TYPE_CHECKING:  # SQLAlchemy takes memory, and a server may keep no calls
    from offhook.web.edge.calls.store_queues.dialler_io import Dialler, Host
    from offhook.web.edge.calls.store_queues.outbox_io import OutboxSender
    from offhook.web.edge.calls.store_queues.queue_io import StoreQueues
    from offhook.web.edge.console.live_feed_io import LiveFeed
    from offhook.web.records.bucket.client_io import Bucket
    from offhook.web.records.live_look import LiveLook
    from offhook.web.records.store import CallStore
    from offhook.web.records.writing.writer_io import StoreWriter

ENDED_CALLS = 500
"""Ended phone calls remembered for programs that ask later, about 1 MB; the oldest are dropped."""

LOOKS_AT_ONCE = 2
"""Requests that look into the store at the same time, so that calls keep the processor."""


FETCHES_AT_ONCE = 4
"""Maximum requests that read from the bucket of recordings at the same time; more wait."""


class CallRecords:
    """Writes records to the log and to a file, and remembers the last SIP calls."""

    def __init__(self, metrics: Metrics, config: Callable[[], Config], host: "Host") -> None:
        """`config` returns the current configuration, which may be reloaded; `host` places the
        calls of campaigns."""
        self._campaign_calls = metrics.records.campaign_calls
        for outcome in OUTCOMES:
            self._campaign_calls.labels(outcome)
        self.ended: dict[str, EndedCall] = {}
        """The last ENDED_CALLS SIP calls, by their ids."""
        self.recordings: RecordingWriter | None = None
        """Writes the sound of calls, if they are recorded."""
        self.kept: StoreWriter | None = None
        """Writes what happens in calls to the store, if they are kept."""
        self.looking = asyncio.Semaphore(LOOKS_AT_ONCE)
        """Held by requests that look into the store."""
        self.live: LiveFeed | None = None
        """Follows the calls in progress for live screens, if calls are kept."""
        self.bucket: Bucket | None = None
        """Where recordings lie once their calls are over, if not on this machine."""
        self.fetching = asyncio.Semaphore(FETCHES_AT_ONCE)
        """Held by requests that read from the bucket."""
        self._sender: OutboxSender | None = None
        self._dialler: Dialler | None = None
        self._host = host
        self._queues: StoreQueues | None = None
        self._metrics = metrics
        self._config = config
        self._writer = ThreadPoolExecutor(1, "call records")

    def open_recordings(self, recording: RecordingSettings) -> None:
        """Has calls recorded from now on. Raises ConfigError."""
        try:
            keys = recording.keyring()
        except ValueError as error:
            raise ConfigError(f"recording.{error}") from error
        try:
            check_writable(recording.directory)
        except OSError as error:
            logger.error("calls are not recorded until this is fixed: {}", error)
        failed = self._metrics.recordings.failed.inc
        self.recordings = RecordingWriter(recording.directory, failed, keys)

    def open_store(self, config: Config, process: int = 1) -> None:
        """Has calls kept from now on, if that is configured, and programs told of them; needs the
        event loop. `process` is the number of this one. Raises ConfigError."""
        if not config.records.url:
            return
        from offhook.web.edge.calls.store_queues.analyst_io import Analyst
        from offhook.web.edge.calls.store_queues.dialler_io import Dialler
        from offhook.web.edge.calls.store_queues.mail_io import Mailer
        from offhook.web.edge.calls.store_queues.outbox_io import OutboxSender
        from offhook.web.edge.calls.store_queues.queue_io import StoreQueues
        from offhook.web.edge.console.live_feed_io import LiveFeed
        from offhook.web.records.errors import StoreError
        from offhook.web.records.store import CallStore, Writer
        from offhook.web.records.writing.writer_io import StoreWriter

        records = config.records
        try:
            store = CallStore(
                records.url,
                config.receivers,
                lambda agents: self._config().analysed_by(agents),
            )
        except StoreError as error:
            raise ConfigError(f"records.url: {error}") from error
        except OSError as error:
            logger.error("calls are not kept until this is fixed ([records] url): {}", error)
        else:
            server = f"{socket.gethostname()}:{config.server.port}"
            self.kept = StoreWriter(
                store,
                Writer(server, process),
                records.spool,
                words=records.words,
                keep_s=records.keep_s,
                on_lost=self._metrics.records.lost.inc,
                on_written=self._metrics.records.written.inc,
            )
            self.kept.start()
            writer, metrics = self.kept, self._metrics
            self._queues = StoreQueues(lambda: writer.ready)
            self.live = LiveFeed(self._look)
            if config.receivers:
                self._sender = OutboxSender(store.outbox, Mailer(config.smtp, store.show))
                self._sender.start(self._queues)
            analyst = Analyst(
                *(store, server, self._config),
                lambda outcome: metrics.records.analyses.labels(outcome).inc(),
                lambda model, cost: metrics.cost.labels(model).inc(cost),
            )
            analyst.start(self._queues)
            store.calling.count = lambda outcome: self._campaign_calls.labels(outcome).inc()
            self._dialler = Dialler(store, Writer(server, process), self._host)
            self._dialler.start(self._queues)
            if config.s3.bucket:
                self._open_bucket(config, store, self._queues)

    def _open_bucket(self, config: Config, store: "CallStore", queues: "StoreQueues") -> None:
        """Has recordings uploaded from now on. Raises ConfigError."""
        from offhook.web.edge.calls.store_queues.uploads_io import Uploader
        from offhook.web.records.bucket.client_io import Bucket

        try:
            self.bucket = Bucket(config.s3.settings, self._metrics.recordings.bucket_works.set)
        except ValueError as error:
            raise ConfigError(f"s3: {error}") from error
        metrics = self._metrics.recordings
        Uploader(store, self.bucket, config.recording.directory, metrics).start(queues)

    async def _look(
        self, known: Mapping[str, int], campaigns: Collection[str], tenant: str
    ) -> "LiveLook":
        """Looks for calls in progress, and campaigns, of a tenant or "" all. Raises StoreError."""
        assert self.kept is not None
        async with self.looking:
            return await asyncio.to_thread(self.kept.store.live.look, known, campaigns, tenant)

    async def stop_queues(self) -> None:
        """Ends the work on what waits in the store: webhooks, analyses, calls of campaigns.
        Idempotent."""
        if self._queues is not None:
            await self._queues.close()
            self._queues = None
        if self._dialler is not None:
            await self._dialler.close()
            self._dialler = None
        if self._sender is not None:
            await self._sender.close()
            self._sender = None

    def writer(self, recording: RecordingSettings) -> RecordingWriter:
        """Returns what writes the sound of calls. Raises NotRecorded."""
        if self.recordings is None:  # wanted since a reload
            try:
                self.open_recordings(recording)
            except ConfigError as error:
                raise NotRecorded(str(error)) from error
        assert self.recordings is not None
        return self.recordings

    def count_failed(self) -> None:
        """Counts a recording that was not begun."""
        self._metrics.recordings.failed.inc()

    def recording_ready(self, call: str, recording: FinishedRecording) -> None:
        """Has programs told that a recording is complete where it is kept. Any thread may call
        it."""
        if self.kept is not None:
            place, seconds, sealed = recording.place, recording.seconds, recording.sealed
            self.kept.add(RecordingReady(call, place, seconds, sealed))

    def serve_extensions(self, sip: SipEndpoint) -> None:
        """Has phones show the messages of their mailboxes, and ring again after a restart, if calls
        are kept."""
        if self.kept is not None and self._queues is not None:
            from offhook.web.edge.calls.mailboxes_io import Mailboxes
            from offhook.web.edge.calls.saved_phones_io import PhonesKeeper

            store, server = self.kept.store, self.kept.writer.server
            Mailboxes(store.voicemails, sip.show_messages).start(self._queues)
            PhonesKeeper(sip, store.registrations, server).start(self._queues)

    def trunk_turned(self, trunk: TrunkState) -> None:
        """Has programs told that a trunk has come up or gone down."""
        if self.kept is not None:
            is_up = trunk.state == "up"
            reason = "" if is_up else trunk.detail
            its = owner(self._config().tenants, "trunks", trunk.trunk)
            self.kept.add(TrunkTurned(trunk.trunk, time.time(), is_up, reason, its))

    def kept_call(self, leg: Leg, sound: KeptSound | None) -> KeptCall | None:
        """Returns what takes the events of a call; None if calls are not kept."""
        if self.kept is None:
            return None
        return KeptCall(leg, self.kept.add, sound, words=self.kept.words)

    def add(self, record: CallRecord, sip: SipEndpoint | None, path: Path | None) -> None:
        """Records a phone or carrier call that has ended. `sip` has those over SIP, and `path` is a
        file of a line a call, if there shall be one."""
        call_id = record.call_id
        line = logger.bind(call=call_id, record=record.as_dict())
        if EndReason.of(record.end_reason).end is End.REFUSED:
            line = line.bind(a_minute=record.trunk)
        line.info(
            "{}: {} called {}, {:.1f} s: {}",
            call_id,
            "we" if record.direction == "outbound" else record.caller or "somebody",
            record.called or "us",
            record.duration_seconds,
            record.end_reason,
        )
        if sip is not None and (call := sip.calls.get(call_id)) is not None:
            if isinstance(call.leg, SipLeg):
                self._metrics.count_call(call.leg)
            self.ended[call_id] = EndedCall(record, call.progress, sip.caller_of(call_id))
            if len(self.ended) > ENDED_CALLS:
                del self.ended[next(iter(self.ended))]
        if record.edge == "sip" and record.end_reason == End.CONTINUED_ELSEWHERE:
            return  # the server that ends the call records all of it
        if self.kept is not None:
            self.kept.add(Recorded(record, str(EndReason.of(record.end_reason).end)))
        if path is not None:  # in a thread: a slow disk must not interrupt the audio of all calls
            self._writer.submit(_append, path, record.line())

    async def close(self) -> None:
        """Waits until all is written."""
        await asyncio.to_thread(self._writer.shutdown)
        await self.stop_queues()
        if self.live is not None:
            await self.live.close()
        if self.recordings is not None:
            await asyncio.to_thread(self.recordings.close)
        if self.kept is not None:  # after all that have something for it
            await asyncio.to_thread(self.kept.close)


def _append(path: Path, line: str) -> None:
    """Appends to a file that, if it is new, only our user can read: it says who called whom."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(line + "\n")
    except OSError as error:
        logger.error("the record of a call is lost: {}", error)
