"""`headrace doctor`: what this machine, broker and object storage offer, held against what headrace needs."""

from headrace.doctor.base import Check, Finding, Status, find, find_all
from headrace.doctor.examination import NAMES, examine

__all__ = ["NAMES", "Check", "Finding", "Status", "examine", "find", "find_all"]
