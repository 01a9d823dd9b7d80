"""What a command says of a slip: one line, and nothing else."""


def refusal(capsys, main, *argv):
    """Return the exit code of a command line and its one line on stderr."""
    try:
        code = main(list(argv))
    except SystemExit as error:
        code = error.code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    return code, err.strip()
