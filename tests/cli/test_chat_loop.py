"""The interactive chat: several turns, its commands, and how it ends."""

from __future__ import annotations

from pelton.cli.chat import HELP


def test_every_turn_sends_the_whole_conversation(cli) -> None:
    outcome = cli.run("run", "--system", "S", typed="one\ntwo\n")
    assert outcome.code == 0
    assert cli.runner.prompts == ["[system]S[user]one", "[system]S[user]one[assistant]Hello![user]two"]
    assert outcome.out == "Hello!\nHello!\n"


def test_exit_ends_the_chat_and_blank_lines_are_no_turns(cli) -> None:
    outcome = cli.run("run", typed="\n  \none\n/exit\nnever\n")
    assert outcome.code == 0
    assert cli.runner.prompts == ["[user]one"]


def test_clear_forgets_the_conversation_but_not_the_system_message(cli) -> None:
    cli.run("run", "--system", "S", typed="one\n/clear\ntwo\n")
    assert cli.runner.prompts == ["[system]S[user]one", "[system]S[user]two"]


def test_unknown_commands_are_named_and_other_text_with_a_slash_is_a_turn(cli) -> None:
    outcome = cli.run("run", typed="/foo\n/help\n/etc/hosts is what?\n")
    assert f"unknown command /foo; {HELP}" in outcome.err
    assert cli.runner.prompts == ["[user]/etc/hosts is what?"]


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(cli) -> None:
    cli.runner.interrupt_at = 2
    outcome = cli.run("run", typed="one\ntwo\n")
    assert outcome.code == 0
    assert outcome.out == "He\nHello!\n"
    assert cli.runner.prompts[-1] == "[user]one[assistant]He[user]two"


def test_conversation_longer_than_the_context_is_an_error_of_that_turn_only(cli) -> None:
    cli.context = 40
    outcome = cli.run("run", typed=f"{'x' * 50}\nshort\n")
    assert outcome.code == 0
    assert outcome.err.count("pelton: error: ") == 1
    assert cli.runner.prompts == ["[user]short"]


def test_raw_chat_continues_each_line_by_itself(cli) -> None:
    cli.run("run", "--raw", typed="one\ntwo\n")
    assert cli.runner.prompts == ["one", "two"]


def test_json_needs_a_prompt(cli) -> None:
    assert "--json" in cli.run("run", "--json", typed="one\n").error
