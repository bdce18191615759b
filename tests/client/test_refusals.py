"""Refusals of a model API: an overflow of the context window in the words of many servers, and what is none."""

import pytest

from client.errors import ContextLengthExceeded, ConversationRefused
from client.refusals import classify

OVERFLOWS = {
    "code": (400, '{"error": {"code": "context_length_exceeded", "message": "no"}}'),
    "OpenAI": (400, "This model's maximum context length is 8192 tokens. However, you requested 9000."),
    "OpenAI, newer": (400, "Input tokens exceed the configured limit of 272000 tokens."),
    "vLLM": (400, "You passed 1025 input tokens and requested 1 output tokens. However, the model's context length is "
        "only 1024 tokens, resulting in a maximum input length of 1023 tokens. Please reduce the length of the input."),
    "vLLM, of the engine": (400, "The decoder prompt (length 9) is longer than the maximum model length of 8."),
    "vLLM, Responses": (400, "The engine prompt length 9 exceeds the max_model_len 8. Please reduce prompt."),
    "vLLM, its parameter": (400, '{"error": {"message": "too long", "param": "input_tokens", "code": 400}}'),
    "SGLang": (400, "The input (9 tokens) is longer than the model's context length (8 tokens)."),
    "TGI": (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens"),
    "llama.cpp": (400, "the request exceeds the available context size, try increasing it"),
    "Anthropic": (400, "prompt is too long: 210000 tokens > 200000 maximum"),
    "Anthropic, with the reply": (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"),
    "Google": (400, "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
    "Bedrock": (400, "Input is too long for requested model."),
    "Cohere": (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081"),
    "of a proxy": (413, "Input is too long"),
}  # fmt: skip
OTHERS = {
    "parameter": '{"error": {"message": "Unknown parameter: logprob", "code": "unknown_parameter"}}',
    "reply too long": "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
    "model": "The model does not exist",
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_overflow_is_known_in_any_words_by_its_status(name):
    status, text = OVERFLOWS[name]
    assert classify(status, text) is classify(status, text, n_answered=3) is ContextLengthExceeded
    assert classify(500, text) is classify(429, text) is classify(401, text) is None


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_another_refusal_is_the_conversations_after_an_answer_only(text):
    for status in (400, 413, 422):
        assert classify(status, text) is None
        assert classify(status, text, n_answered=1) is ConversationRefused
    for status in (401, 403, 404, 409, 429, 500, 503):
        assert classify(status, text, n_answered=1) is None
