"""The web page in a real browser: asking, stopping, editing, probabilities, conversations, the server's tab, hostile text.

usage: web_test.py PLUMB MODEL      (PLUMB_TEST_SCREENSHOTS=FOLDER keeps pictures)
"""
import json
import os
import pathlib
import sys
import traceback

import browser as browsing
import server as serving

QUESTION = "What is 2+2? Answer briefly."
LAST = "document.querySelector('.message.assistant:last-child')"
DONE = "!document.body.classList.contains('answering')"
HOSTILE = """<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>
[click](javascript:window.hacked=1) [fine](https://example.com/a) <b>bold</b> `<i>code</i>` **strong**

```html
<script>window.hacked=1</script>
```

| a | b |
|---|---|
| <svg onload=window.hacked=1> | 2 |

- one
  - two
1. <iframe src="javascript:window.hacked=1"></iframe>
"""


def fresh(page, server, path="/"):
    page.open(f"http://127.0.0.1:{server.port}{path}")
    page.run("localStorage.clear(); sessionStorage.clear()")
    page.open(f"http://127.0.0.1:{server.port}{path}")
    page.wait("document.querySelector('#state.good, #state.warn')")
    page.wait("document.querySelector('.welcome')")


def thinking(page, on):
    if page.run("return document.getElementById('thinking').checked") != on:
        page.click("#thinking + span")


def ask(page, text=QUESTION, wait=True):
    page.type("#input", text)
    page.press("Enter")
    page.wait(LAST)
    if wait:
        page.wait(DONE)


def test_an_answer_streams_in(page, server):
    fresh(page, server)
    thinking(page, False)
    ask(page)
    assert page.run(f"return {LAST}.querySelector('.content').textContent") == "4"
    figures = page.run(f"return {LAST}.querySelector('.figures').textContent")
    assert "tokens" in figures and "first after" in figures, figures
    assert page.run(f"return {LAST}.querySelector('.fold').hidden")


def test_thinking_is_folded(page, server):
    fresh(page, server)
    thinking(page, True)
    ask(page, "What is 17+25?")
    assert not page.run(f"return {LAST}.querySelector('.fold').hidden || {LAST}.querySelector('.fold').open")
    assert "Thought" in page.run(f"return {LAST}.querySelector('summary').textContent")
    page.click(".message.assistant summary")
    assert page.run(f"return {LAST}.querySelector('.thoughts').offsetHeight > 0")
    assert "think>" not in page.run(f"return {LAST}.textContent")


def settings(page, **values):
    page.click("#open-settings")
    for name, value in values.items():
        page.run(f"document.getElementById('s-{name}').value = arguments[0]", value)
    page.click("#settings .main")


def test_stop_regenerate_edit(page, server):
    fresh(page, server)
    thinking(page, False)
    settings(page, temperature="2", seed="5", max_tokens="4000")
    ask(page, "Tell me a long story about everything", wait=False)
    page.wait(f"{LAST}.querySelector('.content').textContent.length > 30 || {DONE}")
    page.press("Escape")
    page.wait(DONE)
    stopped = page.run(f"return {LAST}.querySelector('.figures').textContent")
    server.wait_for(lambda: server.metric("plumb_sequences_running") == 0)
    settings(page, temperature="0", max_tokens="")
    page.click(".message.user [title='Edit and ask again']")
    page.run("document.querySelector('.edit').value = arguments[0]", QUESTION)
    page.click(".editing .main")
    page.wait(f"{DONE} && {LAST}.querySelector('.content').textContent === '4'")
    page.click(".message.assistant [title='Answer again']")
    page.wait(f"{DONE} && {LAST}.querySelector('.content').textContent === '4'")
    assert page.run("return document.querySelectorAll('.message').length") == 2
    assert "stopped" in stopped or "tokens" in stopped, stopped


def test_probabilities_colour_tokens(page, server):
    fresh(page, server)
    thinking(page, False)
    page.click("#colours + span")
    ask(page)
    tokens = page.run(f"return [...{LAST}.querySelectorAll('.token')].map(t => t.textContent)")
    assert "".join(tokens) == "4", tokens
    page.run(f"{LAST}.querySelector('.token').focus()")
    assert page.run("return !document.getElementById('tip').hidden && document.querySelectorAll('#tip tr').length") == 5
    page.click("#colours + span")
    assert page.run(f"return {LAST}.querySelectorAll('.token').length") == 0


def test_conversations_stay_in_the_browser(page, server):
    fresh(page, server)
    thinking(page, False)
    ask(page)
    page.press("Alt", "n")
    page.wait("document.querySelector('.welcome')")
    ask(page, "What is 3+3? Answer briefly.")
    page.open(f"http://127.0.0.1:{server.port}/")
    page.wait("document.querySelectorAll('#conversations .pick').length === 3")
    page.run("[...document.querySelectorAll('#conversations .pick')].find(p => p.textContent.includes('2+2')).click()")
    assert page.run(f"return {LAST}.querySelector('.content').textContent") == "4"
    page.run("document.querySelector('#conversations li.chosen .icon').click()")
    page.wait("document.querySelectorAll('#conversations .pick').length === 2")


def test_hostile_text_stays_text(page, server):
    fresh(page, server)
    talk = [{"id": "1", "title": "<b>x</b>", "at": 1, "messages": [
        {"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE, "reasoning": HOSTILE}]}]
    page.run("localStorage.setItem('plumb.conversations', arguments[0])", json.dumps(talk))
    page.open(f"http://127.0.0.1:{server.port}/")
    page.wait("document.querySelectorAll('#conversations .pick').length === 2")
    page.run("document.querySelectorAll('#conversations .pick')[1].click()")
    page.wait(LAST)
    inside = "#messages, #conversations"
    bad = "img, script, iframe, b:not(#conversations b), object, embed, [onerror], [onload], a[href^=javascript]"
    assert page.run("return [...document.querySelectorAll(arguments[0])].flatMap(e => [...e.querySelectorAll(arguments[1])]).length",
                    inside, bad) == 0
    assert page.run("return window.hacked === undefined")
    links = page.run(f"return [...{LAST}.querySelectorAll('a')].map(a => a.href)")
    assert links == ["https://example.com/a"], links
    assert page.run(f"return {LAST}.querySelectorAll('table td, pre, ul ul li, strong').length") >= 4


def test_the_policy_forbids_what_it_should(page, server):
    status, headers, _ = server.request("GET", "/")
    policy = headers["Content-Security-Policy"]
    assert status == 200 and "default-src 'none'" in policy and "unsafe" not in policy, policy
    fresh(page, server)
    page.run("const s = document.createElement('script'); try { s.textContent = 'window.hacked = 1'; } catch {} document.head.append(s)")
    assert page.run("return window.hacked === undefined")
    origins = page.run("return [...new Set(performance.getEntriesByType('resource').map(e => new URL(e.name).origin))]")
    assert origins == [f"http://127.0.0.1:{server.port}"], origins
    page.complaints()  # those of this test are wanted


def test_the_servers_tab(page, server):
    fresh(page, server)
    page.press("Alt", "2")
    page.wait("document.querySelectorAll('#server-page tbody tr').length > 20")
    text = page.run("return document.getElementById('server-page').textContent")
    for part in ("ready", "Memory", "Kernels", "Options in force", "Verification", "Tokens a second"):
        assert part in text, part
    page.wait("document.querySelector('.chart .line.c1')?.getAttribute('d').includes('L')", 20)
    before = page.run("return document.querySelectorAll('#server-page .filter ~ .table tbody tr').length")
    page.type("#server-page .filter", "router")
    assert 0 < page.run("return document.querySelectorAll('#server-page .filter ~ .table tbody tr').length") < before
    page.press("Alt", "1")
    assert page.run("return !document.getElementById('view-chat').hidden")


def test_a_key_is_asked_for(page, server):
    other = serving.Server(sys.argv[1], sys.argv[2], "--api-key", "sesame", "--prefix", "/llm")
    try:
        other.wait_until_ready()
        page.open(f"http://127.0.0.1:{other.port}/llm/")
        page.wait("document.querySelector('.welcome')")
        ask(page)
        assert "API key" in page.run(f"return {LAST}.querySelector('.error').textContent")
        settings(page, key="sesame")
        thinking(page, False)
        page.click(".message.assistant [title='Answer again']")
        page.wait(f"{DONE} && {LAST}.querySelector('.content').textContent === '4'")
        page.complaints()  # 401 is logged by the browser
    finally:
        page.open("about:blank")  # it would go on asking a server that has ended
        assert other.stop() == 0


def test_it_can_be_switched_off(page, server):
    other = serving.Server(sys.argv[1], sys.argv[2], "--no-web")
    try:
        other.wait_until_ready()
        assert other.request("GET", "/")[0] == 404
    finally:
        assert other.stop() == 0


def test_pictures(page, server):
    """Wide and narrow, light and dark: nothing sticks out sideways."""
    folder = os.environ.get("PLUMB_TEST_SCREENSHOTS")
    sample = ("Attention over a **long context** reads few rows: an *indexer* scores them, `top-k` picks.\n\n"
              "1. score every key with the `indexer`\n2. keep the best 2,048\n3. attend to those alone\n\n"
              "```python\ndef attend(q, keys, k=2048):\n    best = top_k(indexer(q, keys), k)\n    return softmax(q @ keys[best].T)\n```\n\n"
              "| step | cost |\n|---|---|\n| score | linear |\n| attend | constant |\n\n> The rest follows.")
    talk = [{"id": "1", "title": "How does sparse attention work?", "at": 1764000000000, "messages": [
        {"role": "user", "content": "How does sparse attention work?"},
        {"role": "assistant", "content": sample, "reasoning": "The user wants the idea in short.", "thoughtMs": 2300,
         "stats": {"firstMs": 85, "lastMs": 2400, "tokens": 412}, "finish": "stop"}]},
        {"id": "2", "title": "A haiku about a plumb line", "at": 1763900000000, "messages": [{"role": "user", "content": "x"}]}]
    for name, width, height, dark, phone in (("desktop-light", 1280, 860, False, False), ("desktop-dark", 1280, 860, True, False),
                                             ("phone-light", 390, 844, False, True), ("phone-dark", 390, 844, True, True)):
        page.view(width, height, dark, phone)
        fresh(page, server)
        page.run("localStorage.setItem('plumb.conversations', arguments[0])", json.dumps(talk))
        for view in ("welcome", "chat", "tokens", "menu", "settings", "server", "server-end"):
            if view == "chat":
                page.open(f"http://127.0.0.1:{server.port}/")
                page.wait("document.querySelectorAll('#conversations .pick').length === 3")
                page.run("document.querySelectorAll('#conversations .pick')[1].click()")
            elif view == "tokens":
                thinking(page, False)
                page.click("#colours + span")
                page.press("Alt", "n")
                settings(page, temperature="1.4", seed="3", max_tokens="60")
                ask(page, "Write a story about the sea")
                page.run(f"{LAST}.querySelector('.token')?.focus()")
            elif view == "menu":
                if not phone:
                    continue
                page.click("#menu")
                serving.time.sleep(0.4)
            elif view == "settings":
                page.press("Escape")
                serving.time.sleep(0.3)
                page.click("#open-settings")
            elif view == "server":
                page.click("#settings .main")
                page.click("#tab-server")
                page.wait("document.querySelectorAll('#server-page tbody tr').length > 20")
                for _ in range(3):
                    server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 200, "ignore_eos": True})
                    serving.time.sleep(1.2)
            elif view == "server-end":
                page.run("document.getElementById('view-server').scrollTop = 1400")
            if folder:
                serving.time.sleep(0.2)
                page.screenshot(pathlib.Path(folder) / f"{name}-{view}.png")
            wide = page.run("return document.documentElement.scrollWidth > innerWidth + 1 || document.querySelector('.view:not([hidden])').scrollWidth > innerWidth + 1")
            assert not wide, f"{name}, {view}: wider than the screen"
    page.view(1280, 860)


def main():
    if browsing.missing():
        print(browsing.missing())
        return 77
    server = serving.Server(sys.argv[1], sys.argv[2])
    page, passed, failed = None, 0, 0
    try:
        server.wait_until_ready()
        page = browsing.Browser()
        page.view(1280, 860)
        for name, test in list(globals().items()):
            if not name.startswith("test_"):
                continue
            try:
                test(page, server)
                assert not (said := page.complaints()), f"the console says {said}"
                passed += 1
            except Exception:  # noqa: BLE001: a failed test must not end the others
                failed += 1
                print(f"FAILED {name}")
                traceback.print_exc(file=sys.stdout)
    finally:
        if page:
            page.close()
        failed += server.stop() != 0
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
