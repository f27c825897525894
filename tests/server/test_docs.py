"""The curl examples of docs/serving.md do what the page shows. With --write the page gets what they
give now."""

import re
import subprocess
import sys

sys.path[:0] = ["tests/support"]
from cli import Skip, main, test  # noqa: E402
from serving import demo  # noqa: E402

PAGE = "docs/serving.md"
EXAMPLE = re.compile(r"```sh\n(curl [^`]*?)\n```\n```(json|text)\n(.*?)```", re.S)


def normal(text):
    """Without what differs each time."""
    text = re.sub(r"(chatcmpl-|cmpl-|msg_|resp_)[0-9a-f]{24,}", r"\1ID", text)
    text = re.sub(r"\bcall_\d\d_\w{24}", "call_00_ID", text)
    text = re.sub(r'"(created|created_at|completed_at)":\d+', r'"\1":0', text)
    text = re.sub(r'"fp_[^"]*"', '"fp_ID"', text)
    # log-probabilities may differ in their last digits from one build to another
    return re.sub(r"(-?\d+\.\d{3})\d+", r"\1", text).rstrip("\n") + "\n"


def outputs(page):
    with demo() as s:
        for command, _, shown in EXAMPLE.findall(page):
            run = subprocess.run(command.replace("127.0.0.1:8000", s.address), shell=True,
                                 capture_output=True, text=True)
            yield command, shown, run.stdout, run.returncode


@test
def test_examples_give_what_the_page_shows(folder):
    page = open(PAGE).read()
    if subprocess.run("command -v curl", shell=True, capture_output=True).returncode:
        raise Skip("no curl here")
    count = 0
    for command, shown, out, status in outputs(page):
        assert status == 0, (command, status)
        assert normal(out) == normal(shown), f"{command}\n{normal(out)}\n{normal(shown)}"
        count += 1
    assert count == page.count("```sh\ncurl") > 10, count


@test
def test_the_page_names_every_field_that_is_known(folder):
    """All rows of the table of fields, those that are refused too."""
    page, source = open(PAGE).read(), open("src/server/fields.c").read()
    section = page[page.index("## Fields"):page.index("## Errors")]
    words = " ".join(re.findall(r"`([^`\n]+)`", section))
    names = re.findall(r'^    \{"(\w+)", [^{}]*\},$', source[:source.index("NUM_ROWS")], re.M)
    assert len(names) > 90, len(names)
    missing = [n for n in names if not re.search(rf"(?<!\w){n}(?!\w)", words)]
    assert not missing, missing


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        text = open(PAGE).read()
        results = iter([normal(out) for _, _, out, _ in outputs(text)])
        text = EXAMPLE.sub(lambda m: f"```sh\n{m[1]}\n```\n```{m[2]}\n{next(results)}```", text)
        open(PAGE, "w").write(text)
    else:
        main()
