"""permessage-deflate (RFC 7692) as a server speaks it: which offers are sound, and what goes out.

aiohttp shakes hands and inflates what comes in. What goes out is deflated by the link: aiohttp
writes frame by frame, and the link writes many at once. A link is one stream of deflate, flushed
to a whole byte after each message so that the peer can read it there and then.

It costs 62 KiB: 22 to deflate, and once the peer has sent something compressed, 40 for aiohttp to
inflate. zlib takes 2^(window bits + 2) + 2^(memory level + 9) bytes and 6 KiB (zconf.h). Events are
small and much alike, so a window of 2 KiB does nearly what the largest does in twelve times the
memory: 177 bytes become 18 rather than 16.
"""

from __future__ import annotations

import re
import zlib

# A shorter frame has little to save, and deflating takes 5 us and more, however short it is.
DEFLATED_BYTES_MIN = 64
# A larger one would hold up the event loop: a MiB of text takes 20 to 40 ms.
DEFLATED_BYTES_MAX = 1 << 20

_EXTENSION = "permessage-deflate"
_PARAMETER = re.compile(
    r"(server|client)_no_context_takeover"
    r"|server_max_window_bits=([89]|1[0-5])"
    r"|client_max_window_bits(=([89]|1[0-5]))?"
)

_LEVEL, _WINDOW_BITS, _MEMORY_LEVEL = 1, 11, 4
_TAIL_BYTES = 4  # 00 00 ff ff, which every flush writes and no message carries (7.2.1)


def is_sound(offers: str) -> bool:
    """Whether a `Sec-WebSocket-Extensions` header offers the extension only in ways that a server
    may accept (RFC 7692, 7). Whoever negotiates need not be as strict: an unsound offer refuses
    them all."""
    return all(_is_valid(offer) for offer in offers.split(",") if _EXTENSION in offer)


def _is_valid(offer: str) -> bool:
    extension, *parameters = _split(offer)
    names = {parameter.partition("=")[0] for parameter in parameters}
    is_known = all(_PARAMETER.fullmatch(parameter) for parameter in parameters)
    return extension == _EXTENSION and is_known and len(names) == len(parameters)


def _split(extension: str) -> list[str]:
    return [part.strip() for part in extension.split(";")]


class Deflater:
    """The payloads of one link's compressed messages, in the order in which they leave.

    Args:
        agreed: the extension as the server's answer names it, with its parameters.
    """

    def __init__(self, agreed: str) -> None:
        parameters = dict(part.partition("=")[::2] for part in _split(agreed))
        window_bits = min(_WINDOW_BITS, int(parameters.get("server_max_window_bits", "15")))
        # A full flush forgets what was sent before, which is to have no context (7.1.1.1).
        is_forgetful = "server_no_context_takeover" in parameters
        self._flush_mode = zlib.Z_FULL_FLUSH if is_forgetful else zlib.Z_SYNC_FLUSH
        self._stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, -window_bits, _MEMORY_LEVEL)

    def deflate(self, payload: bytes) -> bytes:
        """One message, which is not empty, as its frame carries it (7.2.1)."""
        deflated = self._stream.compress(payload) + self._stream.flush(self._flush_mode)
        return deflated[:-_TAIL_BYTES]
