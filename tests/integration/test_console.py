"""The console in a real browser, at a real node: what operators find, do, and may not do.

It needs Chromium, as Debian's package of that name; without one these tests are skipped.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from angarium import blocking, errors
from angarium_server.http.problems import CONTENT_TYPE
from tests.integration.browser import Browser, program
from tests.integration.http_api import PASSWORD, Api, managed_node
from tests.integration.oidc_issuer import CLIENT, SECRET, Issuer
from tests.ports import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Node

pytestmark = pytest.mark.slow

#: What must stay text: it would be markup, and a script, in a page that puts it in as it is.
MARKUP: Final = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
#: A client that fills a queue.
FILLS: Final = "<b>till</b> 1"
QUEUES: Final = ("calm", "filled", "grows", "other", "paged")
#: Messages of a page of them.
PAGE_ROWS: Final = 25


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with managed_node(tmp_path_factory.mktemp("console"), http="http://127.0.0.1:0") as running:
        api = Api(running.management_url)
        for name in QUEUES:
            assert api.send("POST", "/api/v1/vpns/default/queues", {"name": name}).status == 201
        api.close()
        yield running


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None:
        pytest.skip("there is no Chromium here: install the package chromium")
    with Browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@pytest.fixture
def browser(node: Node, chromium: Browser) -> Iterator[Browser]:
    """Give a browser without a session; all that it asked for, and complained about, is looked at in the end."""
    chromium.do("Network.clearBrowserCookies")
    chromium.requested.clear()
    chromium.complaints.clear()
    visit = f"?visit={next(VISITS)}"
    chromium.open(f"{node.management_url}/{visit}")
    chromium.until(f"location.search === '{visit}' && document.activeElement?.name === 'name'")
    yield chromium
    foreign = [url for url in chromium.requested if not url.startswith(node.management_url)]
    assert foreign == []
    # A browser notes each refusal, also those that the page expects.
    complaints = [one for one in chromium.complaints if "the server responded with a status" not in one]
    assert complaints == []


VISITS: Final = iter(range(1_000))


def log_in(browser: Browser, name: str = "admin") -> None:
    browser.fill("Operator", name)
    browser.fill("Password", PASSWORD)
    browser.press("Enter")
    browser.sees("Log out")


def held(api: Api, name: str) -> int:
    return int(api.get(f"/vpns/default/queues/{name}/status").value["messages_spooled"])


def fill(node: Node, api: Api, name: str, payloads: list[bytes]) -> None:
    before = held(api, name)
    with blocking.connect(node.url) as client, client.producer() as producer:
        for payload in payloads:
            producer.publish(f"#P2P/QUE/{name}", payload)
        producer.flush()
    wait_until(lambda: held(api, name) == before + len(payloads), f"{name} has its messages")


def test_the_page_and_its_files_come_without_a_login_and_nothing_else_does(api: Api) -> None:
    api.authorization = ""
    page = api.send("GET", "/")
    policy = page.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    for address in re.findall(r'(?:href|src)="([^"]*)"', page.body.decode()):
        file = api.send("GET", address)
        assert (file.status, file.headers["X-Content-Type-Options"]) == (200, "nosniff"), address
        head = api.send("HEAD", address)
        assert (head.status, head.headers["Content-Length"]) == (200, str(len(file.body)))
        assert api.send("GET", address, If_None_Match=file.headers["ETag"]).status == 304
    assert api.send("POST", "/", {}).status == 405
    for path in ("/console", "/console/x/app.js", "/console/../console/app.js", "/index.html"):
        refused = api.send("GET", path)
        assert (refused.status, refused.headers["Content-Type"]) == (401, CONTENT_TYPE)


@pytest.mark.requirement("R262")
def test_an_operator_finds_the_queue_that_grows_and_works_with_its_messages(
    node: Node, browser: Browser, api: Api
) -> None:
    log_in(browser)
    browser.sees("Every check passes")
    browser.click("Queues", "nav")
    browser.sees("grows")
    fill(node, api, "grows", [b"first", b"second", MARKUP.encode()])
    # Sorted by what they hold, and asked for again by itself: it comes up.
    browser.until("document.querySelector('tbody th').innerText === 'grows'")
    browser.click("grows", "tbody")
    browser.sees("Unacknowledged")
    browser.click("Show message 3")
    browser.sees(MARKUP)
    browser.press("Escape")
    browser.until("!document.querySelector('dialog')")

    browser.click("Choose message 1")
    browser.click("Delete 1 message", "main")
    browser.sees("deleted for good: position 1")
    browser.click("Delete 1 message", "dialog")
    browser.until("!document.querySelector('dialog')")
    assert held(api, "grows") == 2

    move_the_bad_one_there_and_back(browser, api)
    browser.click("Move or copy")
    move_to_other(browser, "All of its 2 messages", "2 messages moved.")
    assert (held(api, "grows"), held(api, "other")) == (0, 2)

    browser.value("location.hash = '#/queue/default/other'")
    browser.click("Purge")
    browser.sees("All of them are deleted for good")
    browser.click("Delete all messages", "dialog")
    browser.sees("2 messages deleted from other")
    assert held(api, "other") == 0
    browser.click("Delete", "main .head")
    browser.click("Delete the queue", "dialog")
    browser.until("location.hash === '#/queues'")
    assert api.get("/vpns/default/queues/other").status == 404


def move_to_other(browser: Browser, which: str, done: str) -> None:
    """Fill in the dialog that moves messages of `grows` to `other`, which is offered when a part of it is typed."""
    browser.fill("To the queue", "ther", "dialog")
    offered = "[...document.querySelectorAll('dialog datalist option')].map((one) => one.value)"
    browser.until(f"{offered}.join() === 'other'")
    browser.fill("To the queue", "o", "dialog")
    browser.until(f"{offered}.includes('other') && !{offered}.includes('grows')")
    browser.fill("To the queue", "other", "dialog")
    browser.sees(f"{which} will leave grows and go to other")
    browser.click("Move", "dialog")
    browser.sees(done)
    browser.click("Close", "dialog footer")


def move_the_bad_one_there_and_back(browser: Browser, api: Api) -> None:
    """Of two messages of `grows`, one goes to `other`, and is redriven."""
    browser.click("Choose message 3")
    browser.click("Move 1 message", "main")
    move_to_other(browser, "The chosen message", "1 message moved.")
    assert (held(api, "grows"), held(api, "other")) == (1, 1)
    browser.value("location.hash = '#/queue/default/other'")
    browser.sees("queue grows moved")
    browser.click("Choose message 1")
    browser.click("Redrive 1 message", "main")
    browser.click("Redrive", "dialog")
    browser.sees("1 message moved back.")
    browser.click("Close", "dialog footer")
    assert (held(api, "grows"), held(api, "other")) == (2, 0)
    browser.value("location.hash = '#/queue/default/grows'")
    browser.sees("2 messages on this page")


@pytest.mark.long
@pytest.mark.requirement("R262")
def test_no_page_of_messages_is_empty_and_all_that_a_selector_selects_are_moved(
    node: Node, browser: Browser, api: Api
) -> None:
    fill(node, api, "paged", [b"x"] * PAGE_ROWS)
    log_in(browser)
    browser.value("location.hash = '#/queue/default/paged'")
    buttons = "[...document.querySelectorAll('#messages .pages button')].map((one) => one.disabled)"
    browser.sees("25 messages on this page")
    assert browser.value(buttons) == [True, True], "there is nothing behind a page that is just full"
    fill(node, api, "paged", [b"y"])
    browser.until(f"!{buttons}[1]")
    browser.click("Next", "#messages")
    browser.sees("1 message on this page, the oldest first; there are no more")
    assert browser.value(buttons) == [False, True]
    browser.click("Choose all of this page")
    browser.click("Delete 1 message", "main")
    browser.click("Delete 1 message", "dialog")
    browser.sees("25 messages on this page")
    browser.fill("Selector", "JMSPriority < 4", "#messages")
    browser.sees("No such messages.")
    browser.fill("Selector", "JMSPriority = 4", "#messages")
    browser.sees("25 messages on this page")
    # Whoever looks at these means these.
    browser.click("Move or copy", "main .head")
    browser.sees("All of those among its 25 messages that the selector selects")
    browser.press("Escape")
    browser.until("!document.querySelector('dialog')")
    browser.tab_to("Move all selected", most=120)
    browser.press("Enter")
    browser.fill("To the queue", "calm", "dialog")
    browser.sees(
        "All of those among its 25 messages that the selector selects will leave paged and go to calm"
    )
    browser.press("Enter")
    browser.sees("25 messages moved.")
    # The form is gone, and the button that opened it has nothing to move any more: the focus goes on.
    assert browser.focused() == "Close"
    browser.press("Enter")
    browser.until("person.focused() === 'Selector'")
    assert (held(api, "paged"), held(api, "calm")) == (0, PAGE_ROWS)
    assert api.send("POST", "/api/v1/vpns/default/queues/calm/purge").status == 200


def test_events_are_there_after_a_refusal(browser: Browser) -> None:
    log_in(browser)
    refused = {"title": "Once", "detail": "and not again", "status": 503, "code": 50321, "advice": ""}
    script = """{
        const ask = globalThis.fetch;
        globalThis.fetch = (path, told) => {
            if (!path.includes("/events?limit")) return ask(path, told);
            globalThis.fetch = ask;
            return Promise.resolve(new Response(REFUSED, { status: 503 }));
        };
    }"""
    browser.value(script.replace("REFUSED", json.dumps(json.dumps(refused))))
    browser.click("Events", "nav")
    browser.sees("and not again")
    browser.sees("SYSTEM_CONFIG_CHANGE")
    assert "and not again" not in browser.value("document.body.innerText")


@pytest.mark.long
@pytest.mark.requirement("R262")
def test_who_fills_a_queue_and_what_a_message_says_of_itself_is_seen(node: Node, browser: Browser) -> None:
    log_in(browser)
    browser.click("Queues", "nav")
    with blocking.connect(node.url, client_name=FILLS) as client:
        said: dict[str, Any] = {
            "mode": "persistent",
            "content_type": "text/plain",
            "properties": {"colour": MARKUP},
        }
        client.publish(queue="filled", payload=b"by a client that is there", **said)
        client.flush()
        browser.click("filled", "tbody")
        browser.click(FILLS, "#publishers")
        browser.until("document.querySelector('h1')?.innerText === " + json.dumps(FILLS))
        browser.sees("Published")
        # From who it is to what it may.
        browser.click("default", "#about")
        browser.until("location.hash === '#/usernames/default/default'")
        browser.click("default", "#attributes")
        browser.until("location.hash === '#/acls/default/default'")
    browser.value("location.hash = '#/queue/default/filled'")
    browser.click("Show message 1")
    browser.sees("by a client that is there")
    facts = browser.value("[...document.querySelectorAll('dialog .facts > div')].map((e) => e.innerText)")
    assert {"Content type\ntext/plain", f"colour\n{MARKUP}"} <= set(facts)
    browser.press("Escape")
    browser.until("!document.querySelector('dialog')")


def test_a_viewer_sees_no_button_that_the_node_would_refuse(browser: Browser) -> None:
    log_in(browser, "viewer")
    browser.click("Queues", "nav")
    browser.click("calm", "tbody")
    browser.sees("No messages.")
    buttons = browser.value(
        "[...document.querySelectorAll('main button, main .button')].map((e) => e.innerText)"
    )
    assert buttons == ["Previous", "Next"]


@pytest.mark.long
def test_an_operator_sees_and_ends_a_client_and_what_is_written_of_it(
    node: Node, browser: Browser, api: Api
) -> None:
    with blocking.connect(node.url, client_name=MARKUP[:40]) as client:
        client.subscribe("orders/*")
        log_in(browser)
        browser.click("Clients", "nav")
        browser.click(MARKUP[:40], "tbody")
        browser.sees("orders/*")
        browser.click("Disconnect")
        browser.click("Disconnect it", "dialog")
        browser.until("location.hash === '#/clients'")
    browser.click("Audit log", "nav")
    browser.fill("Object or operation", "clients.disconnect", "main")
    browser.until("document.querySelectorAll('tbody tr').length === 1")
    browser.value("document.querySelector('tbody button').click()")
    browser.sees(MARKUP[:40])
    browser.press("Escape")
    browser.click("Events", "nav")
    browser.sees("CLIENT_CONNECT")
    assert browser.value("document.title").startswith("Events")


@pytest.mark.long
def test_a_right_is_taken_away_and_written_down(browser: Browser, api: Api) -> None:
    acl = {"name": "team", "publish_topic_default": "allow"}
    assert api.send("POST", "/api/v1/vpns/default/acls", acl).status == 201
    ann = {"name": "ann", "acl_profile": "team"}
    assert api.send("POST", "/api/v1/vpns/default/usernames", ann).status == 201
    log_in(browser)
    check_access(browser, "ann", "orders/new", "Allowed")

    browser.click("ACL profiles", "nav")
    browser.click("team", "tbody")
    browser.click("Change")
    browser.fill("Publish topic exceptions", "orders/>", "dialog")
    browser.click("Change 1", "dialog")
    browser.sees("team: publish_topic_exceptions changed")

    check_access(browser, "ann", "orders/new", "Refused")
    browser.sees("publish_topic_default = allow, inverted by the exception 'orders/>'")
    browser.click("Audit log", "nav")
    browser.fill("Object or operation", "team", "main")
    browser.until("document.querySelectorAll('tbody tr').length === 2")
    # What was done is in the list of a phone, too.
    browser.look(width=390)
    assert browser.value("document.querySelector('tbody th').innerText").split("\n") == [
        "objects.update",
        "acl default/team",
    ]
    assert browser.value("document.querySelector('tbody th').getBoundingClientRect().right < 390")
    browser.look()
    browser.value("document.querySelector('tbody button').click()")
    browser.sees('["orders/>"]')
    browser.press("Escape")

    # What an attribute may be is chosen, and said beside it.
    browser.click("ACL profiles", "nav")
    browser.click("team", "tbody")
    browser.click("Change")
    browser.sees("Whether clients may subscribe to a filter.")
    browser.choose("Subscribe topic default", "allow", "dialog")
    browser.click("Change 1", "dialog")
    browser.sees("team: subscribe_topic_default changed")
    assert api.get("/vpns/default/acls/team").value["subscribe_topic_default"] == "allow"


def check_access(browser: Browser, name: str, topic: str, answer: str) -> None:
    browser.click("Access check", "nav")
    browser.fill("Client username", name, "main")
    browser.fill("Topic", topic, "main")
    browser.click("Check", "main")
    browser.until(f"document.querySelector('#answer h2')?.innerText.startsWith('{answer}')")


@pytest.mark.long
def test_an_operator_tries_what_a_client_may(node: Node, browser: Browser, api: Api) -> None:
    log_in(browser, "operator")
    browser.click("Try it", "nav")
    browser.fill("Filters", "demo/>", "#subscribe")
    browser.click("Subscribe", "#subscribe")
    browser.sees("listening")
    with blocking.connect(node.url) as client:
        client.publish("demo/native", MARKUP.encode())
    browser.sees(MARKUP)
    browser.fill("Topic", "demo/by/hand", "#publish")
    browser.fill("Payload", "of the console", "#publish")
    browser.click("Publish", "#publish")
    browser.sees("Published to demo/by/hand")
    browser.sees("of the console")
    browser.fill("Client username", "nobody", "#who")
    browser.click("Publish", "#publish")
    browser.until("Boolean(document.querySelector('#publish [role=alert]'))")
    browser.click("Stop", "#subscribe")
    tried = api.do("audit", who="operator").value
    assert {"publish": "demo/by/hand", "subscribe": "demo/>"}.items() <= {
        one["asked"]["does"]: one["asked"]["target"]
        for one in tried[:-1]
        if one["operation"] == "clients.try"
    }.items()
    assert browser.value("document.title").startswith("Try it")


def test_a_viewer_may_not_try(api: Api) -> None:
    viewer = Api(f"http://{api.place}", "viewer")
    for does, body in (("publish", {"topic": "a", "payload": ""}), ("subscribe", {"filters": ["a"]})):
        assert viewer.send("POST", f"/api/v1/vpns/default/try/{does}", body).code == errors.OPERATOR_DENIED
    viewer.close()
    # A status of 401 would have the browser ask for another operator.
    wrong = {"topic": "a", "username": "nobody", "password": "of nobody"}
    assert api.send("POST", "/api/v1/vpns/default/try/publish", wrong).code == errors.INVALID_ARGUMENT
    assert api.send("POST", "/api/v1/vpns/default/try/publish", {"topic": "a", "queue": "b"}).status == 400
    assert api.send("POST", "/api/v1/vpns/none/try/publish", {"topic": "a"}).status == 404
    for plural, made in (
        ("acls", {"name": "mute", "publish_topic_default": "disallow"}),
        ("usernames", {"name": "bob", "acl_profile": "mute"}),
    ):
        assert api.send("POST", f"/api/v1/vpns/default/{plural}", made).status == 201
    denied = {"topic": "orders/1", "username": "bob"}
    assert api.send("POST", "/api/v1/vpns/default/try/publish", denied).code == errors.PUBLISH_DENIED


@pytest.mark.long
def test_a_file_is_planned_and_applied(browser: Browser, api: Api) -> None:
    log_in(browser)
    browser.click("Configuration plan", "nav")
    browser.fill("Or paste one", "[vpn.default.queue.planned]\nmax_ttl_s = 'x'", "main")
    browser.click("Plan", "main")
    browser.sees("40017")
    browser.fill("Or paste one", "[vpn.default.queue.planned]\nmax_ttl_s = 60", "main")
    browser.click("Plan", "main")
    browser.sees("Plan: 1 change")
    assert api.get("/vpns/default/queues/planned").status == 404
    browser.click("Apply 1 change", "main")
    browser.click("Apply", "dialog")
    browser.sees("1 object changed")
    assert api.get("/vpns/default/queues/planned").value["max_ttl_s"] == 60


def test_markup_in_names_and_topics_stays_text(node: Node, browser: Browser, api: Api) -> None:
    """In lists and on the pages of objects, in events, in the audit log, and among the messages of a queue."""
    image, drawing = "<img src=x onerror=document.title='taken'>", "<svg/onload=document.title='taken'>"
    base = "/api/v1/vpns/default"
    for plural in ("queues", "topic-endpoints"):
        assert api.send("POST", f"{base}/{plural}", {"name": image}).code == errors.INVALID_ENDPOINT_NAME
    made = {"templates": image, "usernames": drawing}
    for plural, name in made.items():
        assert api.send("POST", f"{base}/{plural}", {"name": name}).status == 201, plural
    assert api.send("POST", "/api/v1/operators", {"name": drawing, "role": "viewer"}).status == 201
    assert api.send("PATCH", f"{base}/queues/calm", {"subscriptions": ["markup/>"]}).status == 200
    with blocking.connect(node.url) as client:
        client.publish(f"markup/{image}", b"x", mode="persistent")
        client.flush()
    log_in(browser)
    quoted = {name: quote(name, safe="") for name in (image, drawing)}
    pages = [("queue/default/calm", image), ("events", drawing), ("audit", drawing), ("operators", drawing)]
    pages += [(f"operators/{quoted[drawing]}", drawing), *made.items()]
    pages += [(f"{plural}/default/{quoted[name]}", name) for plural, name in made.items()]
    for page, name in pages:
        browser.value(f"location.hash = {json.dumps('#/' + page)}")
        browser.sees(name)
        assert browser.value("document.querySelectorAll('main img, main svg[onload]').length") == 0, page
        assert browser.value("document.title") != "taken", page
    for plural, name in made.items():
        assert api.send("DELETE", f"{base}/{plural}/{quoted[name]}").status == 204
    assert api.send("DELETE", f"/api/v1/operators/{quoted[drawing]}").status == 204
    assert api.send("POST", f"{base}/queues/calm/purge").status == 200


@pytest.mark.requirement("R262")
def test_queues_whose_names_a_browser_takes_for_steps_are_opened_and_purged(
    node: Node, browser: Browser, api: Api
) -> None:
    base = "/api/v1/vpns/default/queues"
    places = {".": f"{base}/%3F.", "..": f"{base}/%3F.."}
    for name, place in places.items():
        assert api.send("POST", base, {"name": name}).headers["Location"] == place
        with blocking.connect(node.url) as client, client.producer() as producer:
            producer.publish(f"#P2P/QUE/{name}", b"kept")
            producer.flush()
    log_in(browser)
    for name, place in places.items():
        browser.value(f"location.hash = {json.dumps(f'#/queue/default/{name}')}")
        browser.sees(f"#P2P/QUE/{name}")
        assert held(api, quote(f"?{name}")) == 1
        browser.click("Purge")
        browser.click("Delete all messages")
        browser.sees(f"1 message deleted from {name}")
        assert held(api, quote(f"?{name}")) == 0
        assert api.send("DELETE", place).status == 204


@pytest.mark.requirement("R262")
def test_each_page_of_the_menu_shows_what_it_is_for(browser: Browser, api: Api) -> None:
    log_in(browser)
    hook = {"name": "hook", "queue": "calm", "url": "https://example.com/", "enabled": False}
    assert api.send("POST", "/api/v1/vpns/default/webhooks", hook).status == 201
    shown = {
        "Links": "This node has no links",
        "Gateways": "http.0",
        "Topic endpoints": "No topic endpoints here.",
        "Dead messages": "#DEAD_MSG_QUEUE",
        "Webhooks": "https://example.com/",
        "Bridges": "No bridge",
        "Client usernames": "default",
        "Client profiles": "default",
        "Templates": "None.",
        "Message VPNs": "10000 MB",
        "Operators": "administrator",
    }
    for title, text in shown.items():
        browser.click(title, "nav")
        browser.until(f"document.querySelector('h1')?.innerText === {title!r}")
        browser.sees(text)
        assert browser.value("document.documentElement.scrollWidth <= innerWidth"), title


@pytest.mark.long
@pytest.mark.requirement("R262")
def test_each_page_fits_a_phone_in_light_and_dark(browser: Browser) -> None:
    """Nothing reaches beyond the edge but tables, which scroll by themselves; the menu opens and closes."""
    log_in(browser)
    pages = browser.value("[...document.querySelectorAll('nav a')].map((one) => [one.hash, one.innerText])")
    assert len(pages) > 15
    light = browser.value("getComputedStyle(document.body).backgroundColor")
    try:
        browser.look(width=390, height=800, dark=True)
        browser.until("innerWidth === 390")
        assert browser.value("getComputedStyle(document.body).backgroundColor") != light
        for place, title in [*pages, ["#/queue/default/calm", "calm"], ["#/acls/default/default", "default"]]:
            browser.value(f"location.hash = {json.dumps(place)}")
            heading = "document.querySelector('main h1')?.innerText"
            browser.until(f"{heading}?.startsWith('Node ')" if place == "#/" else f"{heading} === {title!r}")
            browser.until("!document.querySelector('main [aria-busy=true]')")
            assert browser.value("document.documentElement.scrollWidth <= innerWidth"), title
        browser.click("Change")
        browser.sees("Whether clients may connect.")
        assert browser.value("document.querySelector('dialog').scrollWidth <= innerWidth")
        browser.press("Escape")
        browser.until("!document.querySelector('dialog')")
        browser.click("Menu", "header")
        browser.click("Queues", "nav")
        browser.until("document.querySelector('h1')?.innerText === 'Queues'")
        browser.until("document.querySelector('nav').getClientRects().length === 0")
    finally:
        browser.look()


def test_a_refusal_is_shown_in_the_words_of_the_node(browser: Browser) -> None:
    browser.fill("Operator", "admin")
    browser.fill("Password", "wrong")
    browser.press("Enter")
    browser.sees("name and password of an operator do not belong together")
    browser.sees("40101")


def test_the_keyboard_leads_through_all_of_it(node: Node, browser: Browser, api: Api) -> None:
    fill(node, api, "calm", [b"one"])
    browser.until("document.activeElement?.name === 'name'")
    browser.type("admin")
    browser.press("Tab")
    browser.type(PASSWORD)
    browser.press("Enter")
    browser.sees("Every check passes")
    browser.tab_to("Skip to the content")
    browser.tab_to("Queues")
    browser.press("Enter")
    browser.until("document.activeElement?.ariaLabel === 'Queues'")
    browser.sees("calm")
    browser.tab_to("calm")
    browser.press("Enter")
    browser.sees("Oldest message")
    browser.tab_to("Purge")
    browser.press("Enter")
    browser.sees("Purge calm?")
    # The focus stays inside, whichever way it goes, and is back at the button in the end.
    for shift in (False, True):
        for _ in range(6):
            browser.press("Tab", shift=shift)
            assert browser.value(
                "document.activeElement === document.body || Boolean(document.activeElement.closest('dialog'))"
            )
    browser.press("Escape")
    browser.until("!document.querySelector('dialog')")
    assert browser.focused() == "Purge"
    assert browser.value("person.unnamed()") == []


@pytest.mark.long
@pytest.mark.requirement("R258")
def test_who_comes_back_from_an_identity_provider_is_logged_in(tmp_path: Path, chromium: Browser) -> None:
    """To a browser, localhost and 127.0.0.1 are two sites: cookies go as they do between a node and its provider."""
    issuer, port = Issuer(), free_port()
    issuer.has_page, issuer.redirect_uri = True, f"http://localhost:{port}/login/oidc/callback"
    config = (
        f'[management]\npublic_url = "http://localhost:{port}"\n'
        f'[oidc]\nissuer = "{issuer.issuer}"\nclient_id = "{CLIENT}"\nclient_secret_file = "secret"\n'
    )
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    with managed_node(tmp_path, config, f"http://127.0.0.1:{port}") as running:
        running.run("operator", "create", "anna", "--set", "role=operator", "--set", "token_subject=anna-1")
        chromium.do("Network.clearBrowserCookies")
        chromium.open(f"http://localhost:{port}/login/oidc")
        chromium.click("I am Anna")
        chromium.sees("Log out")
        chromium.sees("anna")
        assert chromium.value("location.pathname") == "/"
        assert chromium.value("document.cookie") == "", "no script sees a session"
        chromium.click("Log out")
        chromium.until("document.querySelector('main.login input')")
    issuer.stop()
