"""Command lines as people mistype them, the environment, help and version."""

import subprocess
import sys

sys.path.insert(0, "tests/support")
from cli import DEMO, PROGRAM, complains, deepinfer, main, succeeds, test

COMMANDS = ["run", "generate", "logits", "replay-check", "tokenize", "detokenize", "inspect", "version", "help"]


@test
def test_no_command_is_wrong_usage_and_lists_the_commands(_):
    result = deepinfer()
    assert result.status == 2, result
    for command in COMMANDS:
        assert command in result.out + result.err, (command, result)


@test
def test_an_unknown_command_names_the_nearest(_):
    complains(deepinfer("genrate"), 2, "genrate", "generate")
    complains(deepinfer("tokenise"), 2, "tokenise", "tokenize")


@test
def test_an_unknown_flag_names_the_nearest(_):
    complains(deepinfer("run", "--temprature", "0"), 2, "--temprature", "--temperature")
    complains(deepinfer("run", "--max-token=5"), 2, "--max-token", "--max-tokens")
    complains(deepinfer("generate", "--no-thnk"), 2, "--no-thnk", "--no-think")
    complains(deepinfer("logits", "--chunks", "3"), 2, "--chunks", "--chunk")


@test
def test_a_flag_unlike_any_other_is_still_named(_):
    complains(deepinfer("run", "--xyzzyplugh"), 2, "--xyzzyplugh")
    complains(deepinfer("run", "-Z"), 2, "-Z")


@test
def test_a_flag_of_another_command_is_refused(_):
    complains(deepinfer("tokenize", "-m", DEMO, "--temperature", "0"), 2, "--temperature")


@test
def test_a_missing_value_is_named(_):
    complains(deepinfer("run", "-m", DEMO, "--seed"), 2, "--seed")


@test
def test_values_out_of_range_are_refused_with_what_is_allowed(_):
    for flag, value, allowed in [
        ("--temperature", "-1", "0 to 100"),
        ("--temperature", "nan", "0 to 100"),
        ("--temperature", "warm", "0 to 100"),
        ("--top-p", "0", "up to 1"),
        ("--top-p", "1.5", "up to 1"),
        ("--top-k", "-7", "-1"),
        ("--max-tokens", "0", "1"),
        ("--max-tokens", "99999999999999999999", "1"),
        ("--seed", "-1", "0 to"),
        ("--backend", "gpu", "cpu or cuda[:N] or auto or ref"),
        ("--threads", "two", "0 to"),
    ]:
        result = deepinfer("run", "-m", DEMO, "-p", "Hello!", flag, value)
        complains(result, 2, flag, value, allowed)


@test
def test_a_missing_model_is_named(_):
    for command in ("run", "generate", "tokenize", "detokenize"):
        complains(deepinfer(command), 2, "--model")
    complains(deepinfer("logits", "-m", DEMO), 2, "--ids")
    assert deepinfer("inspect").status == 2
    complains(deepinfer("inspect", ""), 2, "empty", "DIR")
    complains(deepinfer("grammar", "--type", "regex"), 2, "--model", "--tokenizer")


@test
def test_a_word_that_belongs_nowhere_is_named(_):
    complains(deepinfer("run", "-m", DEMO, "-p", "Hello!", "surplus"), 2, "surplus")
    complains(deepinfer("inspect", DEMO, "surplus"), 2, "surplus")


@test
def test_inspect_state_prints_what_a_sequence_keeps(_):
    out = succeeds(deepinfer("inspect", "--state", DEMO)).out
    for part in ("window rings", "latents", "index keys", "open groups", "A block holds 128 tokens"):
        assert part in out, out
    complains(deepinfer("inspect", "--state", "/none"), 1, "/none")
    for option in ("--json", "--tensors", "--check"):
        complains(deepinfer("inspect", "--state", option, DEMO), 2, "--state", option)


@test
def test_batch_invariance_is_accepted_and_reported(_):
    for value in "01":
        result = succeeds(deepinfer("generate", "-m", DEMO, "--stats", stdin="",
                                    env={"DEEPINFER_BATCH_INVARIANT": value}))
        assert "batch invariance: on (cpu)" in result.err, result
    assert "batch invariance" in succeeds(deepinfer("version")).out
    complains(deepinfer("generate", "-m", DEMO, env={"DEEPINFER_BATCH_INVARIANT": "maybe"}), 2,
              "DEEPINFER_BATCH_INVARIANT", "maybe")


@test
def test_options_that_others_make_meaningless_are_named(_):
    def told(*options):
        result = succeeds(deepinfer("generate", "-m", DEMO, *options, stdin=""))
        return [line.split()[2] for line in result.err.splitlines() if "changes nothing" in line]

    assert told("--spec-mode", "off", "--num-drafts", 3) == ["--num-drafts"]
    assert told("--spec-mode", "fixed", "--cost-cache-ttl", 9) == ["--cost-cache-ttl"]
    assert told("--num-drafts", 0, "--confidence-temperature", 2) == ["--confidence-temperature"]
    assert told("--gpu-memory", "1G", "--replay-keep-tokens", 200) == ["--gpu-memory", "--replay-keep-tokens"]
    assert told("--spec-mode", "off", "--num-drafts", 0, "--replay-mode", "mask", "--replay-keep-tokens", 200) == []


@test
def test_a_value_given_to_a_switch_is_refused(_):
    complains(deepinfer("run", "-m", DEMO, "--think=very"), 2, "--think", "very")


@test
def test_the_environment_sets_what_the_command_line_leaves_out(_):
    bad = {"DEEPINFER_TEMPERATURE": "hot"}
    complains(deepinfer("run", "-m", DEMO, "-p", "Hello!", env=bad), 2, "DEEPINFER_TEMPERATURE")
    result = succeeds(deepinfer("tokenize", stdin='"a"\n', env={"DEEPINFER_MODEL": str(DEMO)}))
    assert result.out.startswith("["), result


@test
def test_the_command_line_beats_the_environment(_):
    env = {"DEEPINFER_MODEL": "/nowhere"}
    succeeds(deepinfer("tokenize", "-m", DEMO, stdin='"a"\n', env=env))


@test
def test_an_unknown_variable_is_warned_of_with_the_nearest(_):
    env = {"DEEPINFER_TEMPRATURE": "0", "DEEPINFER_MODEL": str(DEMO)}
    result = succeeds(deepinfer("tokenize", stdin='"a"\n', env=env))
    assert "DEEPINFER_TEMPRATURE" in result.err and "DEEPINFER_TEMPERATURE" in result.err, result


@test
def test_help_explains_every_command(_):
    overview = succeeds(deepinfer("help")).out
    assert deepinfer("--help").out == overview
    for command in COMMANDS:
        assert command in overview, (command, overview)
        page = succeeds(deepinfer("help", command))
        assert command in page.out and not page.err, page
        assert succeeds(deepinfer(command, "--help")).out == page.out


@test
def test_help_of_an_unknown_command_names_the_nearest(_):
    complains(deepinfer("help", "generte"), 2, "generate")


@test
def test_help_lists_ranges_presets_and_variables(_):
    page = succeeds(deepinfer("help", "run")).out
    for word in ("--temperature", "DEEPINFER_TEMPERATURE", "--no-think", "-p", "0 to 100"):
        assert word in page, (word, page)


@test
def test_help_lines_fit_a_terminal(_):
    for command in COMMANDS:
        for line in deepinfer("help", command).out.splitlines():
            assert len(line) <= 100, line


@test
def test_version_tells_build_libraries_and_processor(_):
    result = succeeds(deepinfer("version"))
    version = open("VERSION").read().strip()
    for word in (version, "jansson", "pcre2", "utf8proc", "processor"):
        assert word in result.out.lower(), (word, result)
    assert deepinfer("--version").out == result.out


@test
def test_the_page_of_options_is_up_to_date(_):
    page = succeeds(deepinfer("help", "--markdown")).out
    assert page == open("docs/options.md").read(), "run: deepinfer help --markdown > docs/options.md"


@test
def test_completion_completes_commands_and_options(_):
    def completed(*words):
        script = f"""
            source <("{PROGRAM}" help --bash)
            COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}
            COMP_LINE='{' '.join(words)}'; COMP_POINT=${{#COMP_LINE}}
            "$(complete -p deepinfer | sed 's/.*-F \\([^ ]*\\).*/\\1/')" deepinfer \
                '{words[-1]}' '{words[-2]}'
            printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert not done.stderr, done.stderr
        return done.stdout.split()

    assert completed("deepinfer", "gen") == ["generate"]
    assert "--temperature" in completed("deepinfer", "run", "--te")
    assert completed("deepinfer", "generate", "--devi") == ["--device"]
    assert "auto" in completed("deepinfer", "generate", "--device", "")
    assert "--temperature" not in completed("deepinfer", "tokenize", "--")


main()
