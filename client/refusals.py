"""Classes of a model API's refusals: the context is full, the conversation is refused, or neither.

Invariant: every reader of such a reply, agents and evaluation, decides here.
"""

import re

from client.errors import ContextLengthExceeded, ConversationRefused, ModelError

# Statuses that refuse what the request holds. Sent again, it gets the same reply.
REFUSED_STATUSES = (400, 413, 422)
# Codes and words of OpenAI, Anthropic, Google, vLLM, SGLang, TGI and llama.cpp.
_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size|limit)"
    r"|max(imum)?[ _](model|input|prompt)[ _]len"
    r"|(prompt|input) is too long"
    r"|input[ _]token"
    r"|too many tokens"
    r"|maximum number of tokens allowed"
    r"|tokens \+ `max_new_tokens`",
    re.IGNORECASE,
)


def classify(status: int, text: str, *, n_answered: int = 0) -> type[ModelError] | None:
    """What the policy's own conversation met: ContextLengthExceeded or ConversationRefused; None for a fault of the
    API or of its caller.

    `status` and `text`: of the reply. `n_answered`: calls that the API answered before, in the same session. A refusal
    after an answer is due to what the conversation has gained since, which the policy wrote or caused. Before the first
    answer there is nothing of the policy in it.
    """
    if status not in REFUSED_STATUSES:
        return None
    if _OVERFLOW.search(text):
        return ContextLengthExceeded
    return ConversationRefused if n_answered else None
