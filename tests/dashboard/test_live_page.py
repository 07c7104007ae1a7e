# SPDX-License-Identifier: Apache-2.0
"""The live page in a real browser, and the process that serves it.

The browser is Debian's Chromium without a screen; where there is none, its tests say so and are
skipped. It may reach nothing but the page."""

import html
import json
import shutil
import signal
import socket
import sys
import urllib.request

import psutil
import pytest
from watched_runs import SMALL, address_of, is_alive, page_process, until, veldt_process

from veldt.cli import main as cli

pytest.importorskip("nicegui", reason="the extra dashboard is not installed")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--window-size=1440,1400"),
)


@pytest.fixture
def browser(tmp_path):
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver on this machine (Debian: apt install both)")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def text(browser, selector: str) -> str:
    """Text of the first match; empty without one."""
    return browser.execute_script(
        "return document.querySelector(arguments[0])?.textContent ?? ''", selector
    )


def env_steps(browser) -> int:
    return int(text(browser, '[data-tile="env-steps"]').replace(",", "") or 0)


def newest_node(process) -> psutil.Process:
    """An actor: the nodes are children of the fork server, the learner first."""
    children = psutil.Process(process.pid).children()
    (server,) = (each for each in children if "forkserver" in " ".join(each.cmdline()))
    return max(server.children(), key=lambda each: each.pid)


def restarts(browser) -> int:
    """As the note of the tile "Time" shows them."""
    return int(text(browser, '[data-tile="time"] + .note').removeprefix("restarts: ") or 0)


def foreign_requests(browser) -> list[str]:
    return browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
        ".filter(name => !name.startsWith(location.origin))"
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_page_moves_survives_a_reload_and_shows_restarts_and_the_result(browser, tmp_path):
    run_dir = tmp_path / "run"
    command = ("train", "impala", *SMALL, "--run-dir", str(run_dir), "--dashboard")
    with veldt_process(*command) as process:
        browser.get(address_of(process))
        until(lambda: env_steps(browser) > 0, "steps on the page")
        first = env_steps(browser)
        until(lambda: env_steps(browser) > first, "more steps without a reload")
        until(lambda: "/s" in text(browser, ".diagram svg"), "a rate")
        assert text(browser, ".state") == "running"
        assert text(browser, ".title") == "impala"

        browser.refresh()
        until(lambda: env_steps(browser) > first, "more steps after a reload")

        newest_node(process).kill()
        until(lambda: restarts(browser) > 0, "a restart on the page")
        until(lambda: "is restarted" in text(browser, ".event.node"), "the event")
        assert foreign_requests(browser) == []
        errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert errors == []

        page = page_process(process)
        process.send_signal(signal.SIGTERM)
        until(lambda: text(browser, ".state") == "finished", "the end on the page")
        assert "interrupted" in text(browser, ".result")
        assert process.wait(30) == 0
        assert not is_alive(page)
    assert json.loads((run_dir / "result.json").read_text())["restarts"] > 0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_page_of_a_killed_run_is_no_orphan_and_listens_to_this_machine_only(tmp_path):
    command = ("train", "impala", *SMALL, "--run-dir", str(tmp_path / "run"), "--dashboard")
    with veldt_process(*command) as process:
        address_of(process)
        page = page_process(process)
        listening = [c for c in page.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}
        process.kill()
        until(lambda: not is_alive(page), "the end of the page's process")


def test_a_taken_port_is_refused_before_anything_is_written(tmp_path, capsys):
    run_dir = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = ["train", "impala", *SMALL, "--backend", "serial", "--run-dir", str(run_dir)]
        assert cli.main([*command, "--dashboard", port]) == 2
    assert "choose another port" in capsys.readouterr().err
    assert not run_dir.exists()


@pytest.mark.parametrize("command", ["train", "watch"])
def test_without_the_extra_one_message_names_it(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nicegui", None)
    run_dir = tmp_path / "run"
    training = ("impala", *SMALL, "--run-dir", str(run_dir), "--dashboard")
    assert cli.main([command, *(training if command == "train" else [str(run_dir)])]) == 2
    assert capsys.readouterr().err.count('pip install "veldt[dashboard]"') == 1
    assert not run_dir.exists()


def test_only_a_run_directory_can_be_watched(tmp_path, capsys):
    assert cli.main(["watch", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


EVIL = "<img src=x onerror=alert(1)>"
HOSTILE_FILES = {
    "config.json": {"architecture": "impala", "options": {"env": "a"}, "device": "cpu",
                    "parameters": 1},
    "status.json": {"state": "ended", "nodes": {EVIL: {"busy": 0.5, "restarts": 1}},
                    "dropped": {EVIL: 1}},
    "result.json": {"architecture": "a", "env": "b", "backend": "c", "seed": 1,
                    "stopped_by": EVIL, "bottleneck": EVIL},
    "events.jsonl": {"time": 1.0, "sort": EVIL, "text": EVIL},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", '{"env_steps": 1\n[]\n\x00\n'),
        ("events.jsonl", '{"time": 1, "sort": "<img", "text": "\\ud800"}\n'),
        ("status.json", '{"state": {}, "nodes": 3}'),
    ],
)
def test_files_of_a_stranger_are_escaped_and_never_an_error(name, content, tmp_path):
    for file, values in HOSTILE_FILES.items():
        (tmp_path / file).write_text(json.dumps(values) + "\n")
    (tmp_path / name).write_text(content)
    with veldt_process("watch", ".", cwd=tmp_path) as process:
        address = address_of(process, process.stdout)
        for path in ("", "metrics"):
            with urllib.request.urlopen(address + path, timeout=60) as answer:
                assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
                text_of_page = html.unescape(answer.read().decode())
                assert "<img" not in text_of_page
                assert "&lt;img" in text_of_page or path or name == "status.json"
        process.terminate()
        assert "Traceback" not in process.stderr.read()
