"""run on a terminal: the chat's memory, its input and its commands."""

import json
import os
import pty
import re
import signal
import sys

sys.path.insert(0, "tests/support")
from cli import DEMO, PROGRAM, environment, main, test
from terminal import Terminal

HINT = "Ctrl-C again"


class Chat(Terminal):
    """The program in charge of a terminal of its own, so that typing ^C sends the signal."""

    def __init__(self, *flags):
        words = [str(PROGRAM), "run", "-m", str(DEMO), "--temperature", "0", *flags]
        self.child, terminal = pty.fork()
        if self.child == 0:
            try:
                os.execve(words[0], words, environment(TERM="xterm"))
            finally:
                os._exit(127)
        super().__init__(terminal)
        self.wait_for("> $")

    def say(self, *lines):
        """Types lines, waits for the prompt behind the statistics, returns what came."""
        self.type("".join(line + "\n" for line in lines))
        return self.wait_for(r"MiB\]?\s+> $")

    def command(self, line):
        self.type(line + "\n")
        self.wait_for(re.escape(line.split()[0]))
        return self.wait_for("> $")

    def end(self):
        self.read_to_end()
        _, status = os.waitpid(self.child, 0)
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(status)


def leave(chat):
    chat.type("\x04")
    assert chat.end() == 0


@test
def test_a_second_question_is_understood_from_the_first(_):
    chat = Chat()
    assert "Bram Stoker" in chat.say("Who wrote Dracula?")
    assert "Dracula was published in 1897." in chat.say("When was it published?")
    leave(chat)


@test
def test_clear_forgets_the_conversation(_):
    chat = Chat()
    first = chat.say("Hello!")
    chat.say("Who wrote Dracula?")
    chat.command("/clear")
    again = chat.say("Hello!")
    count = re.compile(r"prompt:? (\d+) tokens")
    assert count.search(first)[1] == count.search(again)[1], (first, again)
    leave(chat)


@test
def test_lines_are_joined_by_a_backslash_or_within_quotes(_):
    chat = Chat()
    assert "Bram Stoker" in chat.say('"""', "Who wrote Dracula?", '"""')
    chat.command("/clear")
    assert "Bram Stoker" in chat.say('"""Who wrote Dracula?"""')
    chat.command("/clear")
    joined = chat.say("Who wrote \\", "Dracula?")
    chat.command("/clear")
    assert joined.split("?", 1)[1].split("[")[0] == \
        chat.say('"""Who wrote ', 'Dracula?"""').split('"""', 2)[2].split("[")[0]
    leave(chat)


@test
def test_thinking_is_switched_by_commands(_):
    chat = Chat()
    chat.command("/think")
    answer = chat.say("When was Jane Eyre published?")
    assert "It appeared in 1847." in answer and "</think>" not in answer, answer
    chat.command("/no-think")
    chat.command("/clear")
    assert "appeared" not in chat.say("When was Jane Eyre published?")
    leave(chat)


@test
def test_unknown_commands_name_the_nearest(_):
    chat = Chat()
    assert "did you mean /clear?" in chat.command("/claer")
    assert "/help lists them" in chat.command("/zzz")
    chat.type("/quit\n")
    assert chat.end() == 0


@test
def test_a_question_too_long_is_refused_and_the_chat_goes_on(_):
    chat = Chat("--max-model-len", "40")
    chat.type("word " * 60 + "\n")
    assert "the context holds at most 40" in chat.wait_for("(?s)error.*> $")
    assert "Bram Stoker" in chat.say("Who wrote Dracula?")
    leave(chat)


@test
def test_two_ctrl_c_at_the_prompt_leave(_):
    chat = Chat()
    chat.type("\x03")
    chat.wait_for(HINT)
    chat.say("Hello!")
    chat.type("\x03")
    chat.wait_for(HINT)
    chat.wait_for("> $")
    chat.type("\x03")
    assert chat.end() == 0


@test
def test_sigterm_ends_the_chat_and_its_trace_is_whole(folder):
    """At the prompt, and within an answer."""
    trace = folder / "trace.json"
    for asked in (False, True):
        chat = Chat("--ignore-eos", "--trace", trace)
        if asked:
            chat.type("Tell me a story about a ghost.\n")
            chat.wait_for(r"ghost\.\s+\S+ \S+ ")
        os.kill(chat.child, signal.SIGTERM)
        assert chat.end() == 128 + signal.SIGTERM, asked
        assert os.listdir(folder) == ["trace.json"], os.listdir(folder)
        assert (len(json.loads(trace.read_text())["traceEvents"]) > 3) == asked
        trace.unlink()


main()
