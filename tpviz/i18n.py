"""The one catalogue of words: every sentence that a reader sees, except a notebook's own text, passes through `_`.

The words in the code are English and are the catalogue's keys. `python -m tools.catalogue` collects them in
`locale/tpviz.pot`; an edition in another language is a compiled catalogue beside it
(`locale/zh_CN/LC_MESSAGES/tpviz.mo`).

The language is the one that gettext's environment variables ask for (LANGUAGE, LC_ALL, LC_MESSAGES, LANG, in this
order), English where there is no catalogue for it. `use("zh_CN")` decides otherwise: an edition of the notebooks calls
it once, in its first cell, and what its cells print then depends on no machine's settings.
"""

import gettext
import os
from pathlib import Path

DOMAIN = "tpviz"
LOCALE_DIR = Path(__file__).parent / "locale"
SOURCE_LANGUAGES = frozenset({"en", "C", "POSIX"})
"""The languages that the code itself is written in: they need no catalogue, and nothing after them is looked for."""

_translations: gettext.NullTranslations | None = None


def _wanted() -> list[str]:
    """The languages that the environment asks for, best first, as gettext reads it."""
    for variable in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        if value := os.environ.get(variable):
            return value.split(":")
    return []


def _load(languages: list[str]) -> gettext.NullTranslations:
    """The first of these languages that there is a catalogue for; the code's own words where there is none.

    gettext itself would answer LANGUAGE=en:zh_CN in Chinese, since it finds no English catalogue.
    """
    for language in languages:
        if language.partition("_")[0].partition(".")[0] in SOURCE_LANGUAGES:
            break
        if gettext.find(DOMAIN, LOCALE_DIR, [language]):
            return gettext.translation(DOMAIN, LOCALE_DIR, [language])
    return gettext.NullTranslations()


def use(language: str | None) -> None:
    """Speak this language from here on ("zh_CN", "en"); with None, the one that the environment asks for."""
    global _translations
    _translations = _load(_wanted() if language is None else [language])


def _current() -> gettext.NullTranslations:
    """The catalogue in use; the environment is asked when the first sentence is needed."""
    if _translations is None:
        use(None)
    assert _translations is not None
    return _translations


def _(message: str) -> str:
    """The message in the reader's language. Fill it in afterwards: `_("rank {rank}").format(rank=0)`."""
    return _current().gettext(message)


def ngettext(singular: str, plural: str, count: int) -> str:
    """The form of the message that the reader's language uses for this count."""
    return _current().ngettext(singular, plural, count)


def N_(message: str) -> str:
    """Mark a message for the catalogue without translating it: for constants, which `_` translates when shown."""
    return message
