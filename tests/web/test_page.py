"""The page in a browser against a scripted engine: what is typed, streamed, shown and refused."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install pelton[dev])")
from live_server import wait_until
from playwright.sync_api import expect
from scripted import echo, make_engine, say

from byte_model import ByteTokenizer
from pelton.server.auth import ApiKeys

ANSWER = "Water turns the wheel."
BLOCKS = "64 blocks of the KV cache:"
MARKUP = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
FAILED_LOAD = "Failed to load resource"


def make_talker(text: str = ANSWER, **options):
    return make_engine(say(text), num_blocks=64, **options)


def is_idle(server) -> bool:
    return server.engine.stats().num_unfinished == 0


def get_tokens(page, view: int, count: int) -> list[str]:
    """What the tokens of the prompt (1) or the answer (2), `count` of them, are called to a screen reader."""
    tokens = page.locator(f"#tokens .token-view:nth-child({view}) .token")
    expect(tokens).to_have_count(count)
    return [token.get_attribute("aria-label") for token in tokens.all()]


def test_an_answer_streams_with_its_tokens_and_figures(serve, open_page, ask) -> None:
    page = open_page(serve(make_talker()))
    ask(page, "Hi there")
    expect(page.locator(".turn.user .turn-text")).to_have_text("Hi there")
    expect(page.locator(".turn.assistant .turn-text")).to_have_text(ANSWER)
    expect(page.locator("#status")).to_have_text(f"Finished after {len(ANSWER) + 1} tokens")
    # The script gives every chosen token exp(-0.5), which is 61 %.
    assert get_tokens(page, 2, len(ANSWER) + 1)[:2] == ["W, id 87, 61 %", "a, id 97, 61 %"]
    assert get_tokens(page, 1, 1 + len("[user]Hi there"))[:3] == ["<s>, id 256", "[, id 91", "u, id 117"]
    expect(page.locator("#times .caption")).to_contain_text(f"{len(ANSWER)} gaps")
    expect(page.locator("#blocks canvas")).to_have_attribute("aria-label", f"{BLOCKS} 10 cached, reusable, 54 free")
    expect(page.locator("#engine .caption")).to_contain_text(f"{len(ANSWER) + 1} tokens generated")


def test_steps_story_and_explanation_are_those_of_the_request(serve, open_page, ask) -> None:
    page = open_page(serve(make_talker()))
    ask(page, "Hi there")
    expect(page.locator("#times .caption")).to_contain_text("As the engine saw it")
    num_steps = len(ANSWER) + 1
    expect(page.locator("#steps canvas")).to_have_attribute(
        "aria-label", f"The last {num_steps} steps: step {num_steps} ran 1 sequence: 1 decode, 0 prompt tokens"
    )
    page.locator("#steps .figures summary").click()
    expect(page.locator("#steps tbody tr")).to_have_count(len(ANSWER) + 1)
    expect(page.locator("#steps tbody tr").last).to_contain_text("15")  # the prompt's tokens but one that is sampled
    expect(page.locator("#explanation .verdict").first).to_be_visible()
    expect(page.locator("#explanation .note")).to_have_text("")
    page.get_by_text("The whole text").click()
    expect(page.locator("#explanation pre")).not_to_be_empty()
    with page.expect_download() as download:
        page.locator("#explanation .trace").click()
    assert json.loads(download.value.path().read_text())["traceEvents"]


def test_a_request_in_the_queue_shows_why_it_waits(serve, open_page) -> None:
    server = serve(make_engine(say("x", end=None), model_context=100_000, num_blocks=40_000, max_num_seqs=1))
    server.engine.runner.step_s = 0.005
    page = open_page(server)
    body = {"prompt": "first", "stream": True, "max_tokens": 90_000}
    with server.client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        page.fill("#max_tokens", "3")
        page.fill("#prompt", "second")
        page.press("#prompt", "Enter")
        expect(page.locator("#times .legend").first).to_contain_text("queue (seats)")
        expect(page.locator(".turn-foot").last).to_have_text("waiting for the first token")
        expect(page.locator("#engine dd").nth(4)).to_contain_text("1")
    expect(page.locator("#status")).to_have_text("Finished after 3 tokens")


def test_alternatives_of_a_token_show_at_the_pointer_and_at_the_keyboard(serve, open_page, ask) -> None:
    page = open_page(serve(make_talker()))
    ask(page, "Hi")
    answer = page.locator("#tokens .token-view:nth-child(2)")
    answer.locator(".token").nth(1).hover()
    expect(answer.locator(".token-detail")).to_contain_text("Answer token 2: a id 97, probability 61 %")
    expect(answer.locator(".token-detail li")).to_have_count(8)
    answer.locator(".token").nth(1).focus()
    page.keyboard.press("ArrowRight")
    expect(answer.locator(".token-detail")).to_contain_text("Answer token 3: t id 116")
    page.keyboard.press("End")
    expect(answer.locator(".token-detail")).to_contain_text(f"Answer token {len(ANSWER) + 1}:")
    assert answer.locator('[tabindex="0"].token').count() == 1


def test_shift_enter_begins_a_new_line_and_an_empty_message_is_not_sent(serve, open_page, ask) -> None:
    server = serve(make_engine(echo))
    page = open_page(server)
    page.press("#prompt", "Enter")
    page.fill("#prompt", "one")
    page.press("#prompt", "Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#prompt") == "one\ntwo"
    page.press("#prompt", "Enter")
    expect(page.locator("#status")).to_contain_text("Finished")
    expect(page.locator(".turn.assistant .turn-text")).to_have_text("[user]one\ntwo")
    expect(page.locator(".turn")).to_have_count(2)


def test_stop_ends_the_request_in_the_engine_too(serve, open_page) -> None:
    server = serve(make_engine(say("x", end=None), model_context=100_000, num_blocks=40_000))
    server.engine.runner.step_s = 0.005
    page = open_page(server)
    page.fill("#max_tokens", "90000")
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    expect(page.locator(".turn.assistant .turn-text")).to_contain_text("xxxx")
    expect(page.locator("#send")).to_be_hidden()
    page.click("#stop")
    expect(page.locator("#status")).to_contain_text("Stopped after")
    wait_until(lambda: is_idle(server), "the engine to be idle")
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator(".turn-foot").last).to_contain_text("stopped after")


def test_regenerate_asks_again_and_replaces_the_answer(serve, open_page, ask) -> None:
    server = serve(make_talker())
    page = open_page(server)
    expect(page.locator("#regenerate")).to_be_disabled()
    ask(page, "Hi")
    page.click("#regenerate")
    wait_until(lambda: server.engine.stats().num_started_requests == 2, "the second request")
    expect(page.locator("#status")).to_contain_text("Finished")
    expect(page.locator(".turn")).to_have_count(2)
    ask(page, "And then?")
    expect(page.locator(".turn")).to_have_count(4)
    page.click("#clear")
    expect(page.locator(".turn")).to_have_count(0)


def test_parameters_and_the_whole_conversation_are_sent(serve, open_page, ask) -> None:
    page = open_page(serve(make_talker()))
    bodies: list[dict] = []
    page.on("request", lambda r: "completions" in r.url and bodies.append(json.loads(r.post_data)))
    for name, value in (("temperature", "0.5"), ("top_p", "0.9"), ("max_tokens", "40"), ("seed", "7")):
        page.fill(f"#{name}", value)
    page.fill("#system", "Be brief.")
    ask(page, "one")
    ask(page, "two", end="Finished after 23")
    expect(page.locator(".turn")).to_have_count(4)
    first, second = bodies
    assert (first["temperature"], first["top_p"], first["max_tokens"], first["seed"]) == (0.5, 0.9, 40, 7)
    assert [(m["role"], m["content"]) for m in second["messages"]] == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", ANSWER),
        ("user", "two"),
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{not json", "This is not JSON"),
        ("[1, 2]", "A JSON schema is an object"),
    ],
)
def test_a_schema_that_is_none_is_refused_before_it_is_sent(serve, open_page, schema: str, message: str) -> None:
    server = serve(make_talker())
    page = open_page(server)
    page.fill("#schema", schema)
    page.fill("#prompt", "Hi")
    page.press("#prompt", "Enter")
    expect(page.locator("#schema-error")).to_contain_text(message)
    expect(page.locator("#schema")).to_have_attribute("aria-invalid", "true")
    assert page.input_value("#prompt") == "Hi"
    assert page.locator(".turn").count() == 0


def test_a_schema_the_server_refuses_is_told_in_words(serve, open_page, ask) -> None:
    page = open_page(serve(make_talker()), FAILED_LOAD)
    page.fill("#schema", '{"type": "wheel"}')
    ask(page, "Hi", end="Failed")
    expect(page.locator("#error")).to_contain_text("JSON schema:")
    expect(page.locator("#error")).to_contain_text("wheel")
    expect(page.locator("#send")).to_be_visible()


def test_a_number_out_of_range_is_told_at_its_field(serve, open_page) -> None:
    page = open_page(serve(make_talker()))
    page.fill("#top_p", "7")
    page.fill("#prompt", "Hi")
    page.press("#prompt", "Enter")
    expect(page.locator("#error")).to_contain_text("Top p:")
    expect(page.locator("#top_p")).to_be_focused()


def test_a_server_with_keys_asks_for_one_and_takes_it(serve, open_page, ask) -> None:
    server = serve(make_talker(), keys=ApiKeys.from_lines(["me:secret-of-mine"]))
    page = open_page(server, FAILED_LOAD, is_ready=False)
    expect(page.locator("#served")).to_have_text("needs an API key")
    ask(page, "Hi", end="Failed")
    expect(page.locator("#error")).to_contain_text("wants an API key")
    expect(page.locator("#key")).to_be_focused()
    page.fill("#key", "secret-of-mine")
    page.press("#key", "Enter")
    expect(page.locator("#served")).to_contain_text("parameters")
    ask(page, "Hi")
    expect(page.locator(".turn.assistant .turn-text")).to_have_text(ANSWER)
    expect(page.locator("#explanation .trace")).to_be_visible()
    with page.expect_download() as download:
        page.locator("#explanation .trace").click()
    assert json.loads(download.value.path().read_text())["traceEvents"]
    page.reload()
    expect(page.locator("#served")).to_contain_text("parameters")


@pytest.mark.parametrize("view", ["user", "assistant"])
def test_markup_of_prompts_and_answers_stays_text(serve, open_page, ask, view: str) -> None:
    page = open_page(serve(make_engine(say(MARKUP), tokenizer=ByteTokenizer(), model_context=2000)))
    ask(page, MARKUP)
    expect(page.locator(f".turn.{view} .turn-text")).to_have_text(MARKUP)
    expect(page.locator("#tokens .token-view:nth-child(2) .token")).to_have_count(len(MARKUP) + 1)
    assert page.locator("main img, main script, main [onerror]").count() == 0


def test_a_token_that_is_markup_by_itself_stays_text(serve, open_page, ask) -> None:
    tokenizer = ByteTokenizer(pieces=[MARKUP, "\u202etfel\n"])
    script = [259, 260, 257]
    engine = make_engine(lambda request: script[len(request.output_token_ids)], tokenizer=tokenizer, model_context=2000)
    page = open_page(serve(engine))
    ask(page, "x")
    tokens = get_tokens(page, 2, 3)
    assert tokens[0] == f"{MARKUP}, id 259, 61 %"
    assert tokens[1] == "\\u202etfel⏎, id 260, 61 %"
    page.locator("#tokens .token-view:nth-child(2) .token").first.hover()
    expect(page.locator("#tokens .token-view:nth-child(2) .token-detail")).to_contain_text(MARKUP)
    assert page.locator("main img, main script").count() == 0


def test_a_panel_whose_answer_fails_says_so_and_the_others_go_on(serve, open_page, ask) -> None:
    page = open_page(serve(make_talker()), FAILED_LOAD)
    page.route("**/v1/steps*", lambda route: route.fulfill(status=500, json={"error": {"message": "no steps today"}}))
    page.route("**/explain", lambda route: route.fulfill(status=404, json={"error": {"message": "nothing to explain"}}))
    page.route("**/tokenize", lambda route: route.abort())
    ask(page, "Hi")
    expect(page.locator("#steps .note")).to_contain_text("no steps today")
    expect(page.locator("#explanation .note")).to_contain_text("nothing to explain")
    expect(page.locator("#tokens .note")).to_contain_text("cannot be reached")
    # The ids of the prompt came with the answer.
    assert get_tokens(page, 1, 1 + len("[user]Hi"))[:2] == ["?, id 256", "?, id 91"]
    expect(page.locator("#blocks canvas")).to_have_attribute("aria-label", f"{BLOCKS} 8 cached, reusable, 56 free")
    expect(page.locator(".turn.assistant .turn-text")).to_have_text(ANSWER)


def test_a_server_that_went_away_is_told_in_words(serve, open_page, ask) -> None:
    page = open_page(serve(make_talker()), FAILED_LOAD)
    page.route("**/v1/**", lambda route: route.abort())
    ask(page, "Hi", end="Failed")
    expect(page.locator("#error")).to_have_text("The server cannot be reached.")


def test_long_answers_keep_a_bounded_number_of_elements(serve, open_page, ask) -> None:
    page = open_page(serve(make_engine(say("x", end=None), model_context=3000, num_blocks=1000)))
    page.fill("#max_tokens", "1500")
    ask(page, "go on")
    expect(page.locator("#tokens .token-view:nth-child(2) .count")).to_have_text("1,401–1,500 of 1,500")
    assert page.locator(".token").count() <= 400
    assert page.locator("*").count() < 1500
    page.locator("#tokens .token-view:nth-child(2) .pager button").first.click()
    expect(page.locator("#tokens .token-view:nth-child(2) .count")).to_have_text("1,201–1,400 of 1,500")
    expect(page.locator("#tokens .token-view:nth-child(2) .token")).to_have_count(200)


def test_a_hidden_page_asks_for_nothing(serve, open_page, ask) -> None:
    page = open_page(serve(make_talker()))
    ask(page, "Hi")
    expect(page.locator("#explanation .verdict").first).to_be_visible()
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(3500)  # more than twice the longest period
    assert asked == []
    page.evaluate("Object.defineProperty(document, 'hidden', {value: false, configurable: true})")
    with page.expect_request("**/v1/engine"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
