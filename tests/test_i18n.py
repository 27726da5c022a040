"""The catalogue: it is up to date, an unknown language is English, and every message can be translated."""

import ast
import string
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo

from tools import catalogue
from tpviz import i18n
from tpviz.i18n import _, ngettext

SOURCES = sorted(path for place in catalogue.PLACES for path in place.rglob("*.py"))


@pytest.fixture(autouse=True)
def environment_language(monkeypatch):
    """No language is asked for, and whatever a test chooses is forgotten."""
    for variable in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(variable, raising=False)
    i18n.use(None)
    yield
    monkeypatch.undo()
    i18n.use(None)


@pytest.fixture
def chinese(tmp_path, monkeypatch):
    """A catalogue with two Chinese sentences."""
    catalog = Catalog(locale="zh_CN")
    catalog.add("rank {rank}", "第 {rank} 号")
    catalog.add(("{count} row", "{count} rows"), ("{count} 行",))
    folder = tmp_path / "zh_CN" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    with open(folder / "tpviz.mo", "wb") as file:
        write_mo(file, catalog)
    monkeypatch.setattr(i18n, "LOCALE_DIR", tmp_path)


def test_template_is_up_to_date():
    assert catalogue.TEMPLATE.read_text(encoding="utf-8") == catalogue.template(), "run: python -m tools.catalogue"


def test_template_finds_every_kind_of_message(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    source = "# Translators: said twice\n_('one')\nN_('two')\nngettext('{n} row', '{n} rows', n)\nprint('not this')\n"
    (package / "module.py").write_text(source, encoding="utf-8")
    text = catalogue.template(package)
    for line in (
        "#. Translators: said twice",
        'msgid "one"',
        'msgid "two"',
        'msgid_plural "{n} rows"',
    ):
        assert line in text.splitlines()
    assert "not this" not in text
    # A new line above the sentences changes nothing.
    (package / "module.py").write_text("\n\n" + source, encoding="utf-8")
    assert catalogue.template(package) == text


def test_english_without_a_catalogue():
    assert _("rank {rank}").format(rank=1) == "rank 1"
    assert [ngettext("{count} row", "{count} rows", count).format(count=count) for count in (1, 2)] == [
        "1 row",
        "2 rows",
    ]


@pytest.mark.parametrize("language", ["de", "de_DE.UTF-8:fr", "C", "POSIX", "", ":", "zz", "../../..", "zh", "é@ü"])
@pytest.mark.parametrize("variable", ["LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"])
def test_a_language_without_a_catalogue_is_english(monkeypatch, variable, language):
    monkeypatch.setenv(variable, language)
    i18n.use(None)
    assert _("rank {rank}") == "rank {rank}"


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LC_ALL": "zh_CN"}, True),
        ({"LANGUAGE": "de:zh_CN"}, True),
        ({"LANGUAGE": "en_US:zh_CN"}, False),
        ({"LANGUAGE": "zh_CN:en"}, True),
        ({"LANGUAGE": "en", "LC_ALL": "zh_CN.UTF-8"}, False),
        ({"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, False),
    ],
)
def test_the_environment_chooses_as_in_gettext(monkeypatch, chinese, environment, chosen):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    i18n.use(None)
    assert _("rank {rank}").format(rank=0) == ("第 0 号" if chosen else "rank 0")
    assert ngettext("{count} row", "{count} rows", 2).format(count=2) == ("2 行" if chosen else "2 rows")


def test_one_call_decides_whatever_the_environment_says(monkeypatch, chinese):
    monkeypatch.setenv("LC_ALL", "de_DE")
    i18n.use("zh_CN")
    assert _("rank {rank}") == "第 {rank} 号"
    monkeypatch.setenv("LC_ALL", "zh_CN")
    i18n.use("en")
    assert _("rank {rank}") == "rank {rank}"


def _messages(path: Path):
    """Each call of the catalogue's functions in a file, with its literal arguments (None for what is no literal)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in catalogue.KEYWORDS:
            arguments = node.args[:2] if node.func.id == "ngettext" else node.args[:1]
            yield node, [a.value if isinstance(a, ast.Constant) else None for a in arguments]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(catalogue.ROOT).as_posix())
def test_messages_can_be_translated(path):
    for node, literals in _messages(path):
        where = f"{path.name}:{node.lineno}"
        assert not any(isinstance(a, ast.JoinedStr) for a in node.args), f"{where}: fill the message in after `_`"
        for message in filter(None, literals):
            fields = [field for _text, field, _spec, _how in string.Formatter().parse(message) if field is not None]
            assert all(field.isidentifier() for field in fields), f"{where}: name the fields of {message!r}"
