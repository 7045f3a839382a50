"""What bytes that are no JSON seem to be, so that the error of a record that cannot be read names the remedy."""

import re

_NOT_UTF8 = "encode the text as UTF-8"
_COMPRESSED = "send it as it is, and let the producer compress (compression.type)"
_MARKS = (
    (b"\xef\xbb\xbf", "a byte order mark: leave it out, JSON on a wire has none (RFC 8259, section 8.1)"),
    (b"\xff\xfe", f"the byte order mark of UTF-16 or UTF-32: {_NOT_UTF8}"),
    (b"\xfe\xff", f"the byte order mark of UTF-16: {_NOT_UTF8}"),
    (b"\x1f\x8b", f"gzip's mark: {_COMPRESSED}"),
    (b"\x28\xb5\x2f\xfd", f"zstd's mark: {_COMPRESSED}"),
    (b"\x04\x22\x4d\x18", f"lz4's mark: {_COMPRESSED}"),
    (b"\xff\x06\x00\x00sNaPpY", f"snappy's mark: {_COMPRESSED}"),
    (b"\x82SNAPPY\x00", f"snappy's mark: {_COMPRESSED}"),
)
# Serialisers of a schema registry put a zero byte and the schema's number, four bytes, before the value.
_REGISTRY = re.compile(rb"\x00[\x00-\xff]{4}\s*[{\[]")
# Each escape, so that the second backslash of `\\` begins none; of a surrogate the first half with or without the
# second, or the second alone (RFC 8259, section 8.2).
_ESCAPE = re.compile(
    rb"\\(?:u(?P<first>[dD][89abAB][0-9a-fA-F]{2})(?P<second>\\u[dD][c-fC-F][0-9a-fA-F]{2})?"
    rb"|u(?P<alone>[dD][c-fC-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def advice_on(value: bytes) -> str:
    """What stands in the way and what to do about it, as the end of a sentence; empty if it is nothing known."""
    for mark, what in _MARKS:
        if value.startswith(mark):
            return f"; it begins with {what}"
    if _REGISTRY.match(value):
        return "; it begins with a schema registry's five bytes: use a plain JSON or string serialiser"
    if b"\x00" in value[:4]:
        return f"; it looks like UTF-16 or UTF-32: {_NOT_UTF8}"
    half = _half_of_a_pair(value)
    return f"; it has half of a surrogate pair (\\u{half}), which is no text" if half else ""


def _half_of_a_pair(value: bytes) -> str | None:
    for found in _ESCAPE.finditer(value):
        half = found["alone"] or (found["first"] if not found["second"] else None)
        if half:
            return str(half, "ascii")
    return None
