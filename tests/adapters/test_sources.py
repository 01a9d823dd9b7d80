"""From a text of the command line to a subject."""

import textwrap

import numpy as np
import pytest

from crosscheck.errors import CrosscheckError, SubjectRaised
from crosscheck.subjects import Documented
from crosscheck.subjects.sources import load_subject, parse

FILE = """
    import numpy as np
    from beside import VOCAB
    from crosscheck.subjects.functions import from_functions

    def plain(scale=1):
        return lambda ids: scale * np.zeros((*ids.shape, VOCAB))

    def nameless():
        return from_functions(plain(), cast=lambda dtype: from_functions(plain(), dtype=dtype))

    def named():
        return from_functions(plain(), name="its own")

    def told():
        return plain()
    told.documented = {"cache.partition": ("one cache a loop", "its docstring")}

    def hinted():
        return plain(), {"name": "hinted", "first_id": 2}

    def factory(name, **options):
        if name == "unknown":
            raise ValueError("family is unknown, expected plain.")
        return plain(**options)

    def broken():
        raise RuntimeError("no weights")

    NUMBER = 3
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("VOCAB = 7\n")
    (tmp_path / "mine.py").write_text(textwrap.dedent(FILE))
    return str(tmp_path / "mine.py")


def test_a_text_is_split_at_its_first_colon_and_last_question_mark():
    assert parse("a.b:dir/x:y?z?k=4&cache=static&f=0.5") == (
        "a.b:dir/x:y?z",
        {"k": 4, "cache": "static", "f": 0.5},
    )


def test_a_file_gives_its_factorys_model_with_its_options(file):
    subject = load_subject(f"{file}:plain?scale=2")

    assert subject.full(np.zeros((1, 2), int)).shape == (1, 2, 7)
    assert subject.source == f"{file}:plain?scale=2"
    assert subject.bare is True


def test_functions_without_a_name_are_called_as_on_the_command_line(file):
    subject = load_subject(f"{file}:nameless")

    assert subject.info.name == f"{file}:nameless"
    assert subject.cast("float32").info.name == f"{file}:nameless"
    assert load_subject(f"{file}:named").info.name == "its own"


def test_a_factory_may_document_a_difference(file):
    subject = load_subject(f"{file}:told")

    assert subject.info.documented == {
        "cache.partition": Documented("one cache a loop", "its docstring")
    }


def test_a_factory_may_give_hints(file):
    info = load_subject(f"{file}:hinted").info

    assert (info.name, info.first_id) == ("hinted", 2)


def test_a_general_factory_gets_the_name(file):
    assert load_subject(f"{file}:anything").info.vocab_size == 7


def test_a_dotted_module_works_as_a_file_does(file, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    assert load_subject("mine:plain").info.vocab_size == 7


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        pytest.param("llama", CrosscheckError, "text is 'llama', expected hf:DIR", id="no-colon"),
        pytest.param(
            "{}:plain?scale", CrosscheckError, "option is 'scale', expected key=value", id="option"
        ),
        pytest.param("{}:plain?size=1", CrosscheckError, "unexpected keyword.*size", id="unknown"),
        pytest.param("{}:unknown", CrosscheckError, "family is unknown", id="refused"),
        pytest.param(
            "{}:NUMBER", CrosscheckError, "is of type int, expected a function", id="no-factory"
        ),
        pytest.param("{}:broken", SubjectRaised, "raised RuntimeError: no weights", id="raises"),
        pytest.param("no/such.py:x", CrosscheckError, "does not exist", id="no-file"),
        pytest.param("no.such.module:x", CrosscheckError, "can't be imported", id="no-module"),
        pytest.param("hf-tiny:lama", CrosscheckError, "such as .*llama", id="no-family"),
        pytest.param("hf:no/such", CrosscheckError, "load_subject: hf:no/such: ", id="no-folder"),
    ],
)
def test_what_names_nothing_is_one_sentence(file, text, error, message):
    with pytest.raises(error, match=message) as caught:
        load_subject(text.format(file))

    assert "\n" not in str(caught.value)
