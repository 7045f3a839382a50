"""What this version serves of what it understands: the rest is refused by name, whichever stage sees it first."""

from schemas.errors import Unsupported
from schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Request

ServedRequest = ChatRequest | CompletionRequest


def served(request: Request) -> ServedRequest:
    """The request, if it asks for nothing that is not served yet. What is in a claim's object is asked when it is read.

    Raises:
        Unsupported: it does; `param` names the field.
    """
    if isinstance(request, EmbeddingRequest):
        raise Unsupported("embeddings are not served yet; send `messages` (chat) or `prompt` (completion)")
    if not isinstance(request, ChatRequest):
        return request
    if request.tools:
        raise Unsupported("tools are not supported yet; leave `tools` out", param="tools")
    if request.tool_choice not in (None, "none", "auto"):
        raise Unsupported("tools are not supported yet; leave `tool_choice` out", param="tool_choice")
    return request
