"""Renders messages to tokens with the model's chat template, and parses sampled tokens to messages.

Invariant: a sampled turn is never rendered again. After it comes the template's own text that follows an assistant
turn, so a conversation grows by appending tokens, even where the template would rewrite earlier turns (drop thinking).
"""

import json
import re
import secrets
import uuid

from jinja2 import TemplateError

from client.errors import ConfigError, InvalidRequest

_TOOL_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


class Renderer:
    """Renderer of one model. `tokenizer` is a transformers tokenizer with a chat template.

    `template_kwargs` are arguments of the template (`enable_thinking`). `end_of_turn` is the token that closes an
    assistant turn; `stop_token_ids` are the tokens at which the engine must stop, the end of turn first.
    Raises ConfigError where the template does not close an assistant turn with a special token.
    """

    def __init__(self, tokenizer, template_kwargs: dict | None = None):
        self._tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        template = tokenizer.get_chat_template()
        self._thinks = "</think>" in template
        self._calls_tools = "<tool_call>" in template
        # Unguessable, so that no message can contain it and shift the start of the continuation.
        self._marker = f"assistant-turn-{secrets.token_hex(8)}"
        self.end_of_turn = self._find_end_of_turn()
        eos = tokenizer.eos_token_id
        self.stop_token_ids = (self.end_of_turn,) + ((eos,) if eos not in (None, self.end_of_turn) else ())
        self._thinking_is_open = self._text([{"role": "user", "content": "-"}], None).rstrip().endswith("<think>")

    def prompt(self, messages: list[dict], tools: list[dict] | None = None) -> list[int]:
        """Token ids of a new conversation, up to and including the header of the assistant's turn."""
        return self._encode(self._text(messages, tools))

    def continuation(
        self, sampled: tuple[int, ...], messages: list[dict], tools: list[dict] | None = None
    ) -> list[int]:
        """Token ids between the `sampled` assistant turn and the next one, for the `messages` between (may be empty).

        The end of the turn is included unless the engine sampled it (a turn cut by the token limit has none).
        """
        tokens = self._encode(self._after_assistant_turn(messages, tools, add_generation_prompt=True))
        return tokens[1:] if sampled and sampled[-1] == self.end_of_turn else tokens

    def parse(self, sampled: tuple[int, ...], tools: list[dict] | None = None) -> dict:
        """The assistant message of the `sampled` tokens: content, reasoning and, with `tools`, tool calls."""
        turn = sampled[:-1] if sampled and sampled[-1] in self.stop_token_ids else sampled
        text = self._tokenizer.decode(turn, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        message = {"role": "assistant", "content": text}
        if self._thinks:
            reasoning, message["content"] = self._split_reasoning(text)
            if reasoning:
                message["reasoning_content"] = reasoning
        if tools and (calls := _parse_tool_calls(message["content"])):
            message["content"] = message["content"].partition("<tool_call>")[0].strip() or None
            message["tool_calls"] = calls
        return message

    def _split_reasoning(self, text: str) -> tuple[str, str]:
        """Split into (reasoning, content). Thinking that was cut off is all reasoning: the agent must not act on it."""
        head, closed, tail = text.partition("</think>")
        if not closed and not self._thinking_is_open and not text.lstrip().startswith("<think>"):
            return "", text
        return head.strip().removeprefix("<think>").strip("\n"), tail.lstrip("\n")

    def _text(self, messages: list[dict], tools: list[dict] | None, add_generation_prompt: bool = True) -> str:
        if tools and not self._calls_tools:
            raise InvalidRequest(
                "tools: the model's chat template does not render tool calls as <tool_call>; use a text-based agent",
                field="tools",
            )
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt, **self._kwargs
            )
        except TemplateError as error:
            raise InvalidRequest(f"messages: the chat template rejects them: {error}", field="messages") from error

    def _after_assistant_turn(self, messages: list[dict], tools: list[dict] | None, add_generation_prompt: bool) -> str:
        """The template's text after an assistant turn's content when `messages` follow."""
        placeholder = [{"role": "user", "content": "-"}, {"role": "assistant", "content": self._marker}]
        return self._text(placeholder + messages, tools, add_generation_prompt).rpartition(self._marker)[2]

    def _find_end_of_turn(self) -> int:
        tokens = self._encode(self._after_assistant_turn([], None, add_generation_prompt=False))
        if not tokens or tokens[0] not in self._tokenizer.added_tokens_decoder:
            raise ConfigError(
                "the chat template must close an assistant turn with a special token, so that the engine stops there; "
                f"this one closes it with {self._tokenizer.decode(tokens)!r}; use a model of the ChatML, Qwen or Llama "
                "kind"
            )
        return tokens[0]

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"messages: text must not contain half a surrogate pair: {error}", field="messages"
            ) from None
        return self._tokenizer.encode(text, add_special_tokens=False)


def _parse_tool_calls(content: str) -> list[dict]:
    """Hermes-style tool calls in OpenAI's format. If one is malformed, none is returned: the agent gets the text."""
    calls = []
    for match in _TOOL_CALL.finditer(content):
        try:
            call = json.loads(match[1])
            name, arguments = call["name"], call["arguments"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return []
        if not isinstance(name, str) or not isinstance(arguments, dict | str):
            return []
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = {"name": name, "arguments": arguments}
        calls.append({"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function})
    return calls
