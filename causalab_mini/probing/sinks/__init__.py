"""Sinks: where verdicts, failures and ends go as they come. A sink never holds up a generation for longer than a line takes to write."""

from collections.abc import Mapping

from causalab_mini.probing.sinks.base import Counted, EventKind, Sink
from causalab_mini.probing.sinks.fan_out import Sinks
from causalab_mini.probing.sinks.ndjson import NdjsonSink
from causalab_mini.probing.sinks.redaction import Redacting
from causalab_mini.probing.sinks.webhook import WebhookSink

__all__ = ["KINDS", "Counted", "EventKind", "NdjsonSink", "Redacting", "Sink", "Sinks", "WebhookSink"]

KINDS: Mapping[str, type[NdjsonSink] | type[WebhookSink]] = {"ndjson": NdjsonSink, "webhook": WebhookSink}
"""The kinds of sinks that have a place of their own, by the word for it."""
