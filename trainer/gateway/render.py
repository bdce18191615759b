"""Renders messages to tokens with the model's chat template, and parses sampled tokens to messages.

Invariant: a sampled turn is never rendered again. After it comes the template's own text that follows an assistant
turn, so a conversation grows by appending tokens, even where the template would rewrite earlier turns (drop thinking).
A control token comes from the template or the engine, never from the text of a message.
"""

import re
import secrets
from typing import Any

from client.errors import ConfigError, InvalidRequest
from trainer.gateway.tool_calls import CALL, FORMS, RESULT, TOOL, Reader, find_reader, read_calls


class Renderer:
    """Renderer of one model. `tokenizer` is a transformers tokenizer with a chat template.

    `template_kwargs` are arguments of the template (`enable_thinking`). `end_of_turn` is the token that closes an
    assistant turn; `stop_token_ids` are the tokens at which the engine must stop, the end of turn first.
    Raises ConfigError where the template does not close an assistant turn with a special token.
    """

    def __init__(self, tokenizer, template_kwargs: dict | None = None):
        self._tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        self._thinks = "</think>" in tokenizer.get_chat_template()
        # Unguessable, so that no message can contain them and shift the start of the continuation or end a text.
        self._marker = f"assistant-turn-{secrets.token_hex(8)}"
        self._break = f"no-control-token-{secrets.token_hex(8)}"
        control = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._control = _any_of(control)
        self.end_of_turn = self._find_end_of_turn()
        self._control = _any_of(control | {self._end_of_turn_text})
        eos = tokenizer.eos_token_id
        self.stop_token_ids = (self.end_of_turn,) + ((eos,) if eos not in (None, self.end_of_turn) else ())
        header = self._text([{"role": "user", "content": "-"}], None).rstrip()
        self._thinking_is_open, self._thinking_is_over = header.endswith("<think>"), header.endswith("</think>")
        self._written_call, self._read_call = self._find_tool_calls()

    def require_tool_calls(self) -> None:
        """Raises ConfigError where tool calls in the template's form cannot be read."""
        if not self._read_call:
            raise ConfigError(f"{self._unreadable()} a model whose template has one of them, or a text-based agent")

    @property
    def _end_of_turn_text(self) -> str:
        return self._tokenizer.added_tokens_decoder[self.end_of_turn].content

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
        if tools and self._read_call and (found := read_calls(message["content"], self._read_call, tools)):
            content, message["tool_calls"] = found
            message["content"] = content.strip() or None
        return message

    def _split_reasoning(self, text: str) -> tuple[str, str]:
        """Split into (reasoning, content). Thinking that was cut off is all reasoning: the agent must not act on it.

        A tag in the content is no end of thinking that the prompt has closed already.
        """
        head, closed, tail = text.partition("</think>")
        begins = self._thinking_is_open or text.lstrip().startswith("<think>")
        if not begins and (self._thinking_is_over or not closed):
            return "", text
        return head.strip().removeprefix("<think>").strip("\n"), tail.lstrip("\n")

    def _text(self, messages: list[dict], tools: list[dict] | None, add_generation_prompt: bool = True) -> str:
        if tools and not self._read_call:
            raise InvalidRequest(f"tools: {self._unreadable()} a text-based agent", field="tools")
        return self._render(messages, tools, add_generation_prompt)

    def _render(self, messages: list[dict], tools: list[dict] | None, add_generation_prompt: bool) -> str:
        """The template's text, with `_break` in each control token that the text of a message or a tool spells out."""
        try:
            return self._tokenizer.apply_chat_template(
                self._spelled(messages),
                tools=self._spelled(tools),
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self._kwargs,
            )
        except Exception as error:  # a template is a program: it raises TypeError and others, too
            problem = f"messages: the chat template rejects them: {type(error).__name__}: {error}"
            raise InvalidRequest(problem, field="messages") from error

    def _spelled(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._control.sub(lambda token: token[0][:1] + self._break + token[0][1:], value)
        if isinstance(value, list):
            return [self._spelled(each) for each in value]
        return {key: self._spelled(each) for key, each in value.items()} if isinstance(value, dict) else value

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

    def _find_tool_calls(self) -> tuple[str, Reader | None]:
        """A call as the template writes it ("" where it writes none) and its reader."""
        messages: list[dict] = [{"role": "user", "content": "-"}, CALL | {"content": self._marker}, RESULT]
        try:
            text = self._render(messages, [TOOL], add_generation_prompt=False).rpartition(self._marker)[2]
        except InvalidRequest:
            return "", None
        written = text.partition(self._end_of_turn_text)[0].strip()
        return written, find_reader(written)

    def _unreadable(self) -> str:
        written = f", but in this one:\n{self._written_call[:500]}\n" if self._written_call else ". "
        return (
            f"the model's chat template does not render tool calls in a form that can be read{written}"
            f"The forms that can be read are:\n{FORMS}\nUse"
        )

    def _encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"messages: text must not contain half a surrogate pair: {error}", field="messages"
            ) from None
        return [token for part in text.split(self._break) for token in self._encode_part(part)]

    def _encode_part(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _any_of(texts: set[str]) -> re.Pattern[str]:
    """Matches each of the texts, of two that begin alike the longer one; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")
