"""Text as whole characters, which every file and every request can hold."""


def whole_characters(text: str) -> str:
    """The text with each half of a surrogate pair replaced, as JSON's escapes can make one."""
    return text.encode(errors="surrogatepass").decode(errors="replace")
